"""What one of several ranks takes of an iterable: it reads all elements, and keeps its own.

    elements         0 1 2 3 | 4 5 6 7 | 8 9      global batches of 2 ranks with 2 rows each
    rank 1 keeps         2 3 |     6 7 |     9 8

With ``len()`` the batches are planned as those of any dataset: see `orders.shard`; on ranks that
miss elements of an iterable that ends earlier, that is an error. Without, a batch is handed out
when its global batch was read to its end: the last one, which is not full, is left out on every
rank. So all ranks have as many batches, and no rank asks another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._classes import copied, length_of
from ringfeed.orders.rng import SampleContext, reseed

if TYPE_CHECKING:
    from ringfeed.datasets.stream_reader import Stream
    from ringfeed.orders.shard import Part

_OUT = "leave shard= out"


def check_part(part: Part, iterables: tuple[Any, ...]) -> None:
    """Raise ValueError where the batches of all ranks cannot be as many."""
    rank = f"rank {part.rank} of {part.world_size}"
    if len(iterables) > 1:
        raise ValueError(
            f"{rank} of {len(iterables)} iterables in turn: only reading all of them shows which "
            f"have ended; give each rank its own of them, {_OUT}, and count the steps of an epoch "
            "with repeat()"
        )
    if part.uneven != "drop" and length_of(iterables[0]) is None:
        raise ValueError(
            f"{rank} of an iterable without len(): where it ends is only seen when the batches "
            f"before were handed out, too late for uneven={part.uneven!r}; give "
            "drop_remainder=True, which leaves out a last global batch that is not full, or give "
            "the iterable __len__"
        )


def suspects(part: Part, row: int, number: int, *, reads_on: bool) -> range:
    """Return the elements that a worker reads at a row: at the first row, other ranks' as well."""
    if row:
        return range(number, number if reads_on else number + 1)
    first = number - part.rank * part.rows
    return (
        range(first, first + part.step)
        if reads_on
        else range(max(number - part.step + part.rows, 0), number + 1)
    )


class StreamPart:
    """Reads what lies around a batch of this rank, when the first of its rows is asked for."""

    def __init__(
        self, shard: Part, context: SampleContext, *, reads_on: bool, reseeds: bool
    ) -> None:
        """``reads_on``: to the end of each global batch, before its batch is handed out."""
        self._shard = shard
        self._context = context
        self._reads_on = reads_on
        self._reseeds = reseeds

    def begin(self, stream: Stream, numbers: list[int]) -> None:
        """Begin a batch of these elements; the last may come twice, as ``uneven`` says."""
        self._stream = stream
        self._numbers = numbers
        self._is_short = False
        self._twice = numbers[-1] if len(numbers) > 1 and numbers[-1] <= numbers[-2] else None
        # Copies of elements that were read ahead, each with its random numbers.
        self._kept: dict[int, tuple[Any, Any]] = {}

    def _read_around(self, first: int, wanted: set[int | None]) -> None:
        """Read up to the batch, or to the end of its global batch; keep what is wanted of that."""
        shard, stream, end = self._shard, self._stream, first
        if not stream.is_near(first, shard.step):
            stream.go_to(first)
        if self._reads_on:
            end += (shard.world_size - shard.rank) * shard.rows
        for position, element in stream.passed(end):
            if position in wanted:
                self._kept[position] = copied(element), self._context.index
        self._is_short = self._reads_on and stream.is_over

    def element(self, number: int) -> Any:
        """Return an element of the batch."""
        numbers, self._numbers = self._numbers, []
        if numbers:
            self._read_around(numbers[0], {*numbers} if self._reads_on else {self._twice})
        if self._is_short:
            self._stream.raise_end()
        if number in self._kept:
            # What it has drawn goes on.
            element, self._context.index = self._kept.pop(number)
            if self._reseeds:
                reseed(self._context)
            return element
        element = self._stream.element(number)
        if number == self._twice:
            self._kept[number] = copied(element), copied(self._context.index)
        return element
