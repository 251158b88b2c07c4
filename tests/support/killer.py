"""The killer: a thread that does what it is ordered to a loader's processes.

See orders.py and fuzz.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from orders import SUSPECT_S
from ringfeed.workers import process, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import ringfeed
    from orders import Deed, Orders, Tally

KILL_S = 0.3  # in rounds with workers that SIGKILL does not end, what it may take


class Immortals:
    """Processes that SIGKILL from the loader does not end, until the killer says so: it stops them instead."""

    def __init__(self) -> None:
        self.pidfds: dict[int, int] = {}
        self.spared: set[int] = set()  # those that SIGKILL has tried to end

    @contextlib.contextmanager
    def reign(self) -> Iterator[None]:
        """Have the loader's SIGKILL spare them, and lose patience with them soon."""
        send, patience_s = process.WorkerProcess.kill, processes.KILL_S

        def kill(worker: process.WorkerProcess, number: signal.Signals = signal.SIGKILL) -> None:
            if number == signal.SIGKILL and worker.pid in self.pidfds:
                self.spared.add(worker.pid)
                number = signal.SIGSTOP
            send(worker, number)

        process.WorkerProcess.kill = kill  # type: ignore[assignment,method-assign]
        processes.KILL_S = KILL_S
        try:
            yield
        finally:
            process.WorkerProcess.kill = send  # type: ignore[method-assign]
            processes.KILL_S = patience_s

    def add(self, pid: int) -> bool:
        """Let this process be one; False where it is dead and buried."""
        with contextlib.suppress(ProcessLookupError):
            self.pidfds[pid] = os.pidfd_open(pid)
        return pid in self.pidfds

    def wake(self, pid: int) -> None:
        """Let it go on."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfds[pid], signal.SIGCONT)

    def end(self, pid: int) -> None:
        """Kill it in earnest, and wait until it is dead."""
        pidfd = self.pidfds.pop(pid)
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            assert select.select([pidfd], [], [], 120.0)[0], f"process {pid} outlived SIGKILL"
        finally:
            os.close(pidfd)


class Killer:
    """A thread that does what is ordered to a loader's processes."""

    def __init__(self, orders: Orders, loader: ringfeed.Loader, tally: Tally) -> None:
        self.killed_at_s: list[tuple[float, str]] = []  # when, and what else lived
        self._orders = orders
        self._tally = tally
        self._pool: Any = loader._runner.engine.pool  # type: ignore[union-attr]
        self._later: list[
            tuple[float, int, Callable[[], None]]
        ] = []  # when, to which process, what
        self._immortals = Immortals()
        self._reign = contextlib.ExitStack()
        self._suspected: set[int] = set()  # stopped for good
        self._until_progress = 0
        self._killed: set[int] = set()
        self._working: set[int] = set()  # processes that have been seen to be past their start
        self._killed_early = -1  # the last worker that was killed before it had worked
        self._forkserver_after = (
            -1
        )  # restarts at its last death; it must have forked again before it dies again
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        if self._orders.unkillable:
            self._reign.enter_context(self._immortals.reign())
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        """Put an end to it."""
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        self._reign.close()
        self._tally.unkillable += len(self._immortals.spared)
        if self._error is not None:
            raise self._error

    def progress(self) -> None:
        """Be told that a batch has come: a loader whose every worker dies before it works cannot go on."""
        self._until_progress = 0

    def _run(self) -> None:
        try:
            for deed in self._orders.deeds():
                if self._wait(deed.delay_s):
                    return
                self._do(deed)
        except BaseException as error:  # noqa: BLE001 - raised where the round ends
            self._error = error
        finally:
            self._do_what_is_due(float("inf"))

    def _wait(self, delay_s: float) -> bool:
        """Wait for the next deed, and do what is due meanwhile; True when the round is."""
        deadline_s = time.monotonic() + delay_s
        while (now_s := time.monotonic()) < deadline_s:
            until_s = min([deadline_s, *(due_s for due_s, _, _ in self._later)])
            if self._over.wait(max(0.0, until_s - now_s)):
                return True
            self._do_what_is_due(time.monotonic())
        return False

    def _do(self, deed: Deed) -> None:
        if "forkserver" in deed.name:
            self._do_to_forkserver(deed)
            return
        workers = sorted(self._pool._roster.workers.copy().items())
        if not workers:
            return
        number, worker = workers[deed.victim % len(workers)]
        if deed.name == "stop for good":
            self._suspect(worker.pid, deed)
        elif "stop" in deed.name:
            self._pause(worker.pid, deed, number if "kill" in deed.name else None)
        elif deed.name == "kill":
            self._kill(number, worker)
        else:
            for each in workers:
                self._kill(*each)

    def _may_die(self, pid: int) -> bool:
        """Whether a death leaves the loader able to go on: three in a row before any work are an error, rightly."""
        if (
            self._until_progress >= 2 * self._orders.workers
            or len(self._killed) >= self._orders.most_kills
        ):
            return False
        if pid in self._killed:
            return False  # dead, and not replaced yet
        if pid in self._working:
            return True
        if not self._pool._lock.acquire(blocking=False):
            return False  # a worker is being replaced: it cannot be told yet which one starts
        try:
            roster = self._pool._roster
            workers = [*roster.workers.values()]
            self._working |= {one.pid for one in workers if not roster.is_starting(one)}
            pids = {one.pid for one in workers}
            early = self._pool._policy.early_deaths or self._killed_early in pids
        finally:
            self._pool._lock.release()
        return pid in self._working or not early

    def _note_death(self, pid: int) -> None:
        if pid not in self._working:
            self._killed_early = pid
        self._until_progress += 1
        self._killed.add(pid)

    def _kill(self, number: int, worker: Any) -> None:
        if not self._may_die(worker.pid):
            return
        name = f"{self._orders.method}, {self._circumstances(number)}"
        self._note_death(worker.pid)
        self._tally.kills += 1
        self.killed_at_s.append((time.perf_counter(), name))
        self._send(worker.pid, signal.SIGKILL)

    def _circumstances(self, number: int) -> str:
        roster = self._pool._roster
        workers = roster.workers
        if number not in workers or roster.is_starting(workers.pop(number)):
            return "of one that starts"
        others = map(roster.is_starting, workers.values())
        return "another works" if not all(others) else "no other works"

    def _pause(self, pid: int, deed: Deed, doomed: int | None) -> None:
        """Stop a process for a while.

        Then it goes on, or is killed as it is where it is the worker ``doomed``.
        """
        self._send(pid, signal.SIGSTOP)
        self._later.append(
            (time.monotonic() + deed.pause_s, pid, partial(self._end_pause, pid, doomed))
        )
        self._tally.stops += 1

    def _end_pause(self, pid: int, doomed: int | None) -> None:
        worker = self._pool._roster.workers.get(doomed)
        if doomed is not None and worker is not None and worker.pid == pid:
            self._kill(doomed, worker)
        if pid not in self._suspected:
            self._send(pid, signal.SIGCONT)

    def _suspect(self, pid: int, deed: Deed) -> None:
        """Stop a worker, and leave it to the loader to end it.

        One that it cannot end wakes up about then, or later.
        """
        if len(self._suspected) >= self._orders.most_suspects or not self._may_die(pid):
            return
        if deed.unkillable and not self._immortals.add(pid):
            return
        self._note_death(pid)
        self._suspected.add(pid)
        self._tally.timed_out += 1
        if deed.unkillable:
            woken_s = (
                time.monotonic() + SUSPECT_S[self._orders.method] + KILL_S + 3 * deed.pause_s - 0.3
            )
            self._later.append((woken_s, pid, partial(self._immortals.wake, pid)))
            self._later.append((woken_s + deed.pause_s / 2, pid, partial(self._immortals.end, pid)))
        self._send(pid, signal.SIGSTOP)

    def _do_what_is_due(self, now_s: float) -> None:
        for deed in sorted((deed for deed in self._later if deed[0] <= now_s), key=itemgetter(0)):
            self._later.remove(deed)
            deed[2]()

    def _do_to_forkserver(self, deed: Deed) -> None:
        forkserver = getattr(self._pool._launcher, "_forkserver", None)
        if forkserver is None:
            return
        if "stop" in deed.name:
            self._pause(forkserver.pid, deed, None)
            return
        if any(pid not in self._working for _, pid, _ in self._later):
            return  # a stopped process dies of SIGHUP when its parent does: one that starts would die too early
        restarts = self._pool.restarts
        if (
            restarts > self._forkserver_after
            and len(self._pool._roster.workers) == self._orders.workers
        ):
            self._forkserver_after = restarts
            self._send(forkserver.pid, signal.SIGKILL)
            self._tally.forkservers += 1

    @staticmethod
    def _send(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
