"""A trace, read and checked: what the consumer, the workers and the slots did, as arrays."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.errors import RingfeedError
from ringfeed.monitor.trace import CONSUMER, KINDS, LINES, SLOT, WORKER

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

STATES = ("step", "stall", "at work", "filling", "ready", "held", "draining", "parked")
STEP, STALL, AT_WORK = range(3)
_SLOT_STATES = {name: number for number, name in enumerate(STATES) if number > AT_WORK}
HINT = 'give the file that `with loader.trace("run.json"):` has written'


EVENT = np.dtype(
    [("line", "i4"), ("state", "i1"), ("began_s", "f8"), ("lasted_s", "f8"), ("busy_s", "f8"), ("what", "O")]
)
"""line: which of the timeline's lines. state: its number in STATES. began_s: since the beginning of
the trace. busy_s: of several tickets that are drawn as one, what they took; else as ``lasted_s``."""
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


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Return what a file holds; RingfeedError, with what to give, where it is no trace of ringfeed."""
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
        raise RingfeedError(f"{name} has an event that is damaged ({type(error).__name__}: {error}); {HINT}") from None


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
    found = [(places[event["tid"]], _state(event), *_times(event), str(event["name"])) for event in drawn]
    weighed = [event for event in events if event["ph"] == "C" and event["name"] == "memory"]
    sizes = [(_seconds(event["ts"]), event["args"]["this process"], event["args"]["workers"]) for event in weighed]
    of_events, of_memory = np.array(found, EVENT), np.array(sizes, MEMORY)
    return Timeline(tuple(names.values()), of_events.view(np.recarray), of_memory.view(np.recarray), facts)


def _times(event: Any) -> tuple[float, float, float]:
    """Return when an event began, how long it lasted, and how long its tickets took."""
    lasted_us = event["dur"]
    return _seconds(event["ts"]), _seconds(lasted_us), _seconds(event["args"].get("busy_us", lasted_us))


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
