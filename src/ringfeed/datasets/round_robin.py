"""The order in which streams are read: a batch of each in turn, for as long as it has any."""

from __future__ import annotations

from collections import deque
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
            if not isinstance(turn, list) or any(
                turn.count(one) > (one in streams) for one in turn
            ):
                refuse(
                    state,
                    (
                        f"whose turn is {turn!r}, expected a list of those of {streams} that have "
                        "not ended"
                    ),
                )
            if state["given"] != start:
                refuse(
                    state, f"whose given is {state['given']}, expected the state's samples, {start}"
                )

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
        self._rows = rows
        self._end = end
        self._read = [start] if state is None else [*state["read"]]  # elements of each
        self._read += [0] * (streams - len(self._read))
        self._turn = [*range(streams)] if state is None else [*state["turn"]]
        """Those that have not ended, the next one in front."""
        self._given = start
        self._states: deque[dict[str, Any]] = deque()
        self._kept = MOST_STATES
        self._note(start, self._read, self._turn)
        self._ended: dict[int, int] = {}  # streams, and the number that showed it

    def take(self, count: int) -> Indices:
        """Return the numbers of the next batches; ``count`` is a multiple of a batch's rows."""
        if not self._turn:
            return np.empty(0, np.int64)
        if len(self._read) == 1:
            return self._take_of_one(count)
        given, read, turn, rows = self._given, [*self._read], [*self._turn], self._rows
        self._kept = max(
            self._kept, 2 * count // rows
        )  # what is planned at once is behind what the user has
        found = [np.empty(0, np.int64)]
        for _ in range(count // rows):
            stream = turn.pop(0)
            turn.append(stream)
            found.append(
                np.arange(read[stream], read[stream] + rows, dtype=np.int64) * len(read) + stream
            )
            read[stream] += rows
            given += rows
            self._note(given, read, turn)
        taken = np.concatenate(found)
        self._given, self._read, self._turn = given, read, turn  # last: see `Epoch.take`
        return taken

    def _take_of_one(self, count: int) -> Indices:
        first = self._read[0]
        last = first + count if self._end is None else max(first, min(first + count, self._end))
        taken = np.arange(first, last, dtype=np.int64)
        self._read = [last]
        return taken

    def _note(self, given: int, read: list[int], turn: list[int]) -> None:
        if len(read) > 1:
            while self._states and self._states[-1]["given"] >= given:  # Ctrl-C has kept that back
                self._states.pop()
            self._states.append({"given": given, "read": [*read], "turn": [*turn]})
            if len(self._states) > self._kept:
                self._states.popleft()

    def state(self, position: int) -> dict[str, Any] | None:
        """Return how far each of several streams was read at a position, and which are not over.

        StateError for a position so far behind what is planned that this is forgotten.
        """
        if len(self._read) == 1:
            return None
        known = [*self._states]  # at once: another thread may plan
        found = next((one for one in known if one["given"] == position), None)
        if found is None:
            raise StateError(
                f"the state of {len(self._read)} iterables is kept for the newest {self._kept} "
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
        stream = number % len(self._read)
        is_first = self._ended.setdefault(stream, number) == number
        self._turn = [other for other in self._turn if other != stream]
        return is_first

    @property
    def is_over(self) -> bool:
        """Whether all have ended."""
        return not self._turn
