"""A trace, read and checked: the events of consumer, workers and slots as arrays, and sums."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.errors import RingfeedError
from ringfeed.monitor.trace import CONSUMER, KINDS, LINES, SLOT, WORKER

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import NDArray

STATES = ("step", "stall", "at work", "filling", "ready", "held", "draining", "parked")
STEP, STALL, AT_WORK = range(3)
_SLOT_STATES = {name: number for number, name in enumerate(STATES) if number > AT_WORK}
MOST_DRAWN = (
    100_000  # events: more are drawn together where they are shorter than what a screen can show
)
EACH_PART = 4  # events of a line in a part of the time: three states of short ones, and a long one
HINT = 'give the file that `with loader.trace("run.json"):` has written'


EVENT = np.dtype(
    [
        ("line", "i4"),
        ("state", "i1"),
        ("began_s", "f8"),
        ("lasted_s", "f8"),
        ("busy_s", "f8"),
        ("what", "O"),
    ]
)
"""line: which of the timeline's lines. state: its number in STATES. began_s: since the beginning of
the trace. busy_s: the time of several tickets that are drawn as one; else as ``lasted_s``."""
MEMORY = np.dtype([("at_s", "f8"), ("trainer", "f8"), ("workers", "f8")])
"""What this process and its workers had of memory of their own, in bytes."""


@dataclass(frozen=True)
class Timeline:
    """What was drawn: the names of consumer, workers and slots, from the top; events; memory.

    facts: what the loader said.
    """

    lines: tuple[str, ...]
    events: Any
    memory: Any
    facts: Mapping[str, Any]

    @property
    def span_s(self) -> float:
        """How long the trace is, from its beginning to the end of its last event."""
        return float((self.events.began_s + self.events.lasted_s).max(initial=0.0))

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers of the lines of a kind: "worker" or "slot"."""
        return [number for number, name in enumerate(self.lines) if name.startswith(kind)]

    def of(self, state: int) -> Any:
        """Return the events in a state."""
        return self.events[self.events.state == state]

    @property
    def batches(self) -> int:
        """The batches that the loader says it has delivered, else those whose step was seen."""
        return int(self.facts.get("batches", len(self.of(STEP))))

    @property
    def waited_s(self) -> float:
        """How long training waited."""
        return float(self.of(STALL).lasted_s.sum())

    @property
    def waited(self) -> float:
        """The share of the time that training waited."""
        return self.waited_s / (self.span_s or 1.0)

    @property
    def busy(self) -> float | None:
        """The share of the time that workers were at work, as a mean of all; None without any."""
        count = len(self.numbers("worker"))
        return (
            float(self.of(AT_WORK).busy_s.sum()) / count / (self.span_s or 1.0) if count else None
        )


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Return the timeline of a file; RingfeedError where it is no trace of ringfeed."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RingfeedError(f"{path} cannot be read: {reason}; {HINT}") from None
    if not text:
        raise RingfeedError(f"{path} is empty: a trace is written when it is stopped")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise RingfeedError(f"{path} is no trace, or was cut off: {error}; {HINT}") from None
    return timeline_of(document, str(path))


def timeline_of(document: Any, name: str = "the trace") -> Timeline:
    """Return what a trace holds that was read from JSON."""
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise RingfeedError(f"{name} is no trace: it has no list of traceEvents; {HINT}")
    facts = document.get("otherData")
    facts = facts if isinstance(facts, dict) and facts.get("program") == "ringfeed" else {}
    try:
        names = _names(events)
        if not facts and not names:
            raise RingfeedError(f"{name} is a trace of another program; {HINT}")
        return _arrays(events, names, facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RingfeedError(
            f"{name} has an event that is damaged ({type(error).__name__}: {error}); {HINT}"
        ) from None


def _names(events: list[Any]) -> dict[int, str]:
    """Return the names of the lines, by their numbers in the file, in order."""
    groups = [event for event in events if event["ph"] == "M" and event["name"] == "process_name"]
    if not all(event["args"]["name"] == f"ringfeed {KINDS.get(event['pid'])}" for event in groups):
        return {}
    named = (event for event in events if event["ph"] == "M" and event["name"] == "thread_name")
    return dict(sorted((int(event["tid"]), str(event["args"]["name"])) for event in named))


def _arrays(events: list[Any], names: dict[int, str], facts: Mapping[str, Any]) -> Timeline:
    places = {tid: place for place, tid in enumerate(names)}
    drawn = sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])
    found = [
        (places[event["tid"]], _state(event), *_times(event), str(event["name"])) for event in drawn
    ]
    weighed = [event for event in events if event["ph"] == "C" and event["name"] == "memory"]
    sizes = [
        (_seconds(event["ts"]), event["args"]["this process"], event["args"]["workers"])
        for event in weighed
    ]
    of_events, of_memory = np.array(found, EVENT), np.array(sizes, MEMORY)
    return Timeline(
        tuple(names.values()), of_events.view(np.recarray), of_memory.view(np.recarray), facts
    )


def _times(event: Any) -> tuple[float, float, float]:
    """Return when an event began, how long it lasted, and how long its tickets took."""
    lasted_us = event["dur"]
    return (
        _seconds(event["ts"]),
        _seconds(lasted_us),
        _seconds(event["args"].get("busy_us", lasted_us)),
    )


def _seconds(microseconds: float) -> float:
    """Return a time of the file in seconds."""
    if not (math.isfinite(microseconds) and microseconds >= 0):
        raise ValueError(f"{microseconds} is no time")
    return microseconds / 1e6


def _state(event: Any) -> int:
    """Return the number of a state, of what is drawn on a line of a kind."""
    kind, name = event["tid"] // LINES, str(event["name"])
    if kind == CONSUMER:
        return STALL if name == "stall" else STEP
    if kind == WORKER:
        return AT_WORK
    if kind == SLOT:
        return _SLOT_STATES[name.partition(" ")[0]]
    raise ValueError(f"{kind} is no kind of line")


# ---- what it comes to ----


def longest(timeline: Timeline, state: int, most: int) -> Any:
    """Return the longest events in a state, the longest first, without tickets drawn as one."""
    is_one = np.char.find(timeline.events.what.astype(str), " tickets") < 0
    found = timeline.events[(timeline.events.state == state) & is_one]
    return found[np.argsort(-found.lasted_s, kind="stable")][:most]


def in_intervals(
    began_s: NDArray[np.float64], ended_s: NDArray[np.float64], edges_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how many of some spans cover each interval between two edges, as a mean."""
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
    """Return a timeline of about ``most`` events, and below which length it merges them.

    Short events of a line that are alike and fall into one part of the time become one, as long as
    they are together. A line has few states, and no more long events than there are parts.
    """
    if len(timeline.events) <= most:
        return timeline, 0.0
    least_s = timeline.span_s * EACH_PART * len(timeline.lines) / most
    return replace(timeline, events=_merged(timeline.events, least_s)), least_s


def _merged(events: Any, least_s: float) -> Any:
    is_short = events.lasted_s < least_s
    short = events[is_short]
    part = (short.began_s / least_s).astype(np.int64)
    alike = part << 32 | short.line.astype(np.int64) << 8 | short.state
    _, first, group, counts = np.unique(
        alike, return_index=True, return_inverse=True, return_counts=True
    )
    merged = short[first]
    merged.lasted_s, merged.busy_s = (
        np.bincount(group, of) for of in (short.lasted_s, short.busy_s)
    )
    what, states = merged.what, merged.state
    for at in np.flatnonzero(counts > 1):
        what[at] = f"{counts[at]} x {STATES[states[at]]}"
    kept = np.concatenate([events[~is_short], merged])
    return kept[np.argsort(kept["began_s"], kind="stable")].view(np.recarray)
