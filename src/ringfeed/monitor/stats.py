"""What a loader has done so far."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from ringfeed.monitor._snapshot import WAIT_BUCKETS, Observer
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.monitor.memory import Memory
    from ringfeed.monitor.waits import Waits

FIXED = {"read_s", "write_s", "is_closed"}  # of a part as of the whole
Side = Literal["workers", "slots"]


class Verdict(str):
    """What limits a run: "input-bound", "compute-bound" and so on, and what was seen.

    As a text it is all of that.

    Each line is what was seen, alone or with what to change for it.
    """

    __slots__ = ("kind", "lines")
    kind: str
    lines: tuple[tuple[str, ...], ...]

    def __new__(cls, kind: str, *lines: tuple[str, ...]) -> Self:
        """Put the text together; without a kind it is that of the lines."""
        text = "; ".join(map(": ".join, lines))
        found = super().__new__(cls, f"{kind}: {text}" if kind else text)
        found.kind, found.lines = kind, lines
        return found

    def __getnewargs__(self) -> Any:
        """Return what a copy is made from."""
        return self.kind, *self.lines


class Setting(NamedTuple):
    """Numbers of workers and slots."""

    workers: int
    slots: int


@dataclass(frozen=True)
class Step:
    """A move in the history: after how many batches, and what was seen before it.

    The figures are zeros where nothing was seen.
    """

    batches: int
    setting: Setting
    why: str
    waited: float  # share of the time
    samples_per_s: float


@dataclass
class Stats:
    """Counts and times since the loader was made; times in seconds.

    ``stall_s``: how long the consumer waited for batches, without waits during which JAX or a GPU
    still computed; ``startup_s``: the part of it before new workers gave their first batch;
    ``back_pressure_s``: how long all workers together waited for free slots; ``busy_s``: how long
    they filled slots. ``read_s`` is the mean time inside ``dataset[i]``, ``write_s`` that of
    writing a sample into its slot, by one row of each ticket. ``elapsed_s`` is the time within
    epochs, and ``verdict`` says in words what these times mean. ``skipped`` lists the dataset
    indices that were left out, ``none_batches`` counts the whole batches of None. ``tuning``: the
    changes of "auto" settings, each with the number of batches before it, the setting and the
    reason. ``memory`` is looked up when it is asked for. ``remote``: the actors of a cluster, with
    ``backend=Ray(...)``. ``is_closed``: whether the loader is closed.
    """

    batches: int = 0
    samples: int = 0
    stall_s: float = 0.0
    startup_s: float = 0.0
    busy_s: float = 0.0
    back_pressure_s: float = 0.0
    read_s: float = 0.0
    write_s: float = 0.0
    elapsed_s: float = 0.0
    restarts: int = 0
    skipped: list[int] = field(default_factory=list)
    none_batches: int = 0
    tuning: list[Step] = field(default_factory=list)
    verdict: Verdict = Verdict("")  # noqa: RUF009 - a text
    remote: Any = None
    is_closed: bool = False

    def __post_init__(self) -> None:
        """Know of no loader yet."""
        # None of these is a field. The first means nothing in another process.
        self.look: Callable[[], Memory] | None = None
        self.wait_counts = np.zeros(1 + WAIT_BUCKETS[2], np.int64)
        self.startup_busy_s = 0.0  # the part of busy_s during startup_s, for the verdict
        self.launch_s = 0.0  # before the first epoch is under way, and so in no other time

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loader behind: what is copied or pickled is of the past."""
        return {**self.__dict__, "look": None}

    def __repr__(self) -> str:
        """Return what a person wants to know, in a line."""
        from ringfeed.monitor.words import stats_text  # noqa: PLC0415 - if needed

        return f"<Stats: {stats_text(self)}>"

    def lines(self) -> list[tuple[str, str]]:
        """Return the same as lines of a table."""
        from ringfeed.monitor.words import stats_lines  # noqa: PLC0415 - if needed

        return stats_lines(self)

    def _repr_html_(self) -> str:
        """Return the lines for a notebook."""
        from ringfeed._html import table  # noqa: PLC0415 - for notebooks

        return table("Statistics", self.lines())

    def since(self, before: Stats) -> Stats:
        """Return the change since a copy was made; a sample's times stay means of all."""
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (int, float, np.ndarray)) and name not in FIXED:
                setattr(part, name, value - getattr(before, name))
        part.skipped = self.skipped[len(before.skipped) :]
        return part

    @property
    def waits(self) -> Waits:
        """How long training waited for a batch: percentiles and the longest wait."""
        from ringfeed.monitor.waits import Waits  # noqa: PLC0415 - if needed

        return Waits.of(self.wait_counts)

    def figures(self) -> dict[str, float]:
        """Return all counts and times as numbers by name, for a logger such as TensorBoard.

        With ``wait_p50_s``, ``wait_p95_s``, ``wait_p99_s`` and ``wait_max_s``, as in `waits`.
        """
        from ringfeed.monitor.export import figures_of  # noqa: PLC0415 - if needed

        return figures_of(self)

    def prometheus(self, **labels: object) -> str:
        """Return all counts and times in the text format of Prometheus, each with these labels.

        The waits for batches are a histogram, ``ringfeed_wait_seconds``. ValueError for a name
        that no label may have.
        """
        from ringfeed.monitor.export import prometheus_of  # noqa: PLC0415 - if needed

        return prometheus_of(self, labels)

    @property
    def memory(self) -> Memory:
        """The loader's memory now: planned, reserved, touched, held by views, of each worker.

        The kernel is asked each time, which takes milliseconds. AttributeError for a copy, which
        has no loader.
        """
        if self.look is None:
            raise AttributeError(
                "these statistics are a copy, which has no loader to look at; ask "
                "loader.stats().memory"
            )
        return self.look()


class Clock:
    """Adds up the times between starts and stops; it can be read at any moment, from any thread."""

    def __init__(self) -> None:
        """Stand still."""
        # What it ran up to the last stop, and since when it runs; 0: it stands. One tuple, so that
        # no reader sees a half of it.
        self._ran_ns = 0, 0

    def start(self) -> None:
        """Run from now on."""
        self._ran_ns = self._read_ns(), _ring.now_ns()

    def stop(self) -> None:
        """Stand still from now on."""
        self._ran_ns = self._read_ns(), 0

    def _read_ns(self) -> int:
        ran_ns, since_ns = self._ran_ns
        return ran_ns + (_ring.now_ns() - since_ns if since_ns else 0)

    @property
    def seconds(self) -> float:
        """For how long it has run in all."""
        return self._read_ns() / 1e9


class Ledger:
    """Adds what the ring that runs now has counted to what the rings before it counted."""

    def __init__(self, stats: Stats, observer: Observer) -> None:
        """Count from what the statistics say already."""
        self._stats = stats
        self._before = copy(stats)
        self._observer = observer
        self.launch, self.epochs = Clock(), Clock()

    def count(self, restarts: int, waiting_rows: int | None) -> None:
        """Take over what the control block says; ``restarts`` is what the pool has counted.

        ``waiting_rows``: of the one batch that is taken and not handed out yet, if there is one.
        """
        stats, before = self._stats, self._before
        consumer, workers = self._observer.consumer(), self._observer.workers()

        def total(name: str) -> int:
            return sum(getattr(worker, name) for worker in workers)

        stats.elapsed_s = before.elapsed_s + self.epochs.seconds
        stats.launch_s = before.launch_s + self.launch.seconds
        stats.batches = before.batches + consumer.batches - (waiting_rows is not None)
        stats.samples = before.samples + consumer.samples - (waiting_rows or 0)
        stats.stall_s = before.stall_s + consumer.stall_ns / 1e9
        stats.busy_s = before.busy_s + total("busy_ns") / 1e9
        stats.back_pressure_s = before.back_pressure_s + total("wait_ns") / 1e9
        stats.wait_counts = before.wait_counts + self._observer.waits()
        stats.restarts = before.restarts + restarts
        if rows := total("timed"):
            stats.read_s = total("read_ns") / rows / 1e9
            stats.write_s = total("write_ns") / rows / 1e9
