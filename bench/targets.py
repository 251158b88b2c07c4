"""What ringfeed promises of itself, as limits on figures of one run of the bench."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from results import Results

AT_MOST, AT_LEAST = "at most", "at least"
PER_WORKER = "per_worker_bytes"
UNITS: dict[str, tuple[float, str]] = {
    "µs": (1e-6, " µs"),
    "s": (1.0, " s"),
    "MB": (1e6, " MB"),
    "x": (1.0, "x"),
    "%": (0.01, " %"),
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


def _ratio(case: str, above: str, below: str) -> Callable[[Results], float | None]:
    return lambda results: results.ratio(case, above, below)


def _share_right(results: Results) -> float | None:
    """The worst repetition's share of right batches, all of its workers having been killed."""
    right, expected = (results.values("kill", "ringfeed", name) for name in ("right", "expected"))
    return min((right[number] / expected[number] for number in right), default=None)


SAME = "the same, TensorFlow at the top and no main guard"

TARGETS = (
    Target("ready 1 kB batch", AT_MOST, 8e-6, "µs", _median("ready", "per_batch_s")),
    Target("Keras processes over that", AT_LEAST, 10, "x", _ratio("ready", "keras-processes", "ringfeed")),
    Target("38.5 MB batch, over the ideal", AT_MOST, 1.5, "x", _ratio("resident", "ringfeed", "ideal")),
    Target("JPEG decode and crop, over the ideal", AT_MOST, 1.08, "x", _ratio("jpeg", "ringfeed", "ideal")),
    Target("memory beyond the slots, per worker", AT_MOST, 30e6, "MB", _median("memory/plain", PER_WORKER)),
    Target(SAME, AT_MOST, 30e6, "MB", _median("memory/unguarded", PER_WORKER)),
    Target("first batch", AT_MOST, 0.3, "s", _median("first_batch/plain", "first_batch_s")),
    Target(SAME, AT_MOST, 0.3, "s", _median("first_batch/unguarded", "first_batch_s")),
    Target("batches right and in order, all workers killed", AT_LEAST, 1.0, "%", _share_right),
)
