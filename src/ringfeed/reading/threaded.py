"""A worker of several threads, for plain samples: one process, one dataset, one import.

    a thread     claims where no row is left, reads a sample, writes its row; the last publishes
    `serve`      the worker's own thread: publishes claims that were broken off

One thread claims at a time, and the rows of a claim are any thread's. So to the ring they are one
worker, and threads that wait long need no more tickets than others. No lock is held while a sample
is read or written. In the consumer the threads read, and its own thread claims and writes, as for
tasks: see `WaitingReader.fill`.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from queue import Empty
from threading import Lock
from typing import TYPE_CHECKING, Any

from ringfeed.datasets.reader import IDLE_NS, Reader
from ringfeed.datasets.worker_info import worker_info
from ringfeed.reading import _claims
from ringfeed.reading.fetching import Threads
from ringfeed.reading.waiting import LOOK_S, Claim, FetchedReader, WaitingReader
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from ringfeed.datasets.reader import Fill, Port
    from ringfeed.reading.fetching import Fetch


class Hand(FetchedReader):
    """Writes rows beside other threads: what one thread needs for that."""

    failing: Lock  # of the reader: one thread at a time records a failure

    def by_method(self, method: str, read: Any) -> Fill:
        """Return what fills the claim, which a dataset with ``read_into`` does itself."""
        kind = Reader if method == "read_into" else FetchedReader
        return kind.by_method(self, method, read)

    def record(self, row: int, record: bytes) -> None:
        """Record a failure of a row of the claim; the first row's is kept."""
        with self.failing:
            _claims.forget_later(self.end.claim_address, row)
            super().record(row, record)


class ThreadedReader(WaitingReader):
    """Reads samples in threads that claim and write by themselves."""

    _threads: Threads  # also once they are to end

    def __init__(self, source: Any, dataset: Any, port: Port, *, concurrency: int) -> None:
        """Prepare to fill claims with this worker's part of the samples in flight."""
        super().__init__(source, dataset, port, concurrency=concurrency)
        self._sent = dataset
        self._is_by_row = source.whole or not source.at_once
        self._claiming = Lock()  # of what threads take: the next four
        self._idle = self.end.another()  # claims nothing: it is read while another thread claims
        self._rows: deque[Fetch] = deque()
        self._is_over = False  # no thread is to claim any more
        self._is_claimed = False  # a ticket, which no thread has begun
        self._version = 0
        self._lock = Lock()  # of the claims that are held
        self._failing = Lock()
        self._hands: list[Hand] = []  # that no thread uses

    def serve(self, version: int, *, claimed: bool = False) -> bool:
        """Fill tickets of one version of the dataset until the ring stops, as `WorkerEnd.serve`."""
        self.begin()
        self._version, self._is_claimed = version, claimed
        self._fetcher = self._threads = Threads(
            self.source.users_own(self.dataset),
            self._most,
            self._end,
            worker_info(),
            take=self._next,
            failed=self._came.put,
        )
        if self.source.method == "read_into":  # type: ignore[attr-defined] # of an IndexedSource
            self._threads.getitem = int  # which is nothing: they read where they write
        try:
            self._threads.grow()
            while self._held or not self._is_over:
                if _claims.is_stopped(self._idle.claim_address):
                    return False  # whatever is claimed
                with suppress(Empty):
                    # Threads that all hang in samples which are given up tell of no stop.
                    if error := self._came.get(timeout=LOOK_S if self._held else 1):
                        raise error
                self._look()
            return self._is_claimed
        finally:
            self._is_over = True
            self.close()

    # ---- in each thread: claims ----

    def _next(self) -> Fetch | None:
        """Take a row, of a new claim where none is left; None: there are no more."""
        with self._claiming:
            while not self._rows and not self._is_over:
                self._claim()
            if not self._rows:
                return None
            self._threads.grow()
            return self._rows.popleft()

    def _claim(self) -> None:
        """Claim a ticket, and share its rows; or find that there are no more of this version."""
        answer = _ring.TAKEABLE if self._is_claimed else self.end.claim(IDLE_NS)
        if answer == _ring.PENDING:
            return
        self._is_claimed = answer == _ring.TAKEABLE
        if not self._is_claimed or self.end.version != self._version:
            self._is_over = True
            self._came.put(None)
            return
        self._is_claimed = False
        claim = Claim(self.end, self.source)
        if not claim.fetches:  # all rows were given up, and a batch may have fewer for it
            self._write(claim, None)
        with self._lock:
            if not self._held:
                self._came.put(None)
            self._held[claim] = None
            self._show()
            self._settle(claim)
        if claim.is_alone:
            self._read_in_turn(claim)
        else:
            self._rows.extend(claim.fetches)

    def _read_in_turn(self, claim: Claim) -> None:
        """Read a claim's samples one by one in this thread, with nothing else in flight."""
        while len(self._held) > 1 and not _claims.is_stopped(claim.address):
            time.sleep(LOOK_S)
        for fetch in claim.fetches:
            if claim in self._held:
                _claims.blame(claim.address, fetch.row)
                self._threads.read(fetch)

    # ---- in each thread: samples ----

    def _end(self, fetch: Fetch) -> None:
        """Write the row of a sample that has come, or with the last of them a whole batch."""
        claim = fetch.claim
        with self._lock:
            if claim not in self._held:  # it was broken off
                return
            claim.missing -= 1
            claim.writers += 1
            is_last = not claim.missing
        if self._is_by_row or is_last:
            self._write(claim, fetch if self._is_by_row else None)
        with self._lock:
            fetch.is_done = True
            claim.writers -= 1
            if claim in self._held:
                self._settle(claim)
                if claim.missing:
                    self._show()

    def _write(self, claim: Claim, only: Fetch | None) -> None:
        try:
            hand = self._hands.pop()
        except IndexError:
            port = self.port._replace(end=self.end.another())
            hand = Hand(self.source, self._sent, port)
            hand.failing = self._failing
        hand.write(claim, only)
        self._hands.append(hand)

    # ---- in any thread ----

    def _settle(self, claim: Claim) -> None:
        """Publish a claim that is complete or broken off once no thread writes; under the lock."""
        is_cancelled = _claims.is_cancelled(claim.address)
        if claim.writers or (claim.missing and not is_cancelled):
            return
        self._open().drop(claim.fetches)
        self._publish(claim, is_cancelled=is_cancelled)
        if self._is_over:
            self._came.put(None)

    def _look(self) -> None:
        """Publish what was broken off; its samples are given up."""
        with self._lock:
            for claim in [*self._held]:
                self._settle(claim)

    def _drop_all(self) -> None:
        with self._lock:
            super()._drop_all()
