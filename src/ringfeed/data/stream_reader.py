"""What reads streams in a worker, by the numbers of their elements.

A reader that is asked for the next element of a stream goes on. Asked for another, at the start of an epoch that goes
on or after the death of the worker that read the stream before, it begins at the newest state of the stream's own that
lies before that element, else at the start, and leaves out what comes before the element.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed.errors import StateError
from ringfeed.iterables import opening
from ringfeed.iterables.state_taker import StateTaker
from ringfeed.orders.replay import Replay
from ringfeed.orders.rng import reseed
from ringfeed.ring._ring import now_ns
from ringfeed.ring.failure import End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.data.base import Reader
    from ringfeed.data.streams import StreamSource
    from ringfeed.iterables.states import State

REMEDY = "give the iterable state_dict() and load_state_dict(), whose states are JSON"


class StreamReader:
    """The elements of all iterables, by their numbers."""

    def __init__(self, source: StreamSource, iterables: tuple[Any, ...], reader: Reader) -> None:
        self._source, self._reader = source, reader
        self._iterables = iterables
        self._epoch: int | None = None  # that the streams are read for
        self._run = 0  # likewise
        self._streams: list[_Stream] = []
        whole = reader.by(reader.writer.batch, self._element, source.rows, failed=self._failed)
        self._fill = whole if source.whole else reader.by(reader.writer.samples, self._element, failed=self._failed)

    def read_claim(self) -> bool:
        """Fill the reader's claim."""
        states = self._reader.port.states
        if states is not None and states.run != self._run:
            self._epoch, self._run = None, states.run  # this epoch was begun anew, perhaps from a state
        if (row := self._reader.end.killed) is not None:
            number = self._reader.end.indices[row]
            self._stream(number).bar = number // len(self._iterables)  # before an element that ends each process
        try:
            return self._fill()
        except KeyboardInterrupt:
            epoch, self._epoch = self._epoch, None  # all are made anew where another Ctrl-C comes in here
            for stream in self._streams:
                stream.break_off()
            self._epoch = epoch
            raise

    def _element(self, number: int) -> Any:
        """Return an element; End at the end, whose ``__cause__`` is what has ended the iterable before its time."""
        return self._stream(number).element(number // len(self._iterables))

    def _stream(self, number: int) -> _Stream:
        count, epoch = len(self._iterables), self._reader.context.epoch
        if self._epoch != epoch:
            streams = [self._made(place, one, epoch) for place, one in enumerate(self._iterables)]
            for at, barred in self._reader.port.bars:
                if at == epoch:
                    streams[barred % count].bar = barred // count
            self._streams, self._epoch = streams, epoch
        return self._streams[number % count]

    def _failed(self, row: int, index: int, error: BaseException) -> None:
        """Record why an element is not there; raise what no element has raised."""
        if any(stream.has_warned(error) for stream in self._streams):
            raise error
        self._reader.failed(row, index, error)

    def _made(self, place: int, iterable: Any, epoch: int) -> _Stream:
        port, count = self._reader.port, len(self._iterables)
        taker = StateTaker(port.states, place, epoch, self._source.indices, port.ring.slots)

        def prepare(position: int) -> None:
            """Have the random numbers be those of an element; also of one that is only skipped."""
            self._reader.context.index = position * count + place
            if self._source.reseed:
                reseed(self._reader.context)

        def name(position: int) -> str:
            return self._source.describe(position * count + place)

        return _Stream(iterable, taker, prepare, name, is_here=port.is_consumer)


class _Stream:
    """One iterable, being read."""

    def __init__(
        self,
        iterable: Any,
        taker: StateTaker,
        prepare: Callable[[int], object],
        name: Callable[[int], str],
        *,
        is_here: bool,
    ) -> None:
        self.bar: int | None = None  # the position of an element that is not to be read
        self._iterable = iterable
        self._taker = taker
        self._prepare = prepare  # is called with the position of each element ahead of its reading
        self._name = name
        self._is_here = is_here  # in the user's own thread
        self._replay: Replay | None = None
        self._warning: UserWarning | None = None  # of the replay, made an error by the user
        self._restart()

    def _restart(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._asked = 0  # elements, the end included
        self._loaded_at: int | None = None  # the position where a state of its own has brought it
        self._ended = False
        self._error: BaseException | None = None  # that ended it

    def break_off(self) -> None:
        """Begin anew where Ctrl-C came, since how far it was read is unknown; one that has ended stays so."""
        if not self._ended or isinstance(self._error, KeyboardInterrupt):
            self._restart()

    def has_warned(self, error: BaseException) -> bool:
        """Whether no element has raised this, but the warning of a replay."""
        is_warning = error is self._warning
        self._warning = None  # its traceback keeps the loader
        return is_warning

    def element(self, position: int) -> Any:
        """Return an element; End for one that it does not have."""
        if position < self._asked:
            self._restart()
        if self._asked < position and not self._ended:
            self._go_to(position)
        if self._ended or (self.bar is not None and position >= self.bar):
            raise End from self._error
        return self._next()

    def _go_to(self, position: int) -> None:
        """Have the element of this position be the next, unless the iterable ends before."""
        try:
            self._begin_near(position if self.bar is None else min(position, self.bar))
            self._taker.pause()
            self._leave_out(position)
        except End:
            raise End from self._error
        self._taker.go_on(position)

    def _begin_near(self, position: int) -> None:
        """Begin at the newest state of its own that lies before a position, unless it has come as far already."""
        state = self._taker.find(position)
        if state is not None and state.read > self._asked:
            self._open(state)
        elif self._iterator is None:
            self._open()

    def _open(self, state: State | None = None) -> None:
        self._prepare(self._asked)
        try:
            self._iterator, owner = opening.begin(self._iterable, state)
        except BaseException as error:
            self._ended, self._error = True, error
            raise
        self._taker.begin(owner, state)
        if state is not None:
            self._loaded_at = state.read if owner is not None else None
            self._asked = self._loaded_at or 0

    def _leave_out(self, position: int) -> None:
        """Read up to a position."""
        note: Callable[[int, int], object] = partial(self._taker.note_skipped, now_ns())
        if self._is_here:
            if self._replay is None or not self._replay.is_told:
                self._replay = Replay(f"the elements before {self._name(position)} are read", REMEDY)
            note = self._replay.note
        try:
            while self._asked < position and not self._ended:
                self._note(note, position)
                self._next()
        finally:
            self._taker.note_skipped(0, 0, 0)

    def _note(self, note: Callable[[int, int], object], position: int) -> None:
        try:
            note(self._asked, position)
        except UserWarning as error:
            self._warning = error
            raise

    def _next(self) -> Any:
        position = self._asked
        if position == self.bar:
            self._end_at_bar()
        if self._iterator is None:
            self._open()
            assert self._iterator is not None
        self._asked += 1
        self._prepare(position)
        try:
            text = self._taker.take(position) if position >= self._taker.due else None
            element = next(self._iterator)
        except StopIteration:
            raise self._end(position) from None
        except BaseException as error:
            self._ended, self._error = True, error
            raise
        if text is not None:
            self._taker.keep(position, text)
        return element

    def _end_at_bar(self) -> NoReturn:
        self._asked += 1
        self._ended = True
        self._error = RuntimeError("what comes after an element that ended its workers cannot be read")
        raise End

    def _end(self, position: int) -> Exception:
        """Return what the end raises: an error where that cannot be, right behind a state of its own."""
        self._ended = True
        if position != self._loaded_at:
            return End()
        self._error = StateError(
            f"{self._name(position)} is not there after load_state_dict(), and it was there when the state was taken; "
            f"state_dict() does not say where the iterable is, or the iterable was changed since"
        )
        return self._error
