"""The order in which streams are read: a batch of each in turn, for as long as it has any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import length_of
from ringfeed.datasets.peekable import is_iterator
from ringfeed.errors import StateError
from ringfeed.orders.checks import check_fields, refuse
from ringfeed.orders.custom import MOST_STATES
from ringfeed.orders.sampler import Epoch, Sampler

if TYPE_CHECKING:
    from ringfeed.orders.permutation import Indices


class RoundRobinSampler(Sampler):
    """A batch of each stream in turn; their numbers have no end: only reading shows where it is."""

    order = "streams"
    why_no_length = "dataset is an iterable"

    def __init__(self, iterables: tuple[Any, ...], rows: int, *, is_planned: bool = False) -> None:
        """Give each of the iterables ``rows`` numbers a batch.

        ``is_planned``: a single one has as many as its ``len`` says.
        """
        self._iterables = iterables
        self._rows = rows
        self._is_planned = is_planned
        self.ends_unsaid = not is_planned
        self._read_by: int | None = None  # the epoch that has read what can be read once
        self.pure = len(iterables) == 1  # the more is planned, the more is in vain when one ends

    @property
    def length(self) -> int | None:
        """What ``len`` says of a single iterable; None where it says nothing."""
        return length_of(self._iterables[0]) if len(self._iterables) == 1 else None

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError for what is no state of so many iterables at this position."""
        count = len(self._iterables)
        if count == 1:
            super().check_state(start, state)
        elif state is not None or start:
            check_fields(state, given=0, read=count)
            turn, streams = state.get("turn"), [*range(count)]
            if not isinstance(turn, list) or any(turn.count(it) > (it in streams) for it in turn):
                what = f"a list of those of {streams} that have not ended"
                refuse(state, f"whose turn is {turn!r}, expected {what}")
            if (given := state["given"]) != start:
                refuse(state, f"whose given is {given}, expected the state's samples, {start}")

    def epoch(self, number: int, start: int = 0, state: Any = None) -> RoundRobinEpoch:
        """Return the numbers of an epoch; ValueError when an iterator would be read again."""
        once = next((iterable for iterable in self._iterables if is_iterator(iterable)), None)
        if once is not None and self._read_by is not None:
            raise ValueError(
                f"the dataset is an iterator ({type(once).__name__}) that epoch {self._read_by} "
                f"has read, and cannot be read again for epoch {number}; give a function that "
                "makes a new one, or an object whose __iter__ does"
            )
        self._read_by = number
        end = self.length if self._is_planned else None
        return RoundRobinEpoch(len(self._iterables), self._rows, start, state, end)


class RoundRobinEpoch(Epoch):
    """One pass over all streams, from which those that have ended are taken out."""

    def __init__(
        self, streams: int, rows: int, start: int = 0, state: Any = None, end: int | None = None
    ) -> None:
        """Begin after ``start`` elements; of several streams, where ``state`` says.

        ``end``: how many numbers a single one has; None: only reading shows that.
        """
        self._streams, self._rows, self._end = streams, rows, end
        read, turn = [start, *[0] * (streams - 1)], [*range(streams)]
        at_start = {"given": start, "read": read, "turn": turn}
        # Of the newest batches that are planned: how many elements of each stream come before, and
        # those that have not ended, the next one in front.
        self._states: list[dict[str, Any]] = [at_start if state is None else state]
        self._kept = MOST_STATES
        self._ended: dict[int, int] = {}  # streams, and the number that showed it

    def take(self, count: int) -> Indices:
        """Return the next numbers; of several streams, a multiple of a batch's rows."""
        rows = self._rows if self._streams > 1 else max(count, 1)
        batches = count // rows
        found, states = [np.empty(0, np.int64)], [self._states[-1]]
        while len(states) <= batches and (turn := self._left(states[-1])):
            stream, read = turn.pop(0), [*states[-1]["read"]]
            first = read[stream]
            last = first + rows if self._end is None else max(first, min(first + rows, self._end))
            found.append(np.arange(first, last, dtype=np.int64) * self._streams + stream)
            read[stream] = last
            given = states[-1]["given"] + rows
            states.append({"given": given, "read": read, "turn": [*turn, stream]})
        # What is planned at once is behind what the user has.
        self._kept = max(self._kept, 2 * batches)
        taken = np.concatenate(found)
        self._states = [*self._states[:-1], *states][-self._kept :]  # last: see `Epoch.take`
        return taken

    def _left(self, state: dict[str, Any]) -> list[int]:
        return [stream for stream in state["turn"] if stream not in self._ended]

    def state(self, position: int) -> dict[str, Any] | None:
        """Return how far each of several streams was read at a position, and which are not over.

        StateError for a position so far behind what is planned that this is forgotten.
        """
        if self._streams == 1:
            return None
        found = next((state for state in self._states if state["given"] == position), None)
        if found is None:
            raise StateError(
                f"the state of {self._streams} iterables is kept for the newest {self._kept} "
                f"batches that are read ahead, and element {position} lies further back; take the "
                "state earlier"
            )
        return found

    def counts(self, position: int) -> list[int]:
        """Return how many elements of each stream were handed out at a position."""
        state = self.state(position)
        return [position] if state is None else state["read"]

    def end(self, number: int) -> bool:
        """Take out the stream of this element; False where another number had shown its end."""
        return self._ended.setdefault(number % self._streams, number) == number

    @property
    def is_over(self) -> bool:
        """Whether all have ended."""
        return not self._left(self._states[-1])
