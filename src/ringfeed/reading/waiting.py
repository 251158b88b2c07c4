"""Workers with many samples in flight: how many, and what holds them.

One thread claims, and writes and publishes the rows of a claim when its last sample has come back;
the tasks that read put samples into its queue. Plain samples have `threaded`. A death blames no
sample, since any may be at fault. So a claim that has cost `ALONE_AFTER` workers is read with
nothing else in flight, sample by sample, and then a death has one sample to blame.
"""

from __future__ import annotations

import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ringfeed._checks import check_count
from ringfeed.datasets.indexed import IndexedSource
from ringfeed.datasets.reader import IDLE_NS, Reader
from ringfeed.datasets.worker_info import worker_info
from ringfeed.orders.rng import SampleContext
from ringfeed.reading import _claims
from ringfeed.reading.fetching import Fetch, Tasks, Threads
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Fill, Port
    from ringfeed.ring._ring import WorkerEnd

# In flight for an async dataset whose user says nothing, and no more than two batches.
DEFAULT_MOST = 100
MOST = 10_000
POLL_S = 0.002  # a worker with samples in flight asks so often for another claim
LOOK_S = 0.05  # and, where it wants no other, looks so often whether their epoch was broken off
ALONE_AFTER = 2  # deaths
AHEAD = 4  # claimed beyond the samples in flight, so that the next begins at once: one for so many


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
    if type(source) is not IndexedSource and not getattr(source, "may_wait", False):
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
    may_wait = getattr(source, "may_wait", False)
    if not may_wait and any(member.is_async for member in source.members):
        raise TypeError(
            f"{type(source.given).__name__} of a dataset with an async def __getitem__, which it "
            "cannot await; give that dataset to a loader of its own"
        )


def open_waiting(source: Any, concurrency: int) -> None:
    """Let the readers of a source have so many samples in flight, in all workers together."""
    source.open_reader = partial(WaitingReader, concurrency=concurrency)
    if not source.is_async:
        from ringfeed.reading.threaded import ThreadedReader  # noqa: PLC0415 - for plain samples

        source.open_reader = partial(ThreadedReader, concurrency=concurrency)
        if not source.at_once and callable(getattr(source.dataset, "read_into", None)):
            source.method = "read_into"


# ---- in a worker ----


class Claim:
    """A claim, and the samples that are in flight for it."""

    def __init__(self, end: WorkerEnd, source: Source) -> None:
        """Take over what the end has claimed; nothing is asked for yet."""
        self.end = end.another()
        self.address = self.end.claim_address
        _claims.move(end.claim_address, self.address)
        self.is_alone = _claims.attempt_of(self.address) >= ALONE_AFTER
        self.fetches: list[Fetch] = []
        for row, index in _claims.rows_to_read(self.address):
            context = SampleContext(source.seed, end.epoch, source.number_of(index))
            self.fetches.append(Fetch(self, row, context))
        self.missing = len(self.fetches)
        self.writers = 0  # threads that write its rows

    @property
    def oldest(self) -> Fetch | None:
        """The first sample that has not come."""
        return next((fetch for fetch in self.fetches if not fetch.is_done), None)

    def show(self) -> None:
        """Let the worker's line show this claim, at its first sample that has not come."""
        _claims.show(self.address, 0 if (oldest := self.oldest) is None else oldest.row)


class Fetched:
    """Stands in for the user's dataset while rows are written, and gives what was read."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._context: SampleContext
        self._rest: Iterator[Fetch] = iter(())

    def begin(self, fetches: Iterable[Fetch], context: SampleContext) -> None:
        """Give these from now on; ``context`` is that of the thread that writes them."""
        self._context, self._rest = context, iter(fetches)

    def __getitem__(self, index: int) -> Any:
        """Return the next sample, or raise what came in its place; its random numbers go on."""
        fetch = next(self._rest)
        self._context.index = fetch.context.index
        if fetch.error is not None:
            raise fetch.error
        return fetch.sample


class FetchedReader(Reader):
    """Writes samples that were read before."""

    def __init__(self, source: Source, dataset: Any, port: Port) -> None:
        """Prepare to write into the slots."""
        self._fetched = Fetched()
        super().__init__(source, dataset, port)

    def by_method(self, method: str, read: Callable[..., Any]) -> Fill:  # noqa: ARG002 - see `Hand`
        """Return what fills the claim with what was read by ``dataset[i]``."""
        return self.by_element(self._fetched.__getitem__)

    def write(self, claim: Claim, only: Fetch | None = None) -> bool:
        """Write the rows of a claim whose samples have come, or one; record what failed.

        False where it was cancelled.
        """
        first, count, fetches = (only.row, 1, [only]) if only else (0, 0, claim.fetches)
        part = self.end.claim_address
        _claims.begin_part(claim.address, first, count, claim.is_alone, part)
        timed = first + _claims.timed_row(part)
        _claims.note_read(part, sum([fetch.took_ns for fetch in fetches if fetch.row == timed]))
        self._fetched.begin(fetches, self.context)
        try:
            is_filled = super().fill()
        except BaseException as error:
            if self.port.is_consumer:
                raise
            for row, index in enumerate(self.end.indices):
                self.failed(row, index, error)
            is_filled = True
        self._fetched.begin((), self.context)
        _claims.end_part(part, claim.address)
        for fetch in fetches:
            fetch.sample = None
        return bool(is_filled)


class WaitingReader(FetchedReader):
    """Holds several claims, and writes the rows of each when all of its samples have come.

    All of it is one thread's, but for the queue. The end that claims also writes: a part of a claim
    moves back into it for that.
    """

    def __init__(self, source: Source, dataset: Any, port: Port, *, concurrency: int) -> None:
        """Prepare to fill claims with this worker's part of the samples in flight."""
        super().__init__(source, dataset, port)
        number, workers, _ = port.worker or (0, 1, 0)
        self._most = max(1, concurrency // workers + (number < concurrency % workers))
        self._fetcher: Tasks | Threads | None = None
        self._came: SimpleQueue[Any] = SimpleQueue()  # each Fetch once
        self._held: dict[Claim, None] = {}  # in the order of their claims
        self._asked = 0  # samples that have not come back
        self._published_ns = 0

    def _open(self) -> Tasks | Threads:
        """Return what reads, made when it is first needed: threads in the consumer only."""
        if self._fetcher is None:
            kind = Tasks if self.source.is_async else Threads
            dataset = self.source.users_own(self.dataset)
            self._fetcher = kind(dataset, self._most, self._came.put, worker_info())
        return self._fetcher

    def serve(self, version: int, *, claimed: bool = False) -> bool:
        """Fill tickets of one version of the dataset until the ring stops, as `WorkerEnd.serve`."""
        self.begin()
        self._open()
        try:
            while claimed or self._has_claimed():
                claim, claimed = Claim(self.end, self.source), False
                if self.end.version != version:
                    self._wait(lambda: not self._held)
                    _claims.move(claim.address, self.end.claim_address)
                    return True
                self._begin(claim)
                self._wait(lambda: self._has_room)
            return False
        finally:
            self.close()

    def _has_claimed(self) -> bool:
        """Claim a ticket; False once the ring stops, or the worker leaves and holds no claim."""
        while True:
            # 1 ns, since 0 would not look whether the ring has stopped.
            answer = self.end.claim(1 if self._held else IDLE_NS)
            if answer == _ring.TAKEABLE:
                return True
            if answer == _ring.STOPPED:
                self._wait(lambda: not self._held)
                return False
            if self._held:
                self._take(POLL_S)
                self._look()

    def fill(self) -> bool | None:
        """Fill the claim and others, in the consumer, up to the samples that may be in flight."""
        self._open()
        try:
            self._begin(Claim(self.end, self.source))
            while self._has_room and self.end.claim(0) == _ring.TAKEABLE:
                self._begin(Claim(self.end, self.source))
            came_s, timeout_s = time.monotonic(), self.port.timeout_s
            while self._held:
                if self._take(LOOK_S):
                    came_s = time.monotonic()
                elif timeout_s is not None and time.monotonic() - came_s > timeout_s:
                    return None
                self._look()
        except BaseException:  # Ctrl-C: the pool takes all claims back
            self._drop_all()
            raise
        return True  # it is published already, and so nothing is by the pool

    # ---- claims ----

    @property
    def _has_room(self) -> bool:
        """Whether more samples may be asked for."""
        return self._asked < self._most + max(1, self._most // AHEAD)

    def _begin(self, claim: Claim) -> None:
        """Read the samples of a new claim beside others; alone, where it has cost workers."""
        self._held[claim] = None
        self._show()
        if not claim.fetches:
            self._publish(claim, is_cancelled=not self.write(claim))
        elif claim.is_alone:
            self._read_alone(claim)
        else:
            self._ask(claim.fetches)

    def _read_alone(self, claim: Claim) -> None:
        """Read a claim's samples one by one with nothing else in flight."""
        self._wait(lambda: self._held.keys() <= {claim})
        for fetch in claim.fetches:
            if claim not in self._held:
                return
            _claims.blame(claim.address, fetch.row)
            self._ask([fetch])
            self._wait(lambda: fetch.is_done or claim not in self._held)  # noqa: B023 - waited for
        self._wait(lambda: not self._held)

    def _show(self) -> None:
        """Let the worker's line show the oldest claim."""
        for claim in self._held:
            claim.show()
            return

    def _publish(self, claim: Claim, *, is_cancelled: bool) -> None:
        claim.end.publish(is_cancelled)
        _claims.discount(claim.address, self._published_ns)
        self._published_ns = _ring.now_ns()
        del self._held[claim]
        self._show()

    # ---- samples ----

    def _ask(self, fetches: list[Fetch]) -> None:
        self._open().ask(fetches)
        self._asked += len(fetches)

    def _take(self, timeout_s: float) -> bool:
        """Take back a sample, and write its claim if it was the last; False where none has come."""
        try:
            fetch = self._came.get(timeout=timeout_s)
        except Empty:
            return False
        fetch.is_done = True
        self._asked -= 1
        claim = fetch.claim
        if claim in self._held:
            claim.missing -= 1
            if claim.missing:
                self._show()
            else:
                self._publish(claim, is_cancelled=not self.write(claim))
        return True

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Take samples back until something is so, or the ring stops."""
        while not is_ready() and not _claims.is_stopped(self.end.claim_address):
            self._take(LOOK_S)
            self._look()

    def _look(self) -> None:
        """Publish what was broken off, whatever its samples are at; they are given up."""
        for claim in [one for one in self._held if _claims.is_cancelled(one.address)]:
            self._open().drop(claim.fetches)
            self._publish(claim, is_cancelled=True)

    def _drop_all(self) -> None:
        """Give up all claims, which others take back; their samples are not written."""
        claims, self._held = self._held, {}
        for claim in claims:
            self._open().drop(claim.fetches)

    def stack(self) -> str:
        """Return where the thread or the task is that reads the oldest sample in flight."""
        for claim in self._held:
            if fetch := claim.oldest:
                return self._open().stack(fetch)
        return ""

    def close(self) -> None:
        """Give up all claims, and end what reads."""
        self._drop_all()
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            self._came, self._asked = SimpleQueue(), 0
            fetcher.close()
