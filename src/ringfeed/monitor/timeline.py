"""A trace, read and checked: what the consumer, the workers and the slots did, as arrays."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
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
_BATCH = re.compile(r"(?:step|filling|ready|held|draining) (\d+)")
HINT = 'give the file that `with loader.trace("run.json"):` has written'


@dataclass(frozen=True)
class Memory:
    """What processes had of memory of their own: seconds since the beginning, and bytes."""

    at_s: NDArray[np.float64]
    trainer: NDArray[np.float64]
    workers: NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """What was drawn; each event has a place in every array.

    lines: the names of consumer, workers and slots, from the top. line: which of them an event is on. state: its
    number in STATES. began_s: since the beginning of the trace. busy_s: of several tickets that are drawn as one, what
    they took; else as ``lasted_s``. batch: its number, or -1. what: as it is named. facts: what the loader said.
    """

    lines: tuple[str, ...]
    line: NDArray[np.int32]
    state: NDArray[np.int8]
    began_s: NDArray[np.float64]
    lasted_s: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    batch: NDArray[np.int64]
    what: NDArray[np.object_]
    memory: Memory
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        """Return how many events there are."""
        return len(self.line)

    @property
    def span_s(self) -> float:
        """How long the trace is, from its beginning to the end of its last event."""
        return float((self.began_s + self.lasted_s).max(initial=0.0))


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
    drawn = sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])
    places = {tid: place for place, tid in enumerate(names)}
    what = [str(event["name"]) for event in drawn]
    lasted_s = [_seconds(event["dur"]) for event in drawn]
    busy = (event["args"].get("busy_us") for event in drawn)
    weighed = [event for event in events if event["ph"] == "C" and event["name"] == "memory"]
    return Timeline(
        tuple(names.values()),
        np.array([places[event["tid"]] for event in drawn], np.int32),
        np.array([_state(event["tid"] // LINES, name) for event, name in zip(drawn, what, strict=True)], np.int8),
        np.array([_seconds(event["ts"]) for event in drawn], np.float64),
        np.array(lasted_s, np.float64),
        np.array([length if us is None else _seconds(us) for us, length in zip(busy, lasted_s, strict=True)]),
        np.array([int(found[1]) if (found := _BATCH.fullmatch(name)) else -1 for name in what], np.int64),
        np.array(what, object),
        Memory(
            np.array([_seconds(event["ts"]) for event in weighed], np.float64),
            np.array([float(event["args"]["this process"]) for event in weighed], np.float64),
            np.array([float(event["args"]["workers"]) for event in weighed], np.float64),
        ),
        facts,
    )


def _seconds(microseconds: float) -> float:
    """Return a time of the file in seconds."""
    if not (math.isfinite(microseconds) and microseconds >= 0):
        raise ValueError(f"{microseconds} is no time")
    return microseconds / 1e6


def _state(kind: int, name: str) -> int:
    """Return the number of a state, of what is drawn on a line of a kind."""
    if kind == CONSUMER:
        return STALL if name == "stall" else STEP
    if kind == WORKER:
        return AT_WORK
    if kind == SLOT:
        return _SLOT_STATES[name.partition(" ")[0]]
    raise ValueError(f"{kind} is no kind of line")
