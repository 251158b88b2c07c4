"""What reads streams in a worker, by the numbers of their elements; `stream` reads each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._failure import End
from ringfeed.datasets import peekable
from ringfeed.datasets.state_recorder import StateRecorder
from ringfeed.datasets.stream import Stream
from ringfeed.orders.rng import reseed

if TYPE_CHECKING:
    from ringfeed.datasets.reader import Reader
    from ringfeed.datasets.stream_part import StreamPart
    from ringfeed.datasets.streams import StreamSource


class StreamReader:
    """The elements of all iterables, by their numbers."""

    def __init__(self, source: StreamSource, iterables: tuple[Any, ...], reader: Reader, *, ahead: int = 0) -> None:
        """``ahead``: so many batches may be read beyond those that have slots."""
        self._source, self._reader, self._ahead = source, reader, ahead
        self._iterables = iterables
        self._epoch: int | None = None  # that the streams are read for
        self._run = 0  # likewise
        self._streams: list[Stream] = []
        self._step = source.indices if source.part is None else source.part.step
        self._part = _part_of(source, reader)
        whole = reader.by(reader.writer.batch, self.element, source.rows, failed=self._failed)
        self._fill = whole if source.whole else reader.by(reader.writer.samples, self.element, failed=self._failed)

    def read_claim(self) -> bool:
        """Fill the reader's claim."""
        states = self._reader.port.states
        if states is not None and states.run != self._run:
            self.renew()
        if (row := self._reader.end.killed) is not None:
            for _, number in self._source.barred([], self._epoch or 0, row, self._reader.end.indices[row]):
                self.bar(number)
        try:
            if self._part is not None:
                numbers = self._reader.end.indices
                self._part.begin(self._stream(numbers[0]), numbers)
            return self._fill()
        except KeyboardInterrupt:
            epoch, self._epoch = self._epoch, None  # all are made anew where another Ctrl-C comes in here
            for stream in self._streams:
                stream.break_off()
            self._epoch = epoch
            raise

    def renew(self) -> None:
        """Read the iterables anew, as where the epoch was begun anew, perhaps from a state."""
        states = self._reader.port.states
        self._epoch, self._run = None, 0 if states is None else states.run

    def bar(self, number: int) -> None:
        """Read no further than to this element, which ends each process."""
        self._stream(number).bar = number // len(self._iterables)

    def element(self, number: int) -> Any:
        """Return an element; End at the end, whose ``__cause__`` is what has ended the iterable before its time."""
        if self._part is not None:
            return self._part.element(number)
        return self._stream(number).element(number // len(self._iterables))

    def _stream(self, number: int) -> Stream:
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
        if self._source.shows_end and self._streams[0].is_over and not isinstance(error, End | KeyboardInterrupt):
            error = _end_by(error)
        self._reader.failed(row, index, error)

    def _made(self, place: int, iterable: Any, epoch: int) -> Stream:
        port, count = self._reader.port, len(self._iterables)
        recorder = StateRecorder(port.states, place, epoch, self._step, port.ring.slots + self._ahead)

        def prepare(position: int) -> None:
            """Have the random numbers be those of an element; also of one that is only skipped."""
            self._reader.context.index = position * count + place
            if self._source.reseed:
                reseed(self._reader.context)

        def name(position: int) -> str:
            return self._source.describe(position * count + place)

        stream = Stream(iterable, recorder, prepare, name, is_here=port.is_consumer)
        stream.length = peekable.length_of(iterable) if self._source.is_planned else None
        return stream


def _part_of(source: StreamSource, reader: Reader) -> StreamPart | None:
    """Return what reads the part of one of several ranks."""
    if source.part is None:
        return None
    from ringfeed.datasets.stream_part import StreamPart  # noqa: PLC0415 - where there are several ranks

    return StreamPart(source.part, reader.context, reads_on=not source.is_planned, reseeds=source.reseed)


def _end_by(error: BaseException) -> End:
    """Return an end, as no later batch may be planned that would show what has ended the iterable."""
    end = End()
    end.__cause__ = error
    return end
