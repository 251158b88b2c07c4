"""What fills the slots: the consumer itself, its threads, or worker processes (see `processes`)."""

from __future__ import annotations

import sys
import threading
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.data.reader import Port
from ringfeed.errors import WorkerError
from ringfeed.ring import _ring
from ringfeed.ring._snapshot import Observer
from ringfeed.ring.machine import start_thread

if TYPE_CHECKING:
    from ringfeed.data.base import Source
    from ringfeed.data.reader import Reader
    from ringfeed.errors import RingfeedError
    from ringfeed.ring.segment import Segment
    from ringfeed.workers.process import Launcher

STOP_S = 1.0


class Death(NamedTuple):
    """How the last worker ended that tried a row, and in which function of the user's that has all rows of a batch."""

    reason: str = "ended"
    stage: str = ""


@dataclass(frozen=True)
class PoolConfig:
    """What every pool is made of."""

    ring: _ring.Ring
    segment: Segment
    source: Source
    offsets: tuple[int, ...]  # of the fields of a slot
    workers: int
    start_method: str = "spawn"
    max_restarts: int | None = None
    max_attempts: int = 3
    initial_workers: int = 0  # of the workers; the others come when they are wanted
    timeout_s: float | None = None
    launcher: Launcher | None = None  # what has begun to start workers already
    states: Any = None  # what is kept of an iterable: see `Source.keep`
    remote: Any = None  # a `ringfeed.Ray`: the last of the workers are bridges to it
    is_auto: bool = False  # whether the number of workers is found out


class Pool(ABC):
    """What the loader asks of its workers; where a pool does not say otherwise, it has none that end or wait."""

    def __init__(self, config: PoolConfig) -> None:
        """Prepare to fill; nothing runs yet."""
        self.failure: RingfeedError | None = None  # what has ended the pool
        self._config = config
        self._observer = Observer(config.ring)

    @property
    def restarts(self) -> int:
        """How many workers were started in the place of dead ones."""
        return 0

    @property
    def scaled_down(self) -> tuple[int, str] | None:
        """How many workers there may be and why, once more could not be had: `resize` stops there."""
        return None

    @abstractmethod
    def start(self, dataset: Any) -> None:
        """Begin to work."""

    def update(self, dataset: Any) -> int:  # noqa: ARG002 - within this process the dataset is the same object
        """Send the workers what has changed; returns the version that batches must name from now on, at first 0."""
        return 0

    def resize(self, workers: int) -> None:  # noqa: B027 - the consumer alone may fill
        """Set the number of workers; those that leave finish their ticket first."""

    def note_shortage(self) -> None:  # noqa: B027 - most have no others
        """Take note that training waits, and that more workers do not help."""

    def step(self) -> bool:
        """Work in the calling thread; False when there was nothing to do, or others do it."""
        return False

    def death_of(self, batch: int, row: int) -> Death:  # noqa: ARG002 - only processes die
        """Say how the last worker died that tried this row."""
        return Death()

    def stalled(self) -> list[str]:
        """Describe each worker, with its Python stack."""
        return []

    def _describe(self, number: int, runs_as: str, stack: str = "") -> str:
        worker, name = self._observer.worker(number), self._config.source.describe
        return worker.describe(number, runs_as, _ring.now_ns(), name, stack)

    def kill_stuck(self, patience_ns: int) -> int:  # noqa: ARG002 - only processes can be ended
        """End the workers that are stuck for so long; returns when to look again, in ns, or 0: none can be ended."""
        return 0

    def pids(self) -> list[int]:
        """Return the worker processes, if there are any."""
        return []

    def said(self) -> list[dict[str, Any]]:
        """Return what each bridge to a cluster says of itself, if there are any."""
        return []

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        return ()

    def dismiss(self) -> None:
        """Have all workers leave; at once, from any thread, more than once."""
        self._config.ring.stop()

    def stop(self) -> None:
        """End all workers; nothing in a forked child of the consumer, since they are its parent's."""
        self._config.ring.stop()


class InProcess(Pool):
    """The consumer fills the batch it is about to take; the same code path, without other processes."""

    def __init__(self, config: PoolConfig) -> None:
        """Fill on demand."""
        super().__init__(config)
        self._end = _ring.WorkerEnd(config.ring, 0)
        self._reader: Reader | None = None

    def start(self, dataset: Any) -> None:
        """Keep the dataset."""
        config = self._config
        port = Port(self._end, config.ring, config.offsets, is_consumer=True, states=config.states)
        self._reader = config.source.reader(dataset, port)

    def note_shortage(self) -> None:
        """Take note that training waits, and that more workers do not help."""

    def step(self) -> bool:
        """Fill one ticket, if there is one."""
        try:
            if self._end.claim(0) != _ring.TAKEABLE:
                return False
            assert self._reader is not None
            filled = self._reader.fill()
            self._end.publish(cancelled=not filled)
        except BaseException:  # Ctrl-C, perhaps right after the claim: no worker is to blame, and the ticket runs again
            self._config.ring.reap(0, blame=False)
            raise
        return True

    def stop(self) -> None:
        """End what reads for the consumer."""
        super().stop()
        if self._reader is not None:
            self._reader.close()


class Threads(Pool):
    """Worker threads of this process: for datasets that release the GIL, or cannot be pickled."""

    def __init__(self, config: PoolConfig) -> None:
        """Prepare ``config.workers`` threads."""
        super().__init__(config)
        self._dataset: Any = None
        self._threads: dict[int, threading.Thread] = {}
        self._leaving: set[int] = set()  # of them

    def start(self, dataset: Any) -> None:
        """Start the threads; they never keep the interpreter alive."""
        self._dataset = dataset
        self.resize(self._config.initial_workers)

    def resize(self, workers: int) -> None:
        """Have more threads or fewer; those that are sent away end what they are at."""
        ring = self._config.ring
        there = threading.enumerate()  # also those that have not begun to run
        for number in [number for number in self._leaving if self._threads[number] not in there]:
            ring.reap(number, blame=False)  # so that its id is like new
            self._leaving.discard(number)
            del self._threads[number]
        ring.set_worker_count(workers)
        staying = sorted(self._threads.keys() - self._leaving)
        self._leaving.update(staying[workers:])
        for number in self._leaving:  # again, if Ctrl-C came in between
            ring.retire(number)
        ids = (number for number in range(ring.ids) if number not in self._threads)
        for number in [*ids][: max(0, workers - len(staying))]:
            self._run(number)

    def _run(self, number: int) -> None:
        config = self._config
        end = _ring.WorkerEnd(config.ring, number, lane=number + 1)
        worker = number, config.workers, 0
        port = Port(end, config.ring, config.offsets, states=config.states, worker=worker)
        reader = config.source.reader(self._dataset, port)
        thread = threading.Thread(target=self._serve, args=(reader,), name=f"ringfeed-{number}", daemon=True)
        self._threads[number] = thread
        try:
            start_thread(thread)
        except BaseException:  # after Ctrl-C it may run all the same, and its id must not be another's meanwhile
            self._leaving.add(number)
            self._config.ring.retire(number)
            raise

    def _serve(self, reader: Reader) -> None:
        """Run a thread."""
        try:
            reader.serve(0)
        except BaseException as error:  # noqa: BLE001 - outside any sample: the consumer must hear of it
            self.failure = WorkerError(f"a worker could not start: {error}")
            self.failure.__cause__ = error.__cause__ or error
            self._config.ring.alarm()

    def stalled(self) -> list[str]:
        """Describe each thread."""
        frames = sys._current_frames()  # noqa: SLF001 - the only way to another thread's stack
        lines = []
        for number, thread in self._threads.items():
            stack = traceback.format_stack(frames[thread.ident]) if thread.ident in frames else []
            lines.append(self._describe(number, f"thread {thread.name}", "".join(stack)))
        return lines

    def stop(self) -> None:
        """Wait a little for the threads; one inside a long sample ends after it."""
        self._config.ring.stop()
        for thread in self._threads.values():
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(STOP_S / len(self._threads))
