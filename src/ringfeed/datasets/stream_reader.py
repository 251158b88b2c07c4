"""Reads iterables in a worker, by the numbers of their elements.

    Stream         one iterable; each of its elements comes once
    StreamReader   all of a dataset's
    StreamPart     what one of several ranks takes: it reads all elements, and keeps its own

A stream may be asked for an element that lies behind it, as after a Ctrl-C, or far ahead, as where
an epoch goes on or the worker died that read it before. Then it begins at the newest state of its
own that lies before the element, else at the start, and leaves out what comes before the element.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed._classes import copied, length_of
from ringfeed._failure import End, is_raised_here
from ringfeed.datasets import peekable
from ringfeed.datasets.states import HEAD, REMEDY, State, StateRecorder, StreamStates
from ringfeed.errors import FunctionError, StateError
from ringfeed.orders.replay import Replay
from ringfeed.orders.rng import SampleContext, reseed
from ringfeed.ring._ring import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.datasets.reader import Reader
    from ringfeed.datasets.streams import StreamSource
    from ringfeed.orders.shard import Part


class Stream:
    """One iterable, being read."""

    def __init__(
        self,
        source: StreamSource,
        reader: Reader,
        place: int,
        iterable: Any,
        recorder: StateRecorder,
    ) -> None:
        """Read nothing yet; ``place``: of the iterable among all of the source."""
        self.bar: int | None = None  # the position of an element that is not to be read
        # By which all ranks have planned.
        self._length = length_of(iterable) if source.is_planned else None
        self._iterable = iterable
        self._recorder = recorder
        self._source, self._reader, self._place = source, reader, place
        self._replay: Replay | None = None
        self._restart()

    def _restart(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._asked = 0  # elements, the end included
        self._loaded_at: int | None = None  # the position where a state of its own has brought it
        self.is_over = False  # it has no more elements
        self._error: BaseException | None = None  # that ended it
        # The same, to be raised in the place of the next element.
        self._late: FunctionError | None = None

    def _number(self, position: int) -> int:
        return position * self._source.streams + self._place

    def _name(self, position: int) -> str:
        return self._source.describe(self._number(position))

    def _prepare(self, position: int) -> None:
        """Set the random numbers to those of an element; also of one that is only skipped."""
        self._reader.context.index = self._number(position)
        if self._source.reseed:
            reseed(self._reader.context)

    def break_off(self) -> None:
        """Begin anew after Ctrl-C, since it may have come amid an element; an end stays one."""
        if not self.is_over or isinstance(self._error, KeyboardInterrupt):
            self._restart()

    def element(self, position: int) -> Any:
        """Return an element; End for one that it does not have."""
        if position != self._asked:
            self.go_to(position)
        if self._late is not None:
            self.raise_end()
        if self.is_over or (self.bar is not None and position >= self.bar):
            raise End from self._error
        return self._next()

    # ---- elements of other ranks ----

    def is_near(self, position: int, reach: int) -> bool:
        """Whether it is read already, up to fewer than ``reach`` elements ahead of a position."""
        is_begun = self._iterator is not None or self._recorder.find(position) is None
        return is_begun and self._asked <= position < self._asked + reach

    def passed(self, end: int) -> Iterator[tuple[int, Any]]:
        """Read up to a position; what an element raises comes when the next is asked for."""
        while self._asked < end and not self.is_over:
            position = self._asked
            try:
                element = self._next()
            except End:
                return
            except Exception as error:  # noqa: BLE001 - of the user's
                self._late = self._in_its_place(position, error)
                return
            yield position, element

    def _in_its_place(self, position: int, error: Exception) -> FunctionError:
        """Return an error that says which element raised it."""
        if isinstance(error, FunctionError):
            return error
        text = f"{self._name(position)} raised {type(error).__qualname__}: {error}"
        late = FunctionError(text.removesuffix(": "))
        late.__cause__ = error
        return late

    def raise_end(self) -> NoReturn:
        """Raise why there are no more elements."""
        late, self._late = self._late, None
        if late is not None:
            raise late
        raise End from self._error

    # ---- as far as an element ----

    def go_to(self, position: int) -> None:
        """Read up to a position, unless the iterable ends before; begin anew for one behind."""
        if position < self._asked:
            self._restart()
        if self._asked == position or self.is_over:
            return
        state = self._recorder.find(position if self.bar is None else min(position, self.bar))
        with suppress(End):
            if state is not None and state.read > self._asked:
                self._open(state)
            elif self._iterator is None:
                self._open()
            self._recorder.pause()
            self._leave_out(position)
            self._recorder.go_on(position)

    def _open(self, state: State | None = None) -> None:
        """Begin the iterable, at a state of its own where it has one."""
        self._prepare(self._asked)
        try:
            self._iterator, owner = peekable.begin(self._iterable, state)
        except BaseException as error:
            self._end(error)
            raise
        if state is not None:
            self._loaded_at = None if owner is None else state.read
            self._asked = self._loaded_at or 0
        self._recorder.begin(owner, self._asked)

    def _leave_out(self, position: int) -> None:
        """Read up to a position."""
        note: Callable[[int, int], object] = partial(self._recorder.note_skipped, now_ns())
        if self._reader.port.is_consumer:
            if self._replay is None or not self._replay.is_told:
                what = f"the elements before {self._name(position)} are read"
                self._replay = Replay(what, REMEDY)
            note = self._replay.note
        try:
            while self._asked < position and not self.is_over:
                note(self._asked, position)
                self._next()
        finally:
            self._recorder.note_skipped(0, 0, 0)

    def _next(self) -> Any:
        position = self._asked
        if self._iterator is None and position != self.bar:
            self._open()
        self._asked += 1
        if position == self.bar:
            text = "what comes after an element that ended its workers cannot be read"
            self._end(RuntimeError(text))
            raise End
        self._prepare(position)
        try:
            state = self._recorder.take(position) if position >= self._recorder.due else None
            element = next(self._iterator)  # type: ignore[arg-type]
        except StopIteration:
            why = self._why_not(position)
            self._end(why)
            raise (End() if why is None else why) from None
        except BaseException as error:
            self._end(error)
            raise
        if state is not None:
            self._recorder.keep(position, state)
        return element

    def _end(self, error: BaseException | None) -> None:
        self.is_over, self._error = True, error

    def _why_not(self, position: int) -> Exception | None:
        """Say why the iterable cannot end here; None where it can."""
        if self._length is not None and position < self._length:
            return FunctionError(
                f"the iterable ended after {position} elements, and len() says {self._length}, by "
                "which the batches of all ranks were planned; correct len(), or leave __len__ out "
                "and give drop_remainder=True"
            )
        if position != self._loaded_at:
            return None
        return StateError(
            f"{self._name(position)} is not there after load_state_dict(), and it was there when "
            "the state was taken; state_dict() does not say where the iterable is, or the "
            "iterable was changed since"
        )


class StreamReader:
    """The elements of all iterables, by their numbers."""

    def __init__(
        self, source: StreamSource, iterables: tuple[Any, ...], reader: Reader, *, ahead: int = 0
    ) -> None:
        """``ahead``: so many batches may be read beyond those that have slots."""
        self._source, self._reader, self._ahead = source, reader, ahead
        self._iterables = iterables
        # Where none can be kept, there is room for their refusal.
        count = len(iterables)
        self._states = reader.port.states or StreamStates(HEAD * count, count)
        self._epoch: int | None = None  # that the streams are read for
        self._run = 0
        self._streams: list[Stream] = []
        self._part: StreamPart | None = None
        if source.part is not None:
            on = not source.is_planned
            self._part = StreamPart(source.part, reader.context, reads_on=on, reseeds=source.reseed)
        self._fill = reader.by_element(self.element, self._failed)

    def read_claim(self) -> bool:
        """Fill the reader's claim."""
        if self._states.run != self._run:
            self.renew()
        try:
            if self._part is not None:
                numbers = self._reader.end.indices
                self._part.begin(self._stream(numbers[0]), numbers)
            return self._fill()
        except KeyboardInterrupt:
            # Another Ctrl-C that comes in here finds no epoch, and all streams are made anew.
            epoch, self._epoch = self._epoch, None
            for stream in self._streams:
                stream.break_off()
            self._epoch = epoch
            raise

    def renew(self) -> None:
        """Read the iterables anew, as where the epoch was begun anew, perhaps from a state."""
        self._epoch, self._run = None, self._states.run

    def bar(self, number: int) -> None:
        """Read no further than to this element, which ends each process."""
        self._stream(number).bar = number // len(self._iterables)

    def element(self, number: int) -> Any:
        """Return an element; End at the end, caused by the error that ended the iterable."""
        if self._part is not None:
            return self._part.element(number)
        return self._stream(number).element(number // len(self._iterables))

    def _stream(self, number: int) -> Stream:
        count, epoch = len(self._iterables), self._reader.context.epoch
        if self._epoch != epoch:
            self._streams = [*map(self._begun, range(count), self._iterables)]
            for at, barred in self._reader.port.bars:
                if at == epoch:
                    self._streams[barred % count].bar = barred // count
            self._epoch = epoch  # last: Ctrl-C may come before
        return self._streams[number % count]

    def _begun(self, place: int, iterable: Any) -> Stream:
        """Return the stream of an iterable, of this epoch."""
        source, part = self._source, self._source.part
        step = source.indices if part is None else part.step
        epoch, slots = self._reader.context.epoch, self._reader.port.ring.slots + self._ahead
        recorder = StateRecorder(self._states, place, epoch, step, slots)
        return Stream(source, self._reader, place, iterable, recorder)

    def _failed(self, row: int, index: int, error: BaseException) -> None:
        """Record why an element is not there; raise what no element has raised."""
        if isinstance(error, UserWarning) and is_raised_here(error):  # of a replay
            raise error
        is_error = not isinstance(error, End | KeyboardInterrupt)
        ends_plan = self._source.is_planned and self._streams[0].is_over
        if self._source.skips and is_error and ends_plan:
            # What ends it is no sample that is left out, and no later batch may be planned that
            # would show it.
            error, cause = End(), error
            error.__cause__ = cause
        self._reader.failed(row, index, error)


# ---- for one of several ranks ----


def check_part(part: Part, iterables: tuple[Any, ...]) -> None:
    """Raise ValueError where the batches of all ranks cannot be as many."""
    rank = f"rank {part.rank} of {part.world_size}"
    if len(iterables) > 1:
        raise ValueError(
            f"{rank} of {len(iterables)} iterables in turn: only reading all of them shows which "
            "have ended; give each rank its own of them, leave shard= out, and count the steps of "
            "an epoch with repeat()"
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
    """Reads what lies around a batch of this rank, when the first of its rows is asked for.

    elements         0 1 2 3 | 4 5 6 7 | 8 9      global batches of 2 ranks with 2 rows each
    rank 1 keeps         2 3 |     6 7 |     9 8

    With ``len()`` the batches are planned as those of any dataset: see `orders.shard`; on ranks
    that miss elements of an iterable that ends earlier, that is an error. Without, a batch is
    handed out when its global batch was read to its end: the last one, which is not full, is left
    out on every rank. So all ranks have as many batches, and no rank asks another.
    """

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
