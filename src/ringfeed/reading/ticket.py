"""One of the claims that a worker holds, and the samples of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.datasets.base import Composed
from ringfeed.datasets.reader import Reader
from ringfeed.orders.rng import SampleContext
from ringfeed.reading import _claims
from ringfeed.reading.fetching import Fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.ring._ring import WorkerEnd


class Fetched:
    """In the place of the user's dataset while rows are written: gives what was read, row after row."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._context: SampleContext
        self._rest: Iterator[Fetch] = iter(())

    def begin(self, fetches: list[Fetch], context: SampleContext) -> None:
        """Give these from now on; ``context`` is that of the thread that writes them."""
        self._context, self._rest = context, iter(fetches)

    def __getitem__(self, index: int) -> Any:
        """Return the next sample, or raise what came in its place; its random numbers go on."""
        fetch = next(self._rest)
        self._context.index = fetch.context.index
        if fetch.error is not None:
            raise fetch.error
        return fetch.sample


class Ticket:
    """Room for a claim. It is used again, unless its claim was broken off while samples were in flight."""

    def __init__(self, reader: Reader) -> None:
        """Be one more end of the reader's worker, with a Reader that writes what was read."""
        self.end: WorkerEnd = reader.end.another()
        self.address = self.end.claim_address
        self._fetched = Fetched()
        sent = self._fetched if reader.functions is None else Composed(self._fetched, reader.functions)
        self._writer = Reader(reader.source, sent, reader.port._replace(end=self.end))
        self.fetches: list[Fetch] = []
        self.missing = 0  # of them
        self.is_over = self.is_writing = False

    def begin(self) -> list[Fetch]:
        """Return what is to be read for the rows of a new claim."""
        end, source = self.end, self._writer.source
        rows = _claims.rows_to_read(self.address)
        contexts = [SampleContext(source.seed, end.epoch, source.number_of(index)) for _, index in rows]
        self.fetches = [Fetch(self, row, context) for (row, _), context in zip(rows, contexts, strict=True)]
        self.missing = len(rows)
        return self.fetches

    def show(self) -> None:
        """Have the worker's line show this claim, at its first sample that has not come."""
        row = next((fetch.row for fetch in self.fetches if not fetch.is_done), 0)
        _claims.show(self.address, row)

    def write(self) -> bool:
        """Write the rows, recording what has failed in the claim's failure record; False when it was cancelled."""
        writer = self._writer
        self._fetched.begin(self.fetches, writer.context)
        timed = _claims.timed_row(self.address)
        _claims.note_read(self.address, sum(fetch.took_ns for fetch in self.fetches if fetch.row == timed))
        try:
            return bool(writer.fill())
        except BaseException as error:
            if writer.port.is_consumer:
                raise
            for row in range(len(self.end.indices)):  # it was raised outside of any
                self.end.fail(row, writer.encoded(error))
            return True

    def clear(self) -> None:
        """Be ready for another claim."""
        self.fetches, self.is_writing = [], False
        self._fetched.begin([], self._writer.context)
