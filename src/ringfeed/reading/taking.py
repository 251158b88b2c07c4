"""What a worker takes the elements out of that the rows of its claims are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed._failure import End, Kind, decode
from ringfeed.datasets.reader import Reader
from ringfeed.reading import _words
from ringfeed.reading.elements import unpack
from ringfeed.reading.serving import LOOK_NS
from ringfeed.reading.store import END, ERROR, Store

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Port
    from ringfeed.datasets.streams import StreamSource


class StoreReader(Reader):
    """A worker's Reader, whose elements another process reads."""

    def __init__(self, source: Source, dataset: Any, port: Port, store: Store) -> None:
        """Prepare to fill what the port's end claims, of elements of the store."""
        self.store = store
        super().__init__(source, dataset, port)


class StoredElements:
    """The elements of a store, by their numbers, in the place of the stream."""

    def __init__(self, source: StreamSource, reader: StoreReader) -> None:
        """Wait for none yet."""
        self._reader = reader
        self._store = reader.store
        self._run = 0
        whole = reader.by(reader.writer.batch, self.element, source.rows)
        self._fill = whole if source.whole else reader.by(reader.writer.samples, self.element)

    def read_claim(self) -> bool:
        """Fill the reader's claim, once its elements are there; False where it was cancelled."""
        return self._wait(self._reader.end.indices) and self._fill()

    def _wait(self, numbers: list[int]) -> bool:
        """Wait until all of a claim's elements are there: outside of its rows, so that none is to blame for it."""
        claim, store = self._reader.end.claim_address, self._store
        run = self._run = store.run
        if _words.is_over(claim):  # after the look at the run, which is told when those before were cancelled
            return False
        assert self._reader.port.worker is not None
        store.want(self._reader.port.worker[0], run, numbers[-1])
        missing = [number for number in numbers if not store.has(run, number)]
        if not missing:
            return True
        _words.begin_wait(claim)
        for number in missing:
            while not store.has(run, number):
                if _words.is_over(claim):
                    return False
                store.wait(run, number, LOOK_NS)
        _words.end_wait(claim)
        return True

    def element(self, number: int) -> Any:
        """Return an element; raises what it has raised, End where the iterable has ended before it."""
        kind, content = self._store.get(self._run, number)
        if kind == END:
            self._end(content)
        if kind == ERROR:
            error = decode(bytes(content)).error
            assert error is not None
            raise error
        element, self._reader.context.index = unpack(content)  # with what it has drawn, which goes on
        return element

    @staticmethod
    def _end(content: bytearray) -> NoReturn:
        if len(content) == 1:
            raise End
        raise End from decode(bytes([Kind.ERROR]) + content[1:]).error
