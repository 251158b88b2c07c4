"""Where held batches were taken: noted with `debug`, for `SlotsHeldWarning` and `Stats.memory`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ringfeed._callers import frame_above, users_frame
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AGES_SHOWN = 8
IN_C = "C code"
BEFORE = "before ringfeed.debug()"


class Debug:
    """Since when this process notes where batches are taken."""

    since_ns = 0  # 0: it does not


def debug(*, on: bool = True) -> None:
    """Note from now on where each batch of this process is taken: some microseconds a batch.

    `SlotsHeldWarning`, `SlotsHeldError` and ``loader.stats().memory`` then name file, line and
    function for each batch that is still held: of a framework, the call into it, such as that of
    ``fit``; in a thread of the framework's, its own line. ``on=False`` ends it.
    """
    if on:
        Debug.since_ns = Debug.since_ns or _ring.now_ns()
    _ring.note_takes(on)
    if not on:
        Debug.since_ns = 0  # last: engines are not asked any more


def callers_place() -> str:
    """Return the innermost line of the user's own code, else of a framework's, else "".

    Other threads' lines are not looked at: where C code calls this package there is none.
    """
    frame, _ = users_frame(frame_above(1))
    return (
        ""
        if frame is None
        else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    )


def from_here(place: str) -> str:
    """Return a place with its file's path relative to the working directory, if it is below."""
    with suppress(FileNotFoundError):  # the directory is gone
        return place.removeprefix(f"{Path.cwd()}/")
    return place


class LeaseTracker:
    """The lines that took the batches of one ring; the time of its take tells a batch."""

    def __init__(self) -> None:
        """Know of none."""
        self._places: dict[int, tuple[int, str]] = {}  # by slot: the last that was noted

    def note(self, slot: int, taken_ns: int) -> None:
        """Note the line that takes the batch in this slot now."""
        self._places[slot] = taken_ns, callers_place()

    def where_taken(self, taken_ns: int) -> str:
        """Say where the batch was taken that was taken at this time; nothing without `debug`."""
        if not Debug.since_ns:
            return ""
        places = dict(list(self._places.values()))  # in one step: other threads ask, too
        if taken_ns not in places:  # what Python takes is noted
            return IN_C if taken_ns >= Debug.since_ns else BEFORE
        return from_here(places[taken_ns]) or IN_C


def show_ages(ages_s: Sequence[float]) -> str:
    """Return ``3.2, 0.1``: how many seconds each of the first has been held."""
    shown = ", ".join(f"{age_s:.1f}" for age_s in ages_s[:AGES_SHOWN])
    return shown + (", …" if len(ages_s) > AGES_SHOWN else "")


def summed_up(places: Iterable[str]) -> str:
    """Return ``2 from train.py:41 in step, 1 from C code``, the most frequent first."""
    counts = Counter(place if place == BEFORE else f"from {place}" for place in places)
    return ", ".join(f"{count} {place}" for place, count in counts.most_common())
