"""The claims that a worker holds, and the samples that are in flight for them.

The thread that claims calls `begin`; the thread that has read a claim's last sample writes its rows
and publishes it. A death blames no sample, since any may be at fault. So a ticket that has cost
`ALONE_AFTER` workers is read with nothing else in flight, sample by sample, and then a death has
one sample to blame.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ringfeed.datasets.base import Composed
from ringfeed.datasets.reader import Reader
from ringfeed.errors import WorkerError
from ringfeed.orders.rng import SampleContext
from ringfeed.reading import _claims
from ringfeed.reading.fetching import Fetch
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.reading.fetching import Fetcher
    from ringfeed.ring._ring import WorkerEnd

LOOK_S = 0.05  # a worker with samples in flight looks so often whether their epoch was broken off
ALONE_AFTER = 2  # deaths
AHEAD = 4  # claimed beyond the samples in flight, so that the next begins at once: one for so many


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
        sent = (
            self._fetched if reader.functions is None else Composed(self._fetched, reader.functions)
        )
        self._writer = Reader(reader.source, sent, reader.port._replace(end=self.end))
        self.fetches: list[Fetch] = []
        self.missing = 0  # of them
        self.is_over = self.is_writing = False

    def begin(self) -> list[Fetch]:
        """Return what is to be read for the rows of a new claim."""
        end, source = self.end, self._writer.source
        rows = _claims.rows_to_read(self.address)
        contexts = [
            SampleContext(source.seed, end.epoch, source.number_of(index)) for _, index in rows
        ]
        self.fetches = [
            Fetch(self, row, context) for (row, _), context in zip(rows, contexts, strict=True)
        ]
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
        _claims.note_read(
            self.address, sum(fetch.took_ns for fetch in self.fetches if fetch.row == timed)
        )
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


class Window:
    """What one worker holds. Its lock is held for a few steps at a time; `begin` and the waits are one thread's."""

    def __init__(self, reader: Reader, most: int, *, writes_here: bool) -> None:
        """Have ``most`` samples in flight; ``writes_here``: rows are written in `write_all`, by the caller's thread."""
        self.fetcher: Fetcher  # set before the first claim
        self._reader = reader
        self._most = most + max(1, most // AHEAD)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._writing = (
            threading.Lock()
        )  # or the line, which names one row, would name another thread's
        self._open: dict[Ticket, None] = {}  # in the order of their claims
        self._idle: list[Ticket] = []
        self._asked = 0  # samples that have not come back
        self._published_ns = 0
        self._newest: Ticket
        self._complete: SimpleQueue[Ticket] | None = SimpleQueue() if writes_here else None

    # ---- claims ----

    def ticket(self) -> Ticket:
        """Return room for a claim."""
        with self._lock:
            return self._idle.pop() if self._idle else Ticket(self._reader)

    def give_back(self, ticket: Ticket) -> None:
        """Take back a ticket that holds no claim."""
        with self._lock:
            self._idle.append(ticket)

    @property
    def is_empty(self) -> bool:
        """Whether no claim is held."""
        return not self._open

    @property
    def has_room(self) -> bool:
        """Whether more samples may be asked for."""
        return self._asked < self._most

    def begin(self, ticket: Ticket) -> None:
        """Read the samples of a new claim beside others; alone, where it has cost workers."""
        fetches = ticket.begin()
        with self._lock:
            self._newest = ticket
            self._open[ticket] = None
            self._show()
        if not fetches:
            self._complete_one(ticket)
        elif self._complete is None and _claims.attempt_of(ticket.address) >= ALONE_AFTER:
            self._read_alone(ticket)
        else:
            self._ask(fetches)

    def _ask(self, fetches: list[Fetch]) -> None:
        with self._lock:
            self._asked += len(fetches)
        try:
            self.fetcher.ask(fetches)
        except WorkerError as error:  # there is no room for a thread
            for fetch in fetches:
                fetch.error = error
                self.on_done(fetch)

    def _read_alone(self, ticket: Ticket) -> None:
        """Read a ticket's samples one by one with nothing else in flight."""
        self.wait(lambda: self._open.keys() <= {ticket})
        for fetch in ticket.fetches:
            with self._lock:
                if ticket.is_over:
                    return
                _claims.blame(ticket.address, fetch.row)
            self._ask([fetch])
            self.wait(lambda: fetch.is_done or ticket.is_over)  # noqa: B023 - it is waited for here
        self.wait(lambda: not self._open)

    def _show(self) -> None:
        """Have the worker's line show the oldest claim."""
        for ticket in self._open:
            ticket.show()
            return

    # ---- samples ----

    def on_done(self, fetch: Fetch) -> None:
        """Take a sample back; in the thread that has read it."""
        ticket = fetch.owner
        with self._lock:
            fetch.is_done = True
            self._asked -= 1
            self._changed.notify_all()
            if ticket is None or ticket.is_over:
                return
            ticket.missing -= 1
            is_last = ticket.missing == 0
        if is_last:
            self._complete_one(ticket)

    def _complete_one(self, ticket: Ticket) -> None:
        if self._complete is None:
            self._write(ticket)
        else:
            self._complete.put(ticket)

    def _write(self, ticket: Ticket) -> None:
        with self._writing:
            with self._lock:
                if ticket.is_over:
                    return
                ticket.is_writing = True
                ticket.show()
            is_filled = ticket.write()
            self._publish(ticket, is_cancelled=not is_filled)

    def _publish(self, ticket: Ticket, *, is_cancelled: bool) -> None:
        with self._lock:
            if ticket not in self._open:
                return  # it was given up while its rows were written: others take it back
            ticket.end.publish(is_cancelled)
            _claims.discount(ticket.address, self._published_ns)
            self._published_ns = _ring.now_ns()
            del self._open[ticket]
            if not ticket.is_over:
                ticket.clear()
                self._idle.append(ticket)
            self._show()
            self._changed.notify_all()

    def write_all(self, timeout_s: float | None) -> bool:
        """Write the rows of all claims as they are read, until none is held; False: no sample came for so long."""
        assert self._complete is not None
        came_s, asked = time.monotonic(), self._asked
        while self._open:
            if self._asked != asked:
                came_s, asked = time.monotonic(), self._asked
            elif timeout_s is not None and time.monotonic() - came_s > timeout_s:
                return False
            try:
                self._write(self._complete.get(timeout=LOOK_S))
            except Empty:
                self.look()
        return True

    def oldest(self) -> Fetch | None:
        """Return the sample that has not come of the oldest claim that misses one."""
        with self._lock:
            fetches = [fetch for ticket in self._open for fetch in ticket.fetches]
        return next((fetch for fetch in fetches if not fetch.is_done), None)

    # ---- waiting, and the end ----

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until something is so, or the ring stops."""
        while not is_ready() and not _claims.is_stopped(self._newest.address):
            with self._lock:
                if not is_ready():
                    self._changed.wait(LOOK_S)
            self.look()

    def look(self) -> None:
        """Publish what was broken off, whatever its samples are at; they are given up."""
        with self._lock:
            gone = [
                one
                for one in self._open
                if not one.is_writing and _claims.is_cancelled(one.address)
            ]
            for ticket in gone:
                ticket.is_over = True
        for ticket in gone:
            self.fetcher.drop(ticket.fetches)
            self._publish(ticket, is_cancelled=True)

    def drop_all(self) -> None:
        """Give up all claims, which others take back: what comes of their samples is not written."""
        with self._lock:
            gone = [*self._open]
            self._open.clear()
            for ticket in gone:
                ticket.is_over = True
        for ticket in gone:
            self.fetcher.drop(ticket.fetches)

    def close(self) -> None:
        """Give up all claims, and end what reads."""
        self.drop_all()
        self.fetcher.close()
