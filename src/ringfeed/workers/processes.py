"""Worker processes: what they are told, and the thread that reaps and replaces the dead."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ringfeed._failure import Death
from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.monitor.stacks import Stacks
from ringfeed.system._system import Descriptor
from ringfeed.system.channel import readable
from ringfeed.system.interpreter import family
from ringfeed.system.machine import check_processes, start_thread
from ringfeed.transport.shared_dataset import SharedDataset, pack, to_shared_memory
from ringfeed.workers.pool import STOP_S, Pool, PoolConfig
from ringfeed.workers.process import Launcher, Spawner, WorkerProcess, terminate_all
from ringfeed.workers.roster import Roster

# What SIGKILL may take, which is milliseconds; a worker that outlives it is quarantined.
KILL_S = 5.0


class Processes(Pool):
    """Worker processes.

    A thread reaps the dead and starts others in their place.
    """

    def __init__(self, config: PoolConfig) -> None:
        """Prepare ``config.workers`` processes."""
        super().__init__(config)
        self._home = os.getpid()
        self._roster = Roster(config.ring, self._observer, self._policy, config.ring.ids)
        self._stacks = Stacks()
        self._stopping = False
        self._lock = threading.RLock()  # roster, versions and starts change together
        check_processes(
            config.initial_workers, 0 if config.launcher is None else config.launcher.descriptors
        )
        self._launcher = config.launcher or _launcher(config)
        self._sent = config.sent  # the newest version of the dataset, as far as it is sent
        self._forked: bytes | None = None  # tells whether the dataset is still what was forked
        self._bars: list[tuple[int, int]] = []  # epochs and elements of iterables, given up
        self._starts = [0] * config.ring.ids  # by id
        self._wake_fd: Descriptor | None = Descriptor(
            os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK
        )
        self._watcher = threading.Thread(target=self._watch, name="ringfeed-watcher", daemon=True)

    # ---- starting ----

    def start(self, dataset: Any) -> None:
        """Start the processes first.

        Their interpreters come up while the dataset is packed.
        """
        try:
            with self._lock:
                self._launcher.begin(self._policy.wanted)
                self._hold(dataset)
                self._fill_up()
            start_thread(self._watcher)
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> WorkerProcess:
        return self._launcher.start()

    def _configure(self, number: int, worker: WorkerProcess) -> None:
        """Send a worker its first message."""
        states = self._config.states
        taken = {other.stream for other in self._roster.staying}
        worker.stream = next(
            stream for stream in range(1, self._config.workers + 1) if stream not in taken
        )
        kept = () if states is None or states.memfd is None else (states.memfd.fileno(),)
        told, tracker = family()
        self._send_first(
            number,
            worker,
            None if self._launcher.holds_dataset else self._sent,
            (*kept, *tracker),
            family=told,
            states_size=0 if states is None else states.size,
        )
        self._starts[number] += 1

    def _send_first(
        self,
        number: int,
        worker: WorkerProcess,
        sent: SharedDataset | None,
        fds: tuple[int, ...],
        **more: Any,
    ) -> None:
        """Send a process the segment, the source, and the dataset where it is ``sent``."""
        config, segment = self._config, self._config.segment
        self._roster.begin(number, worker)
        config.ring.note_pid(number, worker.pid)
        message = SimpleNamespace(
            source=config.source,
            offsets=config.offsets,
            sizes=segment.sizes,
            number=number,
            stream=worker.stream,
            workers=config.workers,
            starts=self._starts[number],  # how often a worker of this number was started before
            version=self.version,
            manifest=None if sent is None else sent.manifest(),
            bars=self._bars,
            **more,
        )
        shared = segment.control_fd, segment.slots_fd, self._stacks.fd_of(number)
        worker.send(message, (*shared, *(() if sent is None else sent.fds), *fds))

    # ---- versions of the dataset ----

    def _hold(self, dataset: Any) -> None:
        """Have the workers that are started from now on hold the dataset, or be sent it."""
        if self._launcher.sends_dataset and (changed := self.change(dataset)) is not None:
            previous, self._sent = self._sent, changed
            if previous is not None:
                previous.close()
        elif not self._launcher.sends_dataset and self._config.source.changes:
            self._forked = _fingerprint(dataset)
        self._launcher.hold(dataset, self._sent)

    def change(self, dataset: Any) -> SharedDataset | None:
        """Return what has changed in the dataset, to be sent with `update`; None where nothing has.

        Of what was forked nothing was sent, so all of it is.
        """
        is_forked = self._sent is None and not self._launcher.sends_dataset
        if is_forked and self._is_as_forked(dataset):
            return None
        return to_shared_memory(pack(dataset), self._sent)

    def _is_as_forked(self, dataset: Any) -> bool:
        """Whether a dataset is as it was; one that cannot be compared is, unless it has hooks."""
        if self._forked is None:
            return not self._config.source.has_hooks
        return self._forked == _fingerprint(dataset)

    def update(self, changed: SharedDataset) -> None:
        """Send every worker what has changed.

        It arrives before the first batch that asks for it.
        """
        with self._lock:
            workers, previous = [*self._processes().values()], self._sent
            try:
                self._sent, self.version = changed, self.version + 1
                self._launcher.holds_dataset = False  # what it has is out of date
                message = {"version": self.version, "manifest": changed.manifest()}
                for worker in workers:
                    worker.send(message, changed.fds)
            except BaseException:  # Ctrl-C: some were not told
                self._roster.kill(workers, 0)
                raise
            finally:
                if previous is not None:
                    previous.close()

    def resize(self, workers: int) -> None:
        """Set the number of workers; those that leave finish their ticket first."""
        with self._lock:
            self._roster.note_at_work()
            self._policy.resize(workers)
            for number in self._roster.let_leave(self._policy.wanted):
                # Again, if Ctrl-C came in between.
                self._config.ring.retire(number)
            try:
                self._fill_up()
            finally:
                self._wake()  # there are others to watch

    # ---- watching ----

    def _watch(self) -> None:
        """Restart dead workers until stop or failure.

        Then terminate all of them, even if `stop()` was interrupted.
        """
        while not self._stopping:
            try:
                self._look()
            except BaseException as error:  # noqa: BLE001 - the consumer must hear of it
                self._fail(error)
        self._close()

    def _look(self) -> None:
        """Wait for a death, for others to watch, or for the end."""
        with self._lock:
            watched = {} if self.failure is not None else self._processes()
            numbers = {worker.pidfd: number for number, worker in watched.items()}
        wake_fd = self._wake_fd
        assert wake_fd is not None
        found = readable((wake_fd, *numbers))
        with suppress(BlockingIOError):
            os.eventfd_read(wake_fd.fileno())
        if not self._stopping:
            self._replace([numbers[fd] for fd in found if fd in numbers])

    def _replace(self, numbers: list[int]) -> None:
        """Take back what dead workers had claimed, and start others in their place."""
        with self._lock:
            # First of all: their rows run again at once, and a quarantined slot is freed before
            # anything slow.
            reap, processes = self._config.ring.reap, self._processes()
            reaped = [
                (number, reap(number, blame=not processes[number].is_quarantined))
                for number in numbers
            ]
            self._roster.note_at_work()
            for number, found in reaped:
                self._on_exit(number, found)
            if numbers:
                self._replenish()

    def _on_exit(self, number: int, reaped: tuple[Any, ...]) -> None:
        """Forget a dead worker and count its death.

        Raise WorkerError where it must not be replaced.
        """
        _, index, _, epoch, batch, row, given_up, stage = reaped
        if given_up:
            self._bars = self._config.source.barred(self._bars, epoch, row, index)
        self._roster.remove(number, (batch, row) if given_up else None, stage)

    def _replenish(self) -> None:
        """Start workers in the place of those that are gone.

        Where that fails, go on without the optional ones.
        """
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
                worker = self._roster.all[number] = self._launch()
                try:
                    self._configure(number, worker)
                except BaseException:  # Ctrl-C: it would wait for its first message for ever
                    worker.is_leaving = True  # its end counts as no death
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
        """Describe each worker; after them, those that SIGKILL could not end."""
        with self._lock:
            workers = sorted(
                self._processes().items(), key=lambda one: (one[1].is_quarantined, one[0])
            )
            return [self._describe_process(number, worker) for number, worker in workers]

    def _describe_process(self, number: int, worker: WorkerProcess) -> str:
        if worker.is_quarantined:
            return self._describe(number, f"pid {worker.pid}, which SIGKILL could not end")
        # One that starts would die of the signal.
        is_starting = self._roster.is_starting(worker)
        stack = "" if is_starting else self._stacks.read(number, worker)
        return self._describe(number, f"pid {worker.pid}", stack)

    def kill_stuck(self, timeout_ns: int) -> int:
        """End the workers that are stuck for so long, and run their rows again.

        Their rows run again also where SIGKILL does not end a worker.
        """
        with self._lock:
            stuck, pause_ns = self._roster.stuck(timeout_ns)
            if self._roster.most_unkillable_in(stuck) >= self._config.max_attempts:
                return 0  # a sample whose workers cannot be ended, one after the other
            if alive := self._roster.kill(stuck, KILL_S):
                self._quarantine(alive)
            return pause_ns

    def _quarantine(self, alive: list[WorkerProcess]) -> None:
        """Have the rows of these workers run again elsewhere.

        The workers may go on to write when they wake up.
        """
        self._config.ring.requeue()
        self._roster.quarantine(alive)
        try:
            self._policy.restarts += len(alive)
            self._replenish()
        except Exception as error:  # noqa: BLE001 - as in the watcher; Ctrl-C is the caller's
            self._fail(error)
        finally:
            self._wake()

    def _processes(self) -> dict[int, WorkerProcess]:
        """Return all that may be alive, by their ids; without the lock, too: a copy is one step."""
        return self._roster.all.copy()

    def pids(self) -> list[int]:
        """Return the worker processes, those that SIGKILL could not end among them."""
        # Without the lock, which is held while a worker is ended.
        return [worker.pid for worker in self._processes().values()]

    def forkservers(self) -> dict[int, str]:
        """Return the processes that fork workers, and what they are called."""
        return self._launcher.forkservers()

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        return () if self._sent is None else self._sent.fds

    def _wake(self) -> None:
        """Have the watcher look again."""
        wake_fd = self._wake_fd  # it stays open for as long as this refers to it
        if wake_fd is not None:
            os.eventfd_write(wake_fd.fileno(), 1)

    # ---- stopping ----

    def request_stop(self) -> None:
        """Have the workers leave and the watcher close everything.

        From any thread, more than once.
        """
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
        if self._watcher is not threading.current_thread():
            # As when the garbage collector ends a loader in there.
            with suppress(RuntimeError):  # it does not run yet: it will find everything closed
                self._watcher.join()
            self._close()

    def _close(self) -> None:
        """Close everything; what an interrupted call has left is done by the next."""
        with self._lock:  # the watcher and `stop` may both come here
            terminate_all([*self._processes().values()], STOP_S)
            self._roster.all.clear()
            self._launcher.close()
            self._wake_fd = None
            self._stacks.close()
            if self._sent is not None:
                self._sent.close()


def _fingerprint(dataset: Any) -> bytes | None:
    from ringfeed.transport.pickler import fingerprint  # noqa: PLC0415 - only where it is needed

    return fingerprint(dataset)


def _launcher(config: PoolConfig) -> Launcher:
    if config.start_method == "spawn":
        return Spawner()
    if config.start_method == "fork":
        from ringfeed.workers.fork import Fork  # noqa: PLC0415 - only where it is needed

        return Fork(config.timeout_s)
    from ringfeed.workers.launchers import Forkserver  # noqa: PLC0415 - only where it is needed

    return Forkserver(config.timeout_s, config.source.packages)
