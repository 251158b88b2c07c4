"""How many samples are in flight, and the Reader of a worker that has many."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._checks import check_count
from ringfeed.datasets.indexed import IndexedSource
from ringfeed.datasets.reader import IDLE_NS, Reader
from ringfeed.datasets.worker_info import worker_info
from ringfeed.reading import _claims
from ringfeed.reading.fetching import Tasks, Threads
from ringfeed.reading.window import Ticket, Window
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Port

POLL_S = 0.002  # a worker with samples in flight asks so often for another claim


DEFAULT_MOST = (
    100  # in flight for an async dataset whose user says nothing, and no more than two batches
)
MOST = 10_000


# ---- in the consumer: how many are in flight ----


def concurrency_of(source: Source, asked: object, workers: int, *, is_auto: bool) -> int:
    """Return how many samples all workers have in flight; 0: each worker reads one at a time.

    Raises TypeError for what is no int and for async datasets in others, ValueError for what does
    not fit.
    """
    concurrency = check_count("concurrency", asked, 1, MOST)
    _refuse_async_members(source)
    if concurrency is None:
        if not source.is_async:
            return 0
        concurrency = max(workers, min(2 * source.indices, DEFAULT_MOST))
    why = _misfit(source, asked, concurrency, workers, is_auto=is_auto)
    if why:
        raise ValueError(why)
    return concurrency


def _misfit(source: Source, asked: object, concurrency: int, workers: int, *, is_auto: bool) -> str:
    """Say why so many samples cannot be in flight; empty where they can."""
    given = "an async __getitem__" if asked is None else f"concurrency={concurrency}"
    if type(source) is not IndexedSource:
        return (
            f"{given} is for a dataset whose __getitem__ waits, and {_kind(source)}; leave "
            "concurrency= out"
        )
    if is_auto:
        return (
            f"{given} with workers='auto': each worker has its part of the samples in flight; give "
            "a number"
        )
    if source.reseed:
        return (
            f"reseed=True with {given}: it seeds states that all samples in flight share; draw "
            "from ringfeed.rng(), and leave reseed= out"
        )
    if concurrency < workers:
        return (
            f"concurrency={concurrency} with {workers} workers: it counts the samples in flight in "
            f"all of them, and each has one at least; raise it, or give workers={concurrency}"
        )
    return ""


def _kind(source: Source) -> str:
    """Say why a source has nothing that could wait beside other samples."""
    if source.streams:
        return (
            "an iterable is read one element after another (Interleave reads several side by side)"
        )
    if not source.runs_code:
        return "of arrays no code runs"
    return f"{type(source.given).__name__} reads its datasets itself"


def _refuse_async_members(source: Source) -> None:
    """Raise TypeError for an async dataset within Mix or Pack, which call it plainly."""
    if any(member.is_async for member in source.members):
        raise TypeError(
            f"{type(source.given).__name__} of a dataset with an async def __getitem__, which it "
            "cannot await; give that dataset to a loader of its own"
        )


def open_waiting(source: Source, concurrency: int) -> None:
    """Let the readers of a source have so many samples in flight, in all workers together."""
    source.open_reader = partial(WaitingReader, concurrency=concurrency)


# ---- in a worker ----


class WaitingReader(Reader):
    """Holds several claims, and writes the rows of each when all of its samples have come."""

    def __init__(self, source: Source, dataset: Any, port: Port, *, concurrency: int) -> None:
        """Prepare to fill claims with this worker's part of the samples in flight."""
        super().__init__(source, dataset, port)
        number, workers, _ = port.worker or (0, 1, 0)
        self._most = max(1, concurrency // workers + (number < concurrency % workers))
        self._window: Window | None = None

    def _open_window(self) -> Window:
        window = Window(self, self._most)
        kind = Tasks if self.source.is_async else Threads
        window.fetcher = kind(
            self.source.users_own(self.dataset), self._most, window.came.put, worker_info()
        )
        self._window = window  # whole: Ctrl-C may come while the event loop starts
        return window

    def serve(self, version: int, *, claimed: bool = False) -> bool:
        """Fill tickets of one version of the dataset until the ring stops, as `WorkerEnd.serve`."""
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
                window.wait(lambda: window.is_empty)
                _claims.move(ticket.address, self.end.claim_address)
                return True
            window.begin(ticket)
            window.wait(lambda: window.has_room)
        return False

    @staticmethod
    def _next_claim(window: Window) -> Ticket | None:
        """Claim a ticket; None once the ring stops, or the worker leaves and holds no claim."""
        ticket = window.ticket()
        while True:
            # 1 ns, since 0 would not look whether the ring has stopped.
            answer = ticket.end.claim(IDLE_NS if window.is_empty else 1)
            if answer == _ring.TAKEABLE:
                return ticket
            if answer == _ring.STOPPED:
                if not window.is_empty:
                    window.wait(lambda: window.is_empty)
                return None
            if not window.is_empty:
                window.take(POLL_S)
                window.look()

    def fill(self) -> bool | None:
        """Fill the claim and others, in the consumer, up to the samples that may be in flight."""
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
            came_s, timeout_s = time.monotonic(), self.port.timeout_s
            while not window.is_empty:
                if window.take():
                    came_s = time.monotonic()
                elif timeout_s is not None and time.monotonic() - came_s > timeout_s:
                    return None
                window.look()
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
