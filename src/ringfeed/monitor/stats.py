"""What a loader has done so far."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from ringfeed._units import show_s
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.monitor._snapshot import Observer
    from ringfeed.monitor.memory import Memory

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

    ``stall_s`` is what the consumer waited for batches, but for waits after which JAX or a GPU
    still had work left, ``startup_s`` the part of it before workers that had just been started gave
    their first batch, ``back_pressure_s`` what all workers together waited for free slots,
    ``busy_s`` what they spent on filling. Of a sample, ``read_s`` is the mean time inside
    ``dataset[i]`` and ``write_s`` that of writing it into its slot, by one row of each ticket.
    ``elapsed_s`` is the time in which an epoch was under way, and ``verdict`` says in words what
    these times mean. ``skipped`` lists the dataset indices that were left out, ``none_batches``
    counts the whole batches of None, which are left out without an error. ``tuning``: the moves of
    what is "auto", each with the batches before it, the setting and the reason. ``memory`` is
    looked up when it is asked for. ``remote``: what the actors of a cluster do, with
    ``backend=Ray(...)``.
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

    def __post_init__(self) -> None:
        """Know of no loader yet."""
        self._look: Callable[[], Memory] | None = (
            None  # no field: it means nothing in another process
        )
        self.startup_busy_s = 0.0  # no field: the part of busy_s during startup_s, for the verdict
        self.launch_s = (
            0.0  # no field: before the first epoch is under way, and so in no other time
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loader behind: what is copied or pickled is of the past."""
        return {**self.__dict__, "_look": None}

    def __repr__(self) -> str:
        """Return what a person wants to know, in a line."""
        done = f"{self.batches} batches of {self.samples} samples in {self.elapsed_s:.1f} s"
        lost = f", {self.restarts} workers replaced" if self.restarts else ""
        return (
            f"<Stats: {done}, {self.stall_s:.1f} s of it "
            f"waited{lost}{self.verdict and f'; {self.verdict}'}>"
        )

    def lines(self) -> list[tuple[str, str]]:
        """Return the same as lines of a table."""
        found = [
            ("batches", f"{self.batches:,} of {self.samples:,} samples"),
            ("time", f"{self.elapsed_s:.1f} s, of it {self.stall_s:.1f} s waited for batches"),
            ("start-up", f"{show_s(self.startup_s)} of the waiting"),
            (
                "workers",
                (
                    f"{self.busy_s:.1f} s at work, {self.back_pressure_s:.1f} s waiting for slots, "
                    "all together"
                ),
            ),
            ("a sample", f"{show_s(self.read_s)} to read, {show_s(self.write_s)} to write"),
        ]
        rare = {
            "replaced": f"{self.restarts} workers" * (self.restarts > 0),
            "skipped": f"{len(self.skipped):,} samples" * bool(self.skipped),
            "left out": f"{self.none_batches:,} batches of None" * (self.none_batches > 0),
            "verdict": self.verdict,
        }
        return [*found, *((name, text) for name, text in rare.items() if text)]

    def _repr_html_(self) -> str:
        """Return the lines for a notebook."""
        from ringfeed._html import table  # noqa: PLC0415 - for notebooks

        return table("Statistics", self.lines())

    def since(self, before: Stats) -> Stats:
        """Return what was done since a copy was made; a sample's times stay means of all."""
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (int, float)) and name not in {"read_s", "write_s"}:
                setattr(part, name, value - getattr(before, name))
        part.skipped = self.skipped[len(before.skipped) :]
        return part

    def look_with(self, look: Callable[[], Memory]) -> None:
        """Have ``memory`` ask the loader whose statistics these are."""
        self._look = look

    @property
    def memory(self) -> Memory:
        """The loader's memory now: planned, reserved, touched, held by views, of each worker.

        The kernel is asked each time, which takes milliseconds. AttributeError for a copy, which
        has no loader.
        """
        if self._look is None:
            message = (
                "these statistics are a copy, which has no loader to look at; ask "
                "loader.stats().memory"
            )
            raise AttributeError(message)
        return self._look()


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
        stats.restarts = before.restarts + restarts
        if rows := total("timed"):
            stats.read_s = total("read_ns") / rows / 1e9
            stats.write_s = total("write_ns") / rows / 1e9
