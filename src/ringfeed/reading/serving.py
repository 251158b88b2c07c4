"""The process that reads a stream for all workers: it reads as far ahead as the store has room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._failure import End, encode
from ringfeed._units import show_bytes
from ringfeed.datasets.reader import Reader
from ringfeed.errors import FunctionError
from ringfeed.orders.rng import installed
from ringfeed.reading import _words
from ringfeed.reading.elements import Packer
from ringfeed.reading.sizes import REGION
from ringfeed.reading.store import ELEMENT, END, ERROR, Store, TooLargeError
from ringfeed.ring._ring import now_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Port
    from ringfeed.datasets.stream_reader import StreamReader
    from ringfeed.reading.sizes import Run

LATE_NS = 200_000  # since elements were kept last: then they are, also where more could be written together
LOOK_NS = 50_000_000  # a process that waits for another looks so often whether the ring has stopped


class StreamServer(Reader):
    """A worker that claims nothing: it reads the elements that the others claim."""

    stream: StreamReader
    """What reads the iterable; set when the source is opened."""

    def __init__(self, source: Source, dataset: Any, port: Port, store: Store, max_attempts: int) -> None:
        """Read nothing yet; an element that has ended so many readers is given up."""
        self.store = store
        self._max_attempts = max_attempts
        self._packer = Packer()
        self._run: Run | None = None
        self._next = self._limit = 0
        self._kept_ns = 0
        super().__init__(source, dataset, port)

    def serve(self, version: int, *, claimed: bool = False) -> bool:  # noqa: ARG002 - it claims nothing
        """Read what is asked for, until the ring stops."""
        self.begin()
        before = installed.context
        try:
            installed.context = self.context
            while not _words.is_stopped(self.port.ring):
                self._read_or_rest()
        finally:
            installed.context = before
        return False

    def _read_or_rest(self) -> None:
        asked, told = self.store.asked, self.store.told()
        if told is not None and told != self._run:
            self._go_to(told)
        if self._run is None or self.store.is_over or not self._has_room(self._run):
            self.store.rest(asked, self._run, LOOK_NS)
        else:
            self._read(self._run)

    def _go_to(self, run: Run) -> None:
        """Begin a run, or go on where a reader has died."""
        self._run = run
        self._next, self._limit = self.store.begin(run), 0
        self.context.epoch = run.epoch
        self.stream.renew()

    def _has_room(self, run: Run) -> bool:
        if self._next >= self._limit:
            self._limit = self.store.limit(run)
        return self._next < self._limit

    def _read(self, run: Run) -> None:
        """Read the next element; it is kept at once, or a little later together with others."""
        number = self._next
        if (deaths := self.store.note_reading(number)) >= self._max_attempts:
            kind, parts = ERROR, self._give_up(number, deaths)
        else:
            kind, parts = self._element(number)
        try:
            self.store.put(run, number, kind, parts)
        except TooLargeError as error:
            self.store.put(run, number, ERROR, self._too_large(number, str(error)))
        self._next = number + 1
        if self.store.is_full or self._is_wanted(run) or now_ns() - self._kept_ns > LATE_NS:
            self.store.flush(run)
            self._kept_ns = now_ns()

    def _is_wanted(self, run: Run) -> bool:
        """Whether a batch is complete, or the next element has no room."""
        return self._next >= self._limit or (self._next - run.start) % self.store.sizes.rows == 0

    def _element(self, number: int) -> tuple[int, Sequence[Buffer]]:
        """Return what there is of an element, pickled before the next is read; and what that is."""
        end, ring = self.end, self.port.ring
        _words.show_reading(ring, end.number, number)
        try:
            element = self.stream.element(number)
        except End as error:
            cause = error.__cause__
            return END, [encode(End()) + (encode(cause)[1:] if cause is not None else b"")]
        except BaseException as error:  # noqa: BLE001 - of the user's; SystemExit, too
            return ERROR, [encode(error)]
        finally:
            _words.show_read(ring, end.number)
        try:
            return ELEMENT, self._packer.pack((element, self.context.index))
        except Exception as error:  # noqa: BLE001 - of objects of any package
            failure = FunctionError(unpicklable(self.source.describe(number), error))
            failure.__cause__ = error
            return ERROR, [encode(failure)]

    def _give_up(self, number: int, deaths: int) -> Sequence[Buffer]:
        """Return why an element is not there that has ended its readers; nothing after it is read."""
        self.stream.bar(number)
        how_often = "once" if deaths == 1 else f"{deaths} times"
        text = f"{self.source.describe(number)} ended its reader {how_often}; try it with workers=0"
        return [encode(FunctionError(text))]

    def _too_large(self, number: int, size: str) -> Sequence[Buffer]:
        text = (
            f"{self.source.describe(number)} is of {size}, and the {self.store.sizes.rows} elements of a batch may be "
            f"of {show_bytes(REGION)}; make batch_size= smaller, or give workers=1"
        )
        return [encode(FunctionError(text))]


def unpicklable(name: str, error: Exception) -> str:
    """Say why an element cannot be sent from the process that reads it to those that transform it."""
    return (
        f"{name} cannot be pickled, and one process reads for all workers: {type(error).__qualname__}: {error}; yield "
        f"what can be pickled, or give workers=1"
    )
