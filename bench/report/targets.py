"""What ringfeed promises of itself, as limits on figures of one run of the bench."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from report.bounds import bounds
from workloads.cases import CASES, FIT

if TYPE_CHECKING:
    from report.results import Results

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


class Seen(NamedTuple):
    """What a run says of a target: the value of each repetition, and whose it is where the title leaves that open."""

    values: list[float]
    whose: str = ""


Look = Callable[["Results"], Seen]


class Target(NamedTuple):
    """A figure of the results, and the limit it must keep."""

    title: str
    sense: str
    limit: float
    unit: str
    look: Look
    middle: Callable[[list[float]], float] = median
    may_tie: bool = False  # a comparison with others, not a figure that was promised

    def holds(self, value: float) -> bool:
        """Whether a measured value keeps the limit."""
        return value <= self.limit if self.sense == AT_MOST else value >= self.limit

    def verdict(self, values: list[float]) -> str:
        """The last word of the target's row."""
        if self.may_tie and self._is_tied(values):
            return "tie"
        return "kept" if self.holds(self.middle(values)) else "**missed**"

    def _is_tied(self, values: list[float]) -> bool:
        """Whether repetitions lie on both sides of the limit, and their median nearer to it than half their spread."""
        least, most = min(values), max(values)
        return (
            least < self.limit < most
            and abs(self.middle(values) - self.limit) <= (most - least) / 2
        )

    def text(self, value: float) -> str:
        """A value in the target's unit."""
        size, unit = UNITS[self.unit]
        return f"{value / size:.4g}{unit}"

    def measured(self, seen: Seen) -> str:
        """The value that counts, with the least and the most of several, and whose it is."""
        size, several = UNITS[self.unit][0], sorted(seen.values)
        ends = f" ({several[0] / size:.4g} - {several[-1] / size:.4g})" if len(several) > 1 else ""
        return ", ".join(filter(None, [self.text(self.middle(seen.values)) + ends, seen.whose]))


def _own(case: str, figure: str) -> Look:
    return lambda results: Seen(list(results.values(case, "ringfeed", figure).values()))


def _ratios(case: str, above: str, below: str, figure: str = TIME) -> Look:
    return lambda results: Seen(results.ratios(case, above, below, figure))


def _share_right(results: Results) -> Seen:
    """The share of right batches, all workers having been killed."""
    right, expected = (results.values("kill", "ringfeed", name) for name in ("right", "expected"))
    return Seen([right[number] / expected[number] for number in right])


def _nearest(case: str, *, but: tuple[str, ...] = (), figure: str = TIME) -> Look:
    """How many times ringfeed's the best rival's figure is: below 1, a rival is ahead."""

    def look(results: Results) -> Seen:
        rivals = [
            name
            for name in results.contenders(case)
            if name not in {"ringfeed", "ringfeed-fork", "ideal", "plain", *but}
        ]
        seen = [Seen(results.ratios(case, name, "ringfeed", figure), name) for name in rivals]
        return min(
            (one for one in seen if one.values),
            key=lambda one: median(one.values),
            default=Seen([]),
        )

    return look


def _over(case: str, contender: str, limit: float) -> Target:
    title = f"{CASES[case].short}: {contender} over ringfeed"
    return Target(title, AT_LEAST, limit, "x", _ratios(case, contender, "ringfeed"))


def _speed(case: str, share: float) -> Target:
    """How much of the ideal's batches in the same time."""
    return Target(
        f"{CASES[case].short}, of the ideal",
        AT_LEAST,
        share,
        "%",
        _ratios(case, "ideal", "ringfeed"),
    )


def _ahead(case: str) -> Target:
    title = f"{CASES[case].short}: the best rival over ringfeed"
    return Target(title, AT_LEAST, 1.0, "x", _nearest(case), may_tie=True)


def _cpu(case: str, limit: float) -> Target:
    title = f"{CASES[case].short}: CPU over the ideal's"
    return Target(title, AT_MOST, limit, "x", _ratios(case, "ringfeed", "ideal", CPU))


def _none(case: str, figure: str, what: str) -> Target:
    """None in the steady state: once in a hundred batches is another process's."""
    title = f"{CASES[case].short}: {what} per batch"
    return Target(title, AT_MOST, 0.01, "", _own(case, figure))


def _fit(case: str) -> Target:
    """An epoch over its largest lower bound."""

    def look(results: Results) -> Seen:
        return Seen(
            [of_one["over_largest"] for of_one in bounds(results, case, "ringfeed").values()]
        )

    return Target(
        f"{CASES[case].short}: an epoch over the largest of its bounds", AT_MOST, 1.05, "x", look
    )


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
    Target("ready 1 kB batch", AT_MOST, 6e-6, "µs", _own("ready", TIME)),
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
    *map(_fit, FIT),
    Target("from one epoch to the next", AT_MOST, 1e-3, "ms", _own("epochs", "between_s")),
    Target(
        "memory beyond the slots, per worker", AT_MOST, 30e6, "MB", _own("memory/plain", PER_WORKER)
    ),
    Target(SAME, AT_MOST, 30e6, "MB", _own("memory/unguarded", PER_WORKER)),
    Target("first batch", AT_MOST, 0.3, "s", _own(FIRST, FIRST_BATCH)),
    Target(SAME, AT_MOST, 0.3, "s", _own("first_batch/unguarded", FIRST_BATCH)),
    Target(
        "first batch: the soonest rival that does not fork, over ringfeed",
        AT_LEAST,
        1.0,
        "x",
        _nearest(FIRST, but=FORKED + THREADS, figure=FIRST_BATCH),
        may_tie=True,
    ),
    Target(
        "first batch, forked workers: torch over ringfeed",
        AT_LEAST,
        1.0,
        "x",
        _ratios(FIRST, "torch", "ringfeed-fork", FIRST_BATCH),
    ),
    Target("batches right and in order, all workers killed", AT_LEAST, 1.0, "%", _share_right, min),
)
