"""One process reads an iterable for all workers, which call the user's functions.

reads_apart    whether it does; without functions the worker that reads writes as well
StreamServer   in that process: reads as far ahead as the store has room
StoreReader    in the workers: takes the elements of its claims out of the store
"""

from __future__ import annotations

import pickle
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._failure import End, Kind, decode, encode, pickled
from ringfeed._units import show_bytes
from ringfeed.datasets.reader import Reader
from ringfeed.datasets.states import end_of
from ringfeed.datasets.stream_reader import StreamReader
from ringfeed.datasets.streams import StreamSource
from ringfeed.errors import FunctionError, ShipError
from ringfeed.orders.rng import installed
from ringfeed.reading import _claims
from ringfeed.reading.store import ELEMENT, REGION, Run, Store, StoreSizes, TooLargeError
from ringfeed.ring._ring import MAX_WORKERS

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Fill, Port

LOOK_NS = 50_000_000  # a process that waits for another looks so often whether the ring has stopped


# ---- in the consumer ----


def reads_apart(source: Source, workers: int, backend: str) -> bool:
    """Whether a process of its own reads the dataset for so many workers."""
    functions = source.functions
    return (
        1 < workers < MAX_WORKERS
        and backend == "process"
        and isinstance(source, StreamSource)
        and source.streams == 1
        # Each rank's worker looks at the elements around its own.
        and source.part is None
        and not (source.local_only or source.has_hooks or source.reseed)
        and functions is not None
        and any(one is not None for one in functions[:3])  # all but worker_init_fn
        # The store is a large sparse file.
        and resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    )


def open_relay(source: Source, max_attempts: int) -> None:
    """Let a process of its own read the dataset."""
    assert isinstance(source, StreamSource)
    source.size_of = _size_of
    source.open_reader = partial(_open_reader, max_attempts=max_attempts)


def _size_of(element: Any, index: int) -> int:
    """Return the bytes that an element takes in the store; ShipError where it cannot be pickled."""
    try:
        return len(pickled((element, 0)))
    except Exception as error:
        raise ShipError(_unpicklable(f"element {index} of the iterable", error)) from error


def _unpicklable(name: str, error: Exception) -> str:
    """Say why an element cannot be sent to the processes that transform it."""
    return (
        f"{name} cannot be pickled, and one process reads for all workers: "
        f"{type(error).__qualname__}: {error}; yield what can be pickled, or give workers=1"
    )


# ---- in the worker processes ----


def _open_reader(source: Source, dataset: Any, port: Port, *, max_attempts: int) -> Reader:
    """Return what reads, in the first worker, or what any other takes its elements with."""
    assert port.worker is not None
    number, workers, starts = port.worker
    sizes = StoreSizes(port.ring.slots, source.indices, workers - 1)
    store = Store(port.states.memfd, end_of(port.states.size), sizes)
    if number == 0:
        alone = port._replace(worker=(0, 1, starts))  # of those that read
        return StreamServer(source, dataset, alone, store, max_attempts)
    others = port._replace(worker=(number - 1, workers - 1, starts))
    return StoreReader(source, dataset, others, store)


class StreamServer(Reader):
    """A worker that claims nothing: it reads the elements that the others claim."""

    def __init__(
        self, source: Source, dataset: Any, port: Port, store: Store, max_attempts: int
    ) -> None:
        """Read nothing yet; an element that has ended so many readers is given up."""
        self.store = store
        self._max_attempts = max_attempts
        super().__init__(source, dataset, port)

    def open_stream(self, source: StreamSource, iterables: tuple[Any, ...]) -> Fill:
        """Open the iterable; its elements fill no claim."""
        self.stream = StreamReader(source, iterables, self, ahead=self.store.sizes.regions)
        return self.stream.read_claim

    def serve(self, version: int, *, claimed: bool = False) -> bool:  # noqa: ARG002
        """Read what is asked for, until the ring stops."""
        self.begin()
        installed.context = self.context  # this process does nothing else
        self._serve()
        return False

    def _serve(self) -> None:
        """Read as far as the store has room, and sleep until it has more."""
        store, number, limit = self.store, 0, 0
        run: Run | None = None
        while not _claims.is_stopped(self.end.claim_address):
            asked, told = store.asked, store.told()
            if told is not None and told != run:
                # Where a reader has died it goes on.
                run, number, limit = told, store.begin(told), 0
                self.context.epoch = run.epoch
                self.stream.renew()
            if run is not None and number >= limit:
                limit = store.limit(run)
            if run is None or store.is_over or number >= limit:
                store.rest(asked, LOOK_NS)
            else:
                self._read(run, number)
                number += 1

    def _read(self, run: Run, number: int) -> None:
        deaths = self.store.note_reading(number)
        is_given_up = deaths >= self._max_attempts
        content = self._give_up(number, deaths) if is_given_up else self._element(number)
        try:
            self.store.put(run, number, content)
        except TooLargeError as error:
            self.store.put(run, number, self._too_large(number, str(error)))

    def _element(self, number: int) -> bytes:
        """Return an element, pickled before the next is read, or why there is none."""
        claim = self.end.claim_address  # nothing is claimed, but it knows the worker's line
        _claims.show_reading(claim, number)
        try:
            element = self.stream.element(number)
        except BaseException as error:  # noqa: BLE001 - the end, or of the user's; SystemExit, too
            return encode(error)
        finally:
            _claims.show_read(claim)
        try:
            return pickled((element, self.context.index))
        except Exception as error:  # noqa: BLE001 - of objects of any package
            failure = FunctionError(_unpicklable(self.source.describe(number), error))
            failure.__cause__ = error
            return encode(failure)

    def _give_up(self, number: int, deaths: int) -> bytes:
        """Return why an element that has ended its readers is missing; nothing after it is read."""
        self.stream.bar(number)
        how_often = "once" if deaths == 1 else f"{deaths} times"
        text = f"{self.source.describe(number)} ended its reader {how_often}; try it with workers=0"
        return encode(FunctionError(text))

    def _too_large(self, number: int, size: str) -> bytes:
        text = (
            f"{self.source.describe(number)} is of {size}, and the {self.store.sizes.rows} "
            f"elements of a batch may be of {show_bytes(REGION)}; make batch_size= smaller, or "
            "give workers=1"
        )
        return encode(FunctionError(text))


class StoreReader(Reader):
    """A worker's Reader, whose elements another process reads."""

    def __init__(self, source: Source, dataset: Any, port: Port, store: Store) -> None:
        """Prepare to fill what the port's end claims, of elements of the store."""
        self.store = store
        self._run = 0
        super().__init__(source, dataset, port)

    def open_stream(self, source: StreamSource, iterables: tuple[Any, ...]) -> Fill:  # noqa: ARG002
        """Return what fills a claim with the elements of the store."""
        return partial(self._fill_claim, self.by_element(self.element))

    def _fill_claim(self, write: Fill) -> bool:
        """Fill the claim, once its elements are there; False where it was cancelled."""
        return self._wait(self.end.indices) and write()

    def _wait(self, numbers: list[int]) -> bool:
        """Wait for all elements of a claim, outside of its rows, so that no row is blamed."""
        claim, store = self.end.claim_address, self.store
        run = self._run = store.run
        # After the look at the run, which is told when those before were cancelled.
        if self._is_over():
            return False
        assert self.port.worker is not None
        store.want(self.port.worker[0], run, numbers[-1])
        missing = [number for number in numbers if not store.has(run, number)]
        if not missing:
            return True
        _claims.begin_wait(claim)
        # The last comes last: no element before it is worth a wake.
        for number in reversed(missing):
            while not store.has(run, number):
                if self._is_over():
                    return False
                store.wait(run, number, LOOK_NS)
        _claims.end_wait(claim)
        return True

    def _is_over(self) -> bool:
        """Whether the claim's epoch was broken off, or the ring has stopped."""
        claim = self.end.claim_address
        return _claims.is_cancelled(claim) or _claims.is_stopped(claim)

    def element(self, number: int) -> Any:
        """Return an element or raise what it has raised; End where the iterable ended before it."""
        content = self.store.get(self._run, number)
        if content[0] == ELEMENT:
            # With what it has drawn, which goes on.
            element, self.context.index = pickle.loads(content)  # noqa: S301 - of our own reader
            return element
        failure = decode(bytes(content))
        if failure.kind is Kind.END:
            raise End from failure.error
        assert failure.error is not None
        raise failure.error
