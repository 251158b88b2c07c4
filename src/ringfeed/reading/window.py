"""The claims that a worker holds, and the samples that are in flight for them.

One thread claims, and writes and publishes the rows of a claim when its last sample has come back;
the threads that read put samples into its queue. A death blames no sample, since any may be at
fault. So a ticket that has cost `ALONE_AFTER` workers is read with nothing else in flight, sample
by sample, and then a death has one sample to blame.
"""

from __future__ import annotations

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

    from ringfeed.reading.fetching import Tasks, Threads
    from ringfeed.ring._ring import WorkerEnd

LOOK_S = 0.05  # a worker with samples in flight looks so often whether their epoch was broken off
ALONE_AFTER = 2  # deaths
AHEAD = 4  # claimed beyond the samples in flight, so that the next begins at once: one for so many


class Fetched:
    """Takes the place of the user's dataset while rows are written, and gives what was read."""

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
    """Room for a claim; it is used again, unless its claim was broken off amid its samples."""

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
        self.is_over = False

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
        """Let the worker's line show this claim, at its first sample that has not come."""
        row = next((fetch.row for fetch in self.fetches if not fetch.is_done), 0)
        _claims.show(self.address, row)

    def write(self) -> bool:
        """Write the rows, and record what has failed; False when the claim was cancelled."""
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
            writer.fail_all(error)
            return True

    def clear(self) -> None:
        """Be ready for another claim."""
        self.fetches = []
        self._fetched.begin([], self._writer.context)


class Window:
    """What one worker holds: all of it is one thread's, but for the queue."""

    def __init__(self, reader: Reader, most: int) -> None:
        """Allow ``most`` samples in flight."""
        self.fetcher: Tasks | Threads  # set before the first claim
        self.came: SimpleQueue[Fetch] = SimpleQueue()
        """The samples that have come back: each Fetch once."""
        self._reader = reader
        self._most = most + max(1, most // AHEAD)
        self._open: dict[Ticket, None] = {}  # in the order of their claims
        self._idle: list[Ticket] = []
        self._asked = 0  # samples that have not come back
        self._published_ns = 0
        self._newest: Ticket

    # ---- claims ----

    def ticket(self) -> Ticket:
        """Return room for a claim."""
        return self._idle.pop() if self._idle else Ticket(self._reader)

    def give_back(self, ticket: Ticket) -> None:
        """Take back a ticket that holds no claim."""
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
        self._newest = ticket
        self._open[ticket] = None
        self._show()
        if not fetches:
            self._write(ticket)
        elif _claims.attempt_of(ticket.address) >= ALONE_AFTER:
            self._read_alone(ticket)
        else:
            self._ask(fetches)

    def _ask(self, fetches: list[Fetch]) -> None:
        self._asked += len(fetches)
        try:
            self.fetcher.ask(fetches)
        except WorkerError as error:  # there is no room for a thread
            for fetch in fetches:
                fetch.error = error
                self.came.put(fetch)

    def _read_alone(self, ticket: Ticket) -> None:
        """Read a ticket's samples one by one with nothing else in flight."""
        self.wait(lambda: self._open.keys() <= {ticket})
        for fetch in ticket.fetches:
            if ticket.is_over:
                return
            _claims.blame(ticket.address, fetch.row)
            self._ask([fetch])
            self.wait(lambda: fetch.is_done or ticket.is_over)  # noqa: B023 - it is waited for here
        self.wait(lambda: not self._open)

    def _show(self) -> None:
        """Let the worker's line show the oldest claim."""
        for ticket in self._open:
            ticket.show()
            return

    # ---- samples ----

    def take(self, timeout_s: float = LOOK_S) -> bool:
        """Take back a sample, and write its claim if it was the last; False where none has come."""
        try:
            fetch = self.came.get(timeout=timeout_s)
        except Empty:
            return False
        fetch.is_done = True
        self._asked -= 1
        ticket = fetch.owner
        if ticket is not None:
            ticket.missing -= 1
            if not ticket.missing:
                self._write(ticket)
            elif not ticket.is_over:
                self._show()
        return True

    def _write(self, ticket: Ticket) -> None:
        ticket.show()
        self._publish(ticket, is_cancelled=not ticket.write())
        ticket.clear()
        self._idle.append(ticket)

    def _publish(self, ticket: Ticket, *, is_cancelled: bool) -> None:
        ticket.end.publish(is_cancelled)
        _claims.discount(ticket.address, self._published_ns)
        self._published_ns = _ring.now_ns()
        del self._open[ticket]
        self._show()

    def oldest(self) -> Fetch | None:
        """Return the sample that has not come of the oldest claim that misses one."""
        fetches = (fetch for ticket in self._open for fetch in ticket.fetches)
        return next((fetch for fetch in fetches if not fetch.is_done), None)

    # ---- waiting, and the end ----

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Take samples back until something is so, or the ring stops."""
        while not is_ready() and not _claims.is_stopped(self._newest.address):
            self.take()
            self.look()

    def look(self) -> None:
        """Publish what was broken off, whatever its samples are at; they are given up."""
        for ticket in [one for one in self._open if _claims.is_cancelled(one.address)]:
            self._drop(ticket)
            self._publish(ticket, is_cancelled=True)

    def _drop(self, ticket: Ticket) -> None:
        ticket.is_over = True
        self.fetcher.drop(ticket.fetches)

    def drop_all(self) -> None:
        """Give up all claims, which others take back; their samples are not written."""
        tickets, self._open = self._open, {}
        for ticket in tickets:
            self._drop(ticket)

    def close(self) -> None:
        """Give up all claims, and end what reads."""
        self.drop_all()
        self.fetcher.close()
