"""What fills the slots, as the engine sees it: a pool. Here, the consumer itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ringfeed._failure import Death
from ringfeed.monitor._snapshot import Observer
from ringfeed.ring import _ring
from ringfeed.workers.roster import RestartPolicy

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Reader
    from ringfeed.errors import RingfeedError
    from ringfeed.monitor.stats import Stats
    from ringfeed.ring.segment import Segment
    from ringfeed.transport.shared_dataset import SharedDataset
    from ringfeed.workers.process import Launcher

STOP_S = 1.0


@dataclass(frozen=True)
class PoolConfig:
    """What every pool is made of."""

    ring: _ring.Ring
    segment: Segment
    source: Source
    offsets: tuple[int, ...]  # of the fields of a slot
    workers: int
    start_method: str = "forkserver"
    max_attempts: int = 3
    initial_workers: int = 0  # of the workers; the others come when they are wanted
    timeout_s: float | None = None
    launcher: Launcher | None = None  # what has begun to start workers already
    states: Any = None  # what is kept of an iterable: see `Source.keep`
    remote: Remote | None = None  # the last of the workers are bridges to it
    is_auto: bool = False  # whether the number of workers is found out
    sent: SharedDataset | None = None  # the dataset, where it was packed for them already


class Remote(Protocol):
    """A loader's ``backend`` whose workers are elsewhere: `ringfeed.ray.Ray`."""

    @property
    def bridges(self) -> int:
        """How many worker processes of the loader are bridges to them."""

    def check_fits(self, source: Source, workers: object) -> None:
        """Raise what says why it cannot serve such a loader."""

    def slots(self, source: Source) -> int:
        """Return how many slots have rows for all of its workers."""

    def figures(self, source: Source) -> dict[str, int]:
        """Return what a plan counts of it: ``more`` and ``flights_size`` of `make_plan`."""

    def make_pool(self, config: PoolConfig) -> Pool:
        """Return a pool of workers here and bridges; it runs nothing yet."""


class Pool(ABC):
    """What the loader asks of its workers.

    Where a pool does not say otherwise, it has none that end or wait.
    """

    version = 0
    """The version of the dataset that batches must name."""

    def __init__(self, config: PoolConfig) -> None:
        """Prepare to fill; nothing runs yet."""
        self.failure: RingfeedError | None = None  # what has ended the pool
        self._config = config
        self._observer = Observer(config.ring)
        self._policy = RestartPolicy(config.initial_workers)

    @property
    def restarts(self) -> int:
        """How many workers were started in the place of dead ones."""
        return self._policy.restarts

    @property
    def scaled_down(self) -> tuple[int, str] | None:
        """How many workers there may be and why, once more could not be had.

        `resize` stops there.
        """
        return self._policy.scaled_down

    @abstractmethod
    def start(self, dataset: Any) -> None:
        """Begin to work."""

    def change(self, dataset: Any) -> Any:  # noqa: ARG002
        # Within this process it is the same object.
        """Return what of the dataset the workers have not, for `update`.

        None where they have all of it.
        """
        return None

    def update(self, changed: Any) -> None:  # noqa: B027 - as above
        """Send the workers what has changed; batches name the next version from now on."""

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

    def kill_stuck(self, timeout_ns: int) -> int:  # noqa: ARG002 - only processes can be ended
        """End the workers that are stuck for so long.

        Returns when to look again, in ns, or 0: none can be ended.
        """
        return 0

    def pids(self) -> list[int]:
        """Return the worker processes, if there are any."""
        return []

    def tell(self, stats: Stats) -> None:  # noqa: B027 - most have none
        """Add to statistics what bridges to a cluster say of themselves, if there are any."""

    def forkservers(self) -> dict[int, str]:
        """Return the processes that fork workers, and what they are called."""
        return {}

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        return ()

    def request_stop(self) -> None:
        """Have all workers leave; at once, from any thread, more than once."""
        self._config.ring.stop()

    def stop(self) -> None:
        """End all workers.

        Nothing in a forked child of the consumer, since they are its parent's.
        """
        self._config.ring.stop()


class InProcess(Pool):
    """The consumer fills the batch it is about to take.

    The same code path, without other processes.
    """

    def __init__(self, config: PoolConfig) -> None:
        """Fill on demand."""
        super().__init__(config)
        self._end = _ring.WorkerEnd(config.ring, 0)
        self._reader: Reader | None = None

    def start(self, dataset: Any) -> None:
        """Keep the dataset."""
        # A consumer with worker processes has none.
        from ringfeed.datasets.reader import Port  # noqa: PLC0415

        config = self._config
        port = Port(
            self._end,
            config.ring,
            config.offsets,
            True,  # noqa: FBT003
            states=config.states,
            timeout_s=config.timeout_s,
        )
        self._reader = config.source.reader(dataset, port)

    def step(self) -> bool:
        """Fill one ticket, if there is one."""
        try:
            if self._end.claim(0) != _ring.TAKEABLE:
                return False
            assert self._reader is not None
            filled = self._reader.fill()
            if filled is None:
                self._give_up(self._reader)
            self._end.publish(cancelled=not filled)
        except BaseException:
            # Ctrl-C, perhaps right after the claim: no worker is to blame, and the ticket runs
            # again.
            self._config.ring.reap(0, blame=False)
            raise
        return True

    def _give_up(self, reader: Reader) -> NoReturn:
        """Raise StallError, and leave what hangs to itself: the next call asks again."""
        from ringfeed.monitor.faults import stalled  # noqa: PLC0415 - for errors only

        config, lines = self._config, [self._describe(0, "this process", reader.stack())]
        error = stalled(self._observer, config.source, lines, config.timeout_s)
        reader.close()
        raise error

    def stop(self) -> None:
        """End what reads for the consumer."""
        super().stop()
        if self._reader is not None:
            self._reader.close()


def make_pool(backend: str, config: PoolConfig) -> Pool:
    """Return a pool that runs nothing yet.

    Without workers the consumer fills its batches itself.
    """
    if config.remote is not None:
        return config.remote.make_pool(config)
    if not config.workers:
        return InProcess(config)
    # These import this module, and most loaders have no threads.
    if backend == "thread":
        from ringfeed.workers.threads import Threads  # noqa: PLC0415

        return Threads(config)
    from ringfeed.workers.processes import Processes  # noqa: PLC0415

    return Processes(config)
