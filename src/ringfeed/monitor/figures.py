"""What a timeline comes to: shares, the longest of a kind, time by intervals, and fewer events where there are many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Figures(NamedTuple):
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
    events, span_s = timeline.events, timeline.span_s
    steps = events[events.state == STEP]
    shares = []
    for number in timeline.numbers("worker"):
        busy_s = events.busy_s[events.line == number]
        share = busy_s.sum() / (span_s or 1.0)
        shares.append(Share(timeline.lines[number], share, len(busy_s), busy_s.max(initial=0.0)))
    return Figures(
        span_s,
        float(steps.began_s.min()) if len(steps) else None,
        int(timeline.facts.get("batches", len(steps))),
        float(events.lasted_s[events.state == STALL].sum()),
        tuple(shares),
    )


def longest(timeline: Timeline, state: int, most: int) -> Any:
    """Return the longest events in a state, the longest first; several tickets in one are left out."""
    is_one = np.char.find(timeline.events.what.astype(str), " tickets") < 0
    found = timeline.events[(timeline.events.state == state) & is_one]
    return found[np.argsort(-found.lasted_s, kind="stable")][:most]


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
    while len(found.events) > most and parts > 1:
        least_s = timeline.span_s / parts
        found = replace(timeline, events=_merged(timeline.events, least_s))
        parts //= 2
    return found, least_s


def _merged(events: Any, least_s: float) -> Any:
    is_short = events.lasted_s < least_s
    short = events[is_short]
    part = (short.began_s / least_s).astype(np.int64)
    alike = part << 32 | short.line.astype(np.int64) << 8 | short.state
    _, first, group, counts = np.unique(alike, return_index=True, return_inverse=True, return_counts=True)
    merged = short[first]
    merged.lasted_s, merged.busy_s = (np.bincount(group, of) for of in (short.lasted_s, short.busy_s))
    what, states = merged.what, merged.state
    for at in np.flatnonzero(counts > 1):
        what[at] = f"{counts[at]} x {STATES[states[at]]}"
    kept = np.concatenate([events[~is_short], merged])
    return kept[np.argsort(kept["began_s"], kind="stable")].view(np.recarray)
