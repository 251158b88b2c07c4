"""What a timeline comes to: shares, the longest of a kind, time by intervals, and fewer events where there are many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ringfeed.monitor.timeline import STALL, STATES, STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ringfeed.monitor.timeline import Timeline

MOST_DRAWN = 100_000  # events: more are drawn together where they are shorter than what a screen can show
FINEST = 1 << 14  # parts of the time, for events that are drawn together


class Share(NamedTuple):
    """A worker: the share of the time that it was at work, its tickets that were drawn, and the longest of them."""

    name: str
    busy: float
    events: int
    longest_s: float


@dataclass(frozen=True)
class Figures:
    """The figures of a run. first_s: when the first batch was taken; None where no batch was."""

    span_s: float
    first_s: float | None
    batches: int
    waited_s: float
    workers: tuple[Share, ...]

    @property
    def waited(self) -> float:
        """The share of the time that training waited."""
        return self.waited_s / self.span_s if self.span_s else 0.0

    @property
    def busy(self) -> float | None:
        """The mean share of the workers; None where there are none."""
        return sum(worker.busy for worker in self.workers) / len(self.workers) if self.workers else None


def figures_of(timeline: Timeline) -> Figures:
    """Return the figures of a timeline."""
    steps, stalls = timeline.state == STEP, timeline.state == STALL
    span_s = timeline.span_s
    numbers = [number for number, name in enumerate(timeline.lines) if name.startswith("worker")]
    return Figures(
        span_s,
        float(timeline.began_s[steps].min()) if steps.any() else None,
        int(timeline.facts.get("batches", steps.sum())),
        float(timeline.lasted_s[stalls].sum()),
        tuple(_share(timeline, number, span_s) for number in numbers),
    )


def _share(timeline: Timeline, number: int, span_s: float) -> Share:
    own = timeline.line == number
    busy_s = float(timeline.busy_s[own].sum())
    longest_s = float(timeline.busy_s[own].max(initial=0.0))
    return Share(timeline.lines[number], busy_s / span_s if span_s else 0.0, int(own.sum()), longest_s)


def longest(timeline: Timeline, state: int, most: int) -> NDArray[np.intp]:
    """Return the places of the longest events in a state, the longest first; several tickets in one are left out."""
    is_one = np.char.find(timeline.what.astype(str), " tickets") < 0
    places = np.flatnonzero((timeline.state == state) & is_one)
    found: NDArray[np.intp] = places[np.argsort(-timeline.lasted_s[places], kind="stable")][:most]
    return found


def in_intervals(
    began_s: NDArray[np.float64], ended_s: NDArray[np.float64], edges_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how many of some spans lie in each interval between two edges, as a mean over its time."""
    covered_s = _passed(began_s, edges_s) - _passed(ended_s, edges_s)
    return np.diff(covered_s) / np.diff(edges_s)


def _passed(at_s: NDArray[np.float64], edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time that has passed at each edge since each of some moments, all together."""
    ordered = np.sort(at_s)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, edges_s)
    passed: NDArray[np.float64] = before * edges_s - sums[before]
    return passed


def thinned(timeline: Timeline, most: int = MOST_DRAWN) -> tuple[Timeline, float]:
    """Return a timeline of about so many events at most, and the length below which they are drawn together.

    Short events of a line that are alike and fall into one part of the time become one, as long as they are together.
    """
    parts = FINEST
    found, least_s = timeline, 0.0
    while len(found) > most and parts > 1:
        least_s = timeline.span_s / parts
        found = _merged(timeline, least_s)
        parts //= 2
    return found, least_s


def _merged(timeline: Timeline, least_s: float) -> Timeline:
    is_short = timeline.lasted_s < least_s
    short = np.flatnonzero(is_short)
    part = (timeline.began_s[short] / least_s).astype(np.int64)
    key = (part * len(timeline.lines) + timeline.line[short]) * len(STATES) + timeline.state[short]
    _, first, group, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    head = short[first]
    what = timeline.what.copy()
    several = counts > 1
    what[head[several]] = [
        f"{count} x {STATES[timeline.state[at]]}" for count, at in zip(counts[several], head[several], strict=True)
    ]
    lasted_s, busy_s = timeline.lasted_s.copy(), timeline.busy_s.copy()
    lasted_s[head], busy_s[head] = (np.bincount(group, of[short]) for of in (timeline.lasted_s, timeline.busy_s))
    batch = timeline.batch.copy()
    batch[head[several]] = -1
    kept = np.sort(np.concatenate([np.flatnonzero(~is_short), head]))
    arrays = {"line": timeline.line, "state": timeline.state, "began_s": timeline.began_s, "lasted_s": lasted_s}
    arrays |= {"busy_s": busy_s, "batch": batch, "what": what}
    return replace(timeline, **{name: array[kept] for name, array in arrays.items()})
