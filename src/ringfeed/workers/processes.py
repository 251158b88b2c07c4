"""Worker processes: watched by a thread, which reaps the dead and starts others in their place."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.ring._ring import Descriptor, now_ns
from ringfeed.ring._snapshot import Observer
from ringfeed.ring.machine import check_processes, start_thread
from ringfeed.workers.fork import Fork
from ringfeed.workers.forkserver import DESCRIPTORS, Forkserver
from ringfeed.workers.handshake import Handshake
from ringfeed.workers.pool import STOP_S, Pool
from ringfeed.workers.process import terminate_all
from ringfeed.workers.restart_policy import RestartPolicy
from ringfeed.workers.spawn import Spawner
from ringfeed.workers.stacks import Stacks
from ringfeed.workers.watchdog import Watchdog

if TYPE_CHECKING:
    from ringfeed.workers.pool import PoolConfig
    from ringfeed.workers.process import Launcher, WorkerProcess

KILL_S = 5.0  # what SIGKILL may take, which is milliseconds; a worker that outlives it is quarantined


class Processes(Pool):
    """Worker processes, watched by a thread that reaps the dead and starts others in their place."""

    def __init__(self, config: PoolConfig) -> None:
        """Prepare ``config.workers`` processes."""
        super().__init__(config)
        self._home = os.getpid()
        self._policy = RestartPolicy(config.initial_workers, config.max_restarts)
        self._observer = Observer(config.ring)
        self._watchdog = Watchdog(config.ring, self._observer)
        self._workers: dict[int, WorkerProcess] = {}
        self._leaving: set[int] = set()  # of them: asked to leave, and not replaced
        self._unkillable_at: Counter[int] = Counter()  # by sample: workers that SIGKILL could not end in it
        self._fenced: dict[int, WorkerProcess] = {}  # sent SIGKILL, not dead, and replaced: their ids are theirs still
        self._stacks = Stacks()
        self._deaths: dict[tuple[int, int], str] = {}
        self._stopping = False
        self._lock = threading.RLock()  # workers, versions and starts change together
        check_processes(config.initial_workers, 0 if config.launcher is None else DESCRIPTORS)
        self._launcher = config.launcher or _launcher(config)
        self._handshake = Handshake(config, self._launcher)
        self._wake_fd: Descriptor | None = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watcher = threading.Thread(target=self._watch, name="ringfeed-watcher", daemon=True)

    # ---- starting ----

    def start(self, dataset: Any) -> None:
        """Start the processes first, so that their interpreters come up while the dataset is packed."""
        self._config.ring.set_worker_count(self._policy.wanted)
        try:
            with self._lock:
                self._launcher.begin(self._policy.wanted)
                self._handshake.send_first(dataset)
                for number in range(self._policy.wanted):
                    self._workers[number] = self._launch()
                for number in self._workers:
                    self._configure(number)
            start_thread(self._watcher)
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> WorkerProcess:
        return self._launcher.start()

    def _configure(self, number: int) -> None:
        """Send a worker its first message."""
        worker = self._workers[number]
        self._watchdog.begin(number)
        self._config.ring.note_pid(number, worker.pid)
        others = self._workers.keys() - self._leaving - {number}
        self._handshake.greet(number, worker, others, self._stacks.fd_of(number))

    def update(self, dataset: Any) -> int:
        """Send every worker what has changed in the dataset; it arrives before the first batch that asks for it."""
        shipment = self._handshake.change(dataset)
        if shipment is not None:
            with self._lock:
                try:
                    self._handshake.send(shipment, self._workers.values())
                except BaseException:  # Ctrl-C: some were not told
                    self._watchdog.timed_out.update(self._workers)
                    for worker in self._workers.values():
                        worker.kill()
                    raise
        return self._handshake.version

    def resize(self, workers: int) -> None:
        """Set the number of workers; those that leave finish their ticket first."""
        with self._lock:
            self._note_at_work()
            self._policy.resize(workers)
            staying = sorted(self._workers.keys() - self._leaving)
            self._leaving.update(staying[self._policy.wanted :])
            for number in self._leaving & self._workers.keys():  # again, if Ctrl-C came in between
                self._config.ring.retire(number)
            try:
                self._fill_up()
            finally:
                self._wake()  # there are others to watch

    # ---- watching ----

    def _watch(self) -> None:
        """Restart dead workers until stop or failure; then terminate all of them, even if `stop()` was interrupted."""
        while not self._stopping:
            try:
                self._look()
            except BaseException as error:  # noqa: BLE001 - the consumer must hear of it
                self._fail(error)
        self._close()

    def _look(self) -> None:
        """Wait for a death, for others to watch, or for the end."""
        with self._lock:
            watched = () if self.failure is not None else (*self._workers.items(), *self._fenced.items())
            pidfds = {worker.pidfd: number for number, worker in watched}
        wake_fd = self._wake_fd
        assert wake_fd is not None
        poller = select.poll()
        for fd in (wake_fd.fileno(), *pidfds):
            poller.register(fd, select.POLLIN)
        found = poller.poll()
        with suppress(BlockingIOError):
            os.eventfd_read(wake_fd.fileno())
        if not self._stopping:
            self._replace([pidfds[fd] for fd, _ in found if fd in pidfds])

    def _replace(self, numbers: list[int]) -> None:
        """Take back what dead workers had claimed, and start others in their place."""
        with self._lock:
            # First of all: their rows run again at once, and a quarantined slot is freed before anything slow.
            reaped = [(number, self._config.ring.reap(number, blame=number in self._workers)) for number in numbers]
            self._note_at_work()
            for number, found in reaped:
                if number in self._fenced:
                    self._fenced.pop(number).exit_reason()
                    self._watchdog.timed_out.discard(number)
                else:
                    self._on_exit(number, found)
            if numbers:
                self._replenish()

    def _on_exit(self, number: int, reaped: tuple[Any, ...]) -> None:
        """Count a death and forget its worker; raise WorkerError where it must not be replaced."""
        _, index, _, epoch, batch, row, given_up = reaped
        worker = self._workers.pop(number)
        startup_error = worker.startup_error()
        exit_reason = worker.exit_reason()
        if given_up:
            self._deaths[batch, row] = exit_reason
            self._handshake.bars = self._config.source.barred(self._handshake.bars, epoch, index)
        if number in self._leaving:
            self._leaving.discard(number)
            self._watchdog.forget(number)
        elif startup_error is None:
            self._count_death(number, exit_reason)
        elif self._watchdog.is_fresh(number) and self._policy.scale_down(str(startup_error)):
            self._watchdog.forget(number)
        else:
            raise startup_error

    def _count_death(self, number: int, exit_reason: str) -> None:
        asked = number in self._watchdog.timed_out
        self._watchdog.timed_out.discard(number)
        starting, fresh = self._watchdog.is_starting(number), self._watchdog.is_fresh(number)
        progress = self._watchdog.progress(self._workers)
        self._policy.count_death(exit_reason, starting=starting, fresh=fresh, asked=asked, progress=progress)

    def _note_at_work(self) -> None:
        staying = self._workers.keys() - self._leaving
        self._policy.note_at_work(sum(not self._watchdog.is_fresh(number) for number in staying))

    def _replenish(self) -> None:
        """Start workers in the place of those that are gone; where that fails, go on without the optional ones."""
        while True:
            try:
                self._fill_up()
            except WorkerError as error:
                if not self._policy.scale_down(str(error)):
                    raise
            else:
                return

    def _fill_up(self) -> None:
        """Start as many workers as are missing, as far as there are ids: fenced ones keep theirs."""
        wanted = self._policy.wanted
        self._config.ring.set_worker_count(wanted)
        ids = (number for number in range(self._config.ring.ids) if number not in {**self._workers, **self._fenced})
        for number in [*ids][: max(0, wanted - len(self._workers.keys() - self._leaving))]:
            if not self._stopping:
                worker = self._workers[number] = self._launch()
                try:
                    self._configure(number)
                except BaseException:  # Ctrl-C: it would wait for its first message for ever
                    self._leaving.add(number)  # its end counts as no death
                    worker.kill()
                    raise

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, RingfeedError):
            cause = error
            error = WorkerError(f"a worker could not be replaced: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        self.failure = self.failure or error
        self._config.ring.alarm()

    # ---- answers ----

    @property
    def restarts(self) -> int:
        """How many workers were started in the place of dead ones."""
        return self._policy.restarts

    @property
    def scaled_down(self) -> tuple[int, str] | None:
        """The highest number of workers that could be reached, and why; None while every request was met."""
        return self._policy.scaled_down

    @property
    def unkillable(self) -> int:
        """How many workers SIGKILL could not end."""
        return len(self._fenced)

    def death_of(self, batch: int, row: int) -> str:
        """Say how the last worker died that tried this row."""
        with self._lock:
            return self._deaths.pop((batch, row), "ended")

    def stalled(self) -> list[str]:
        """Describe each worker, and those that SIGKILL could not end."""
        with self._lock:
            lines = []
            for number, worker in sorted(self._workers.items()):
                starting = self._watchdog.is_starting(number)  # it would die of the signal
                stack = "" if starting else self._stacks.read(number, worker)
                lines.append(self._describe(number, f"pid {worker.pid}", stack))
            for number, worker in sorted(self._fenced.items()):
                lines.append(self._describe(number, f"pid {worker.pid}, which SIGKILL could not end"))
            return lines

    def _describe(self, number: int, runs_as: str, stack: str = "") -> str:
        return self._observer.worker(number).describe(number, runs_as, now_ns(), self._config.source.describe, stack)

    def kill_stuck(self, patience_ns: int) -> int:
        """End the workers that are stuck for so long; fence those that SIGKILL does not end. Their rows run again."""
        with self._lock:
            stuck, pause_ns = self._watchdog.stuck(self._handshake.lanes_of(self._workers), patience_ns)
            inside = self._watchdog.inside(stuck)
            if any(self._unkillable_at[index] >= self._config.max_attempts for index in inside.values()):
                return 0  # a sample whose workers cannot be ended, one after the other
            alive = self._kill(stuck)
            if alive:
                self._unkillable_at.update(inside[number] for number in alive if number in inside)
                self._fence(alive)
            return pause_ns

    def _kill(self, stuck: list[int]) -> list[int]:
        """End these workers; returns those that SIGKILL did not end."""
        self._watchdog.mark_timed_out(stuck)
        for number in stuck:
            self._workers[number].kill()
        deadline = time.monotonic() + KILL_S
        return [number for number in stuck if not self._workers[number].is_dead(max(0.0, deadline - time.monotonic()))]

    def _fence(self, numbers: list[int]) -> None:
        """Have what these workers are at run again elsewhere: they may go on to write when they wake up."""
        self._config.ring.requeue()
        for number in numbers:
            self._fenced[number] = self._workers.pop(number)
            self._leaving.discard(number)
        try:
            self._policy.count_fenced(len(numbers))
            self._replenish()
        except Exception as error:  # noqa: BLE001 - as in the watcher; Ctrl-C is the caller's
            self._fail(error)
        finally:
            self._wake()

    def pids(self) -> list[int]:
        """Return the worker processes, those that SIGKILL could not end among them."""
        # Without the lock, which is held while a worker is ended; list() of a dict's view is one step.
        return [worker.pid for worker in (*list(self._workers.values()), *list(self._fenced.values()))]

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        return self._handshake.descriptors()

    def _wake(self) -> None:
        """Have the watcher look again."""
        wake_fd = self._wake_fd  # it stays open for as long as this refers to it
        if wake_fd is not None:
            os.eventfd_write(wake_fd.fileno(), 1)

    # ---- stopping ----

    def dismiss(self) -> None:
        """Have the workers leave and the watcher close everything; from any thread, more than once."""
        if self._home != os.getpid():
            return
        self._stopping = True
        self._wake()
        self._config.ring.stop()
        self._launcher.abandon()

    def stop(self) -> None:
        """Let idle workers leave, end the others by SIGKILL, and close everything."""
        self.dismiss()
        if self._home != os.getpid():
            return
        if self._watcher is not threading.current_thread():  # as when the garbage collector ends a loader in there
            with suppress(RuntimeError):  # it does not run yet: it will find everything closed
                self._watcher.join()
            self._close()

    def _close(self) -> None:
        """Close everything; what an interrupted call has left is done by the next."""
        with self._lock:  # the watcher and `stop` may both come here
            self._bury_all()
            self._wake_fd = None
            self._stacks.close()
            self._handshake.close()

    def _bury_all(self) -> None:
        terminate_all([*self._workers.values(), *self._fenced.values()], STOP_S)
        self._workers.clear()
        self._fenced.clear()
        self._launcher.close()


def _launcher(config: PoolConfig) -> Launcher:
    if config.start_method == "spawn":
        return Spawner()
    if config.start_method == "fork":
        return Fork(config.timeout_s)
    return Forkserver(config.timeout_s, config.source.packages)
