"""The Reader of a worker that has many samples in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.datasets.reader import IDLE_NS, Reader
from ringfeed.datasets.worker_info import worker_info
from ringfeed.reading import _claims
from ringfeed.reading.fetching import Tasks, Threads
from ringfeed.reading.window import LOOK_S, Window
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Port
    from ringfeed.reading.ticket import Ticket

LOOK_NS = int(LOOK_S * 1e9)


class Waiting(NamedTuple):
    """Opens the readers of a source whose samples wait: ``concurrency`` of them are in flight in all workers together.

    ``is_async``: dataset[i] is awaited.
    """

    concurrency: int
    is_async: bool

    def __call__(self, source: Source, dataset: Any, port: Port) -> Reader:
        """Return a reader with its worker's part of them."""
        return WaitingReader(source, dataset, port, self)

    def share(self, worker: tuple[int, int, int] | None) -> int:
        """Return how many samples a worker may have in flight."""
        number, workers = (0, 1) if worker is None else worker[:2]
        return max(1, self.concurrency // workers + (number < self.concurrency % workers))


def open_waiting(source: Source, concurrency: int) -> None:
    """Have the readers of a source have so many samples in flight."""
    source.open_reader = Waiting(concurrency, source.is_async)


class WaitingReader(Reader):
    """Holds several claims, and writes the rows of each when all of its samples have come."""

    def __init__(self, source: Source, dataset: Any, port: Port, waiting: Waiting) -> None:
        """Prepare to fill what ends of the port's worker claim."""
        super().__init__(source, dataset, port)
        self._waiting = waiting
        self._window: Window | None = None

    def _open_window(self) -> Window:
        most = self._waiting.share(self.port.worker)
        window = Window(self, most, writes_here=self.port.is_consumer)
        kind = Tasks if self._waiting.is_async else Threads
        window.fetcher = kind(self.source.users_own(self.dataset), most, window.on_done, worker_info())
        self._window = window  # whole: Ctrl-C may come while the event loop starts
        return window

    def serve(self, version: int, *, claimed: bool = False) -> bool:
        """Fill tickets of one version of the dataset until the ring stops: see `WorkerEnd.serve`."""
        self.begin()
        window = self._open_window()
        try:
            if claimed:
                ticket = window.ticket()
                _claims.move(self.end.claim_address, ticket.address)
                window.begin(ticket)
            return self._serve(window, version)
        finally:
            self.close()

    def _serve(self, window: Window, version: int) -> bool:
        while (ticket := self._next_claim(window)) is not None:
            if ticket.end.version != version:
                window.wait_until_empty()
                _claims.move(ticket.address, self.end.claim_address)
                return True
            window.begin(ticket)
            window.wait_for_room()
        return False

    @staticmethod
    def _next_claim(window: Window) -> Ticket | None:
        """Claim a ticket; None where the ring stops, or the worker is to leave: then when it holds no claim."""
        ticket = window.ticket()
        while True:
            answer = ticket.end.claim(IDLE_NS if window.is_empty else LOOK_NS)
            if answer == _ring.TAKEABLE:
                return ticket
            if answer == _ring.STOPPED:
                if not window.is_empty:
                    window.wait_until_empty()
                return None
            window.look()

    def fill(self) -> bool | None:
        """Fill the claim, and others that are there: as many samples as may be in flight. In the consumer."""
        window = self._window or self._open_window()
        ticket = window.ticket()
        _claims.move(self.end.claim_address, ticket.address)
        try:
            window.begin(ticket)
            while window.has_room:
                ticket = window.ticket()
                if ticket.end.claim(0) != _ring.TAKEABLE:
                    window.give_back(ticket)
                    break
                window.begin(ticket)
            if not window.write_all(self.port.timeout_s):
                return None
        except BaseException:  # Ctrl-C: the pool takes all claims back
            window.drop_all()
            raise
        return True  # it is published already, and so nothing is by the pool

    def stack(self) -> str:
        """Return where the thread or the task is that reads the oldest sample in flight."""
        window = self._window
        fetch = None if window is None else window.oldest()
        return "" if fetch is None or window is None else window.fetcher.stack(fetch)

    def close(self) -> None:
        """End what reads."""
        window, self._window = self._window, None
        if window is not None:
            window.close()
