"""Worker processes: watched by a thread, which reaps the dead and starts others in their place."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.monitor.faults import Death
from ringfeed.monitor.stacks import Stacks
from ringfeed.system._system import Descriptor
from ringfeed.system.machine import check_processes, start_thread
from ringfeed.workers.handshake import Handshake
from ringfeed.workers.pool import STOP_S, Pool
from ringfeed.workers.process import Spawner, terminate_all
from ringfeed.workers.roster import Roster, Watchdog

if TYPE_CHECKING:
    from ringfeed.transport.shared_dataset import SharedDataset
    from ringfeed.workers.pool import PoolConfig
    from ringfeed.workers.process import Launcher, WorkerProcess

KILL_S = (
    5.0  # what SIGKILL may take, which is milliseconds; a worker that outlives it is quarantined
)


class Processes(Pool):
    """Worker processes, watched by a thread that reaps the dead and starts others in their place."""

    def __init__(self, config: PoolConfig) -> None:
        """Prepare ``config.workers`` processes."""
        super().__init__(config)
        self._home = os.getpid()
        self._watchdog = Watchdog(config.ring, self._observer)
        self._roster = Roster(config.ring.ids, self._policy, self._watchdog)
        self._stacks = Stacks()
        self._stopping = False
        self._lock = threading.RLock()  # roster, versions and starts change together
        check_processes(
            config.initial_workers, 0 if config.launcher is None else config.launcher.descriptors
        )
        self._launcher = config.launcher or _launcher(config)
        self._handshake = Handshake(config, self._launcher)
        self._wake_fd: Descriptor | None = Descriptor(
            os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK
        )
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
                    self._roster.workers[number] = self._launch()
                for number in self._roster.workers:
                    self._configure(number)
            start_thread(self._watcher)
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> WorkerProcess:
        return self._launcher.start()

    def _configure(self, number: int) -> None:
        """Send a worker its first message."""
        worker = self._roster.workers[number]
        self._watchdog.begin(number)
        self._config.ring.note_pid(number, worker.pid)
        self._handshake.greet(
            number, worker, self._roster.staying - {number}, self._stacks.fd_of(number)
        )

    def change(self, dataset: Any) -> SharedDataset | None:
        """Return what has changed in the dataset since it was sent."""
        return self._handshake.change(dataset)

    def update(self, changed: SharedDataset) -> None:
        """Send every worker what has changed; it arrives before the first batch that asks for it."""
        with self._lock:
            workers = self._roster.workers
            try:
                self._handshake.send(changed, workers.values())
            except BaseException:  # Ctrl-C: some were not told
                self._watchdog.timed_out.update(workers)
                for worker in workers.values():
                    worker.kill()
                raise

    @property
    def version(self) -> int:
        """The version of the dataset that was sent last."""
        return self._handshake.version

    def resize(self, workers: int) -> None:
        """Set the number of workers; those that leave finish their ticket first."""
        with self._lock:
            self._roster.note_at_work()
            self._policy.resize(workers)
            for number in self._roster.let_leave(
                self._policy.wanted
            ):  # again, if Ctrl-C came in between
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
            pidfds = {} if self.failure is not None else self._roster.pidfds()
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
            # First of all: their rows run again at once, and a quarantined slot is freed before
            # anything slow.
            ring, at_work = self._config.ring, self._roster.workers
            reaped = [(number, ring.reap(number, blame=number in at_work)) for number in numbers]
            self._roster.note_at_work()
            for number, found in reaped:
                self._on_exit(number, found)
            if numbers:
                self._replenish()

    def _on_exit(self, number: int, reaped: tuple[Any, ...]) -> None:
        """Forget a dead worker and count its death; raise WorkerError where it must not be replaced."""
        _, index, _, epoch, batch, row, given_up, stage = reaped
        if given_up:
            self._handshake.bars = self._config.source.barred(
                self._handshake.bars, epoch, row, index
            )
        self._roster.remove(number, (batch, row) if given_up else None, stage)

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
        """Start as many workers as are missing, as far as there are ids."""
        self._config.ring.set_worker_count(self._policy.wanted)
        for number in self._roster.missing(self._policy.wanted):
            if not self._stopping:
                worker = self._roster.workers[number] = self._launch()
                try:
                    self._configure(number)
                except BaseException:  # Ctrl-C: it would wait for its first message for ever
                    self._roster.leaving.add(number)  # its end counts as no death
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

    def death_of(self, batch: int, row: int) -> Death:
        """Say how the last worker died that tried this row."""
        with self._lock:
            return self._roster.deaths.pop((batch, row), Death())

    def stalled(self) -> list[str]:
        """Describe each worker, and those that SIGKILL could not end."""
        with self._lock:
            lines = []
            for number, worker in sorted(self._roster.workers.items()):
                starting = self._watchdog.is_starting(number)  # it would die of the signal
                stack = "" if starting else self._stacks.read(number, worker)
                lines.append(self._describe(number, f"pid {worker.pid}", stack))
            for number, worker in sorted(self._roster.quarantined.items()):
                lines.append(
                    self._describe(number, f"pid {worker.pid}, which SIGKILL could not end")
                )
            return lines

    def kill_stuck(self, timeout_ns: int) -> int:
        """End the workers that are stuck for so long, and run their rows again, also where SIGKILL does not end one."""
        with self._lock:
            streams = {
                number: self._handshake.streams.get(number, 0) for number in self._roster.readers
            }
            stuck, pause_ns = self._watchdog.stuck(streams, timeout_ns)
            inside = self._watchdog.inside(stuck)
            if self._roster.most_unkillable_in(inside.values()) >= self._config.max_attempts:
                return 0  # a sample whose workers cannot be ended, one after the other
            self._watchdog.mark_timed_out(stuck)
            alive = self._roster.kill(stuck, KILL_S)
            if alive:
                self._quarantine({number: inside.get(number) for number in alive})
            return pause_ns

    def _quarantine(self, inside: dict[int, int | None]) -> None:
        """Have what these workers are at run again elsewhere: they may go on to write when they wake up."""
        self._config.ring.requeue()
        self._roster.quarantine(inside)
        try:
            self._policy.restarts += len(inside)
            self._replenish()
        except Exception as error:  # noqa: BLE001 - as in the watcher; Ctrl-C is the caller's
            self._fail(error)
        finally:
            self._wake()

    def pids(self) -> list[int]:
        """Return the worker processes, those that SIGKILL could not end among them."""
        # Without the lock, which is held while a worker is ended.
        return [worker.pid for worker in self._roster.everyone()]

    def forkservers(self) -> dict[int, str]:
        """Return the processes that fork workers, and what they are called."""
        return self._launcher.forkservers()

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        return self._handshake.descriptors()

    def _wake(self) -> None:
        """Have the watcher look again."""
        wake_fd = self._wake_fd  # it stays open for as long as this refers to it
        if wake_fd is not None:
            os.eventfd_write(wake_fd.fileno(), 1)

    # ---- stopping ----

    def request_stop(self) -> None:
        """Have the workers leave and the watcher close everything; from any thread, more than once."""
        if self._home != os.getpid():
            return
        self._stopping = True
        self._wake()
        self._config.ring.stop()
        self._launcher.request_stop()

    def stop(self) -> None:
        """Let idle workers leave, end the others by SIGKILL, and close everything."""
        self.request_stop()
        if self._home != os.getpid():
            return
        if (
            self._watcher is not threading.current_thread()
        ):  # as when the garbage collector ends a loader in there
            with suppress(RuntimeError):  # it does not run yet: it will find everything closed
                self._watcher.join()
            self._close()

    def _close(self) -> None:
        """Close everything; what an interrupted call has left is done by the next."""
        with self._lock:  # the watcher and `stop` may both come here
            terminate_all(self._roster.everyone(), STOP_S)
            self._roster.clear()
            self._launcher.close()
            self._wake_fd = None
            self._stacks.close()
            self._handshake.close()


def _launcher(config: PoolConfig) -> Launcher:
    if config.start_method == "spawn":
        return Spawner()
    if config.start_method == "fork":
        from ringfeed.workers.fork import Fork  # noqa: PLC0415 - only where it is needed

        return Fork(config.timeout_s)
    from ringfeed.workers.launchers import Forkserver  # noqa: PLC0415 - only where it is needed

    return Forkserver(config.timeout_s, config.source.packages)
