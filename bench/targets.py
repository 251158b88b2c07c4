"""What ringfeed promises of itself, as limits on figures of one run of the bench."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cases import CASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from results import Results

AT_MOST, AT_LEAST = "at most", "at least"
PER_WORKER, TIME, CPU = "per_worker_bytes", "per_batch_s", "cpu_s_per_batch"
FIRST, FIRST_BATCH = "first_batch/plain", "first_batch_s"
UNITS: dict[str, tuple[float, str]] = {
    "µs": (1e-6, " µs"),
    "ms": (1e-3, " ms"),
    "s": (1.0, " s"),
    "MB": (1e6, " MB"),
    "x": (1.0, "x"),
    "%": (0.01, " %"),
    "": (1.0, ""),
}


class Target(NamedTuple):
    """A figure of the results, and the limit it must keep."""

    title: str
    sense: str
    limit: float
    unit: str
    value: Callable[[Results], float | None]

    def holds(self, value: float) -> bool:
        """Whether a measured value keeps the limit."""
        return value <= self.limit if self.sense == AT_MOST else value >= self.limit

    def verdict(self, value: float) -> str:
        """The last word of the target's row."""
        return "kept" if self.holds(value) else "**missed**"

    def text(self, value: float) -> str:
        """A value in the target's unit."""
        size, unit = UNITS[self.unit]
        return f"{value / size:.4g}{unit}"


def _median(case: str, figure: str) -> Callable[[Results], float | None]:
    return lambda results: results.median(case, "ringfeed", figure)


def _ratio(case: str, above: str, below: str, figure: str = TIME) -> Callable[[Results], float | None]:
    return lambda results: results.ratio(case, above, below, figure)


def _share_right(results: Results) -> float | None:
    """The worst repetition's share of right batches, all of its workers having been killed."""
    right, expected = (results.values("kill", "ringfeed", name) for name in ("right", "expected"))
    return min((right[number] / expected[number] for number in right), default=None)


def _nearest(case: str, *, but: tuple[str, ...] = (), figure: str = TIME) -> Callable[[Results], float | None]:
    """How many times ringfeed's the best rival's figure is: below 1, somebody is ahead."""

    def value(results: Results) -> float | None:
        rivals = [
            name
            for name in results.contenders(case)
            if name not in {"ringfeed", "ringfeed-fork", "ideal", "plain", *but}
        ]
        ratios = [results.ratio(case, name, "ringfeed", figure) for name in rivals]
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    return value


def _over(case: str, contender: str, limit: float) -> Target:
    title = f"{CASES[case].short}: {contender} over ringfeed"
    return Target(title, AT_LEAST, limit, "x", _ratio(case, contender, "ringfeed"))


def _speed(case: str, share: float) -> Target:
    """How much of the ideal's batches in the same time."""
    return Target(f"{CASES[case].short}, of the ideal", AT_LEAST, share, "%", _ratio(case, "ideal", "ringfeed"))


def _ahead(case: str) -> Target:
    return Target(f"{CASES[case].short}: the best rival over ringfeed", AT_LEAST, 1.0, "x", _nearest(case))


def _cpu(case: str, limit: float) -> Target:
    title = f"{CASES[case].short}: CPU over the ideal's"
    return Target(title, AT_MOST, limit, "x", _ratio(case, "ringfeed", "ideal", CPU))


def _none(case: str, figure: str, what: str) -> Target:
    """None in the steady state: once in a hundred batches is somebody else's."""
    title = f"{CASES[case].short}: {what} per batch"
    return Target(title, AT_MOST, 0.01, "", _median(case, figure))


SAME = "the same, TensorFlow at the top and no main guard"
FORKED: tuple[str, ...] = (
    "keras-processes",
    "pool",
    "spdl",
    "spdl-iteration",
    "spdl-pool",
    "spdl-pools",
    "torch",
    "torch-arrays",
)
FORKED += ("torch-ready", "faster-fifo")  # they begin sooner: a fork is no new interpreter
THREADS = ("keras-threads", "tf-generator", "tf-function")  # they begin at once

TARGETS = (
    Target("ready 1 kB batch", AT_MOST, 6e-6, "µs", _median("ready", TIME)),
    _over("ready", "keras-processes", 15),
    _over("ready", "keras-threads", 6),
    _over("ready", "torch", 120),
    _over("ready", "tf-generator", 35),
    _none("calls/ready", "calls_per_batch", "system calls (counted apart)"),
    _none("ready", "faults_per_batch", "page faults"),
    _speed("tiny", 0.6),
    _over("tiny", "torch", 50),
    _over("tiny", "grain", 25),
    _speed("resident", 0.85),
    _over("resident", "torch", 12),
    _over("resident", "grain", 12),
    _over("resident", "keras-processes", 70),
    _over("resident", "tf-generator", 4),
    _over("resident", "spdl-pool", 3),
    _cpu("resident", 1.15),
    _speed("arrays", 0.9),
    _speed("jpeg", 0.97),
    _ahead("jpeg"),
    _ahead("jpeg/warm"),
    _cpu("jpeg", 1.03),
    _speed("slow", 0.95),
    _ahead("slow"),
    _speed("variable", 0.95),
    _ahead("variable"),
    Target("from one epoch to the next", AT_MOST, 1e-3, "ms", _median("epochs", "between_s")),
    Target("memory beyond the slots, per worker", AT_MOST, 30e6, "MB", _median("memory/plain", PER_WORKER)),
    Target(SAME, AT_MOST, 30e6, "MB", _median("memory/unguarded", PER_WORKER)),
    Target("first batch", AT_MOST, 0.3, "s", _median(FIRST, FIRST_BATCH)),
    Target(SAME, AT_MOST, 0.3, "s", _median("first_batch/unguarded", FIRST_BATCH)),
    Target(
        "first batch: the soonest rival that does not fork, over ringfeed",
        AT_LEAST,
        1.0,
        "x",
        _nearest(FIRST, but=FORKED + THREADS, figure=FIRST_BATCH),
    ),
    Target(
        "first batch, forked workers: torch over ringfeed",
        AT_LEAST,
        1.0,
        "x",
        _ratio(FIRST, "torch", "ringfeed-fork", FIRST_BATCH),
    ),
    Target("batches right and in order, all workers killed", AT_LEAST, 1.0, "%", _share_right),
)
