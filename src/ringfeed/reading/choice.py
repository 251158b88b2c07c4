"""Which streams one process reads for all workers: one iterable, whose elements the user's functions make samples of.

`reads_apart` decides it, `open_relay` has it done. Without such functions the worker that reads writes what it has
read, and there is nothing for others to do.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.datasets.stream_reader import StreamReader
from ringfeed.datasets.streams import StreamSource
from ringfeed.errors import ShipError
from ringfeed.reading.elements import Packer, size_of
from ringfeed.reading.serving import StreamServer, unpicklable
from ringfeed.reading.sizes import StoreSizes
from ringfeed.reading.store import Store
from ringfeed.reading.taking import StoredElements, StoreReader
from ringfeed.ring._ring import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Port, Reader


def reads_apart(source: Source, workers: int, backend: str) -> bool:
    """Whether a process of its own reads the dataset for so many workers."""
    functions = source.functions
    return (
        1 < workers < MAX_WORKERS
        and backend == "process"
        and isinstance(source, StreamSource)
        and source.streams == 1
        and source.part is None  # each rank's worker looks at the elements around its own
        and not (source.local_only or source.has_hooks or source.reseed)
        and functions is not None
        and any(one is not None for one in (functions.transform, functions.collate_fn, functions.batch_transform))
        and resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # the store is a large sparse file
    )


def open_relay(source: Source, max_attempts: int) -> None:
    """Have a process of its own read the dataset."""
    assert isinstance(source, StreamSource)
    source.open_stream = OpenStream()
    source.open_reader = Relay(max_attempts)


class OpenStream(NamedTuple):
    """Opens what fills claims of a stream, or in the process that reads for others what reads it."""

    def __call__(self, source: StreamSource, iterables: tuple[Any, ...], reader: Reader) -> Callable[[], bool]:
        """Return what fills a claim."""
        if isinstance(reader, StreamServer):
            reader.stream = StreamReader(source, iterables, reader, ahead=reader.store.sizes.regions)
            return reader.stream.read_claim
        assert isinstance(reader, StoreReader)
        return StoredElements(source, reader).read_claim

    @staticmethod
    def size_of(element: Any, index: int) -> int:
        """Return the bytes that an element takes in the store; ShipError where it cannot be pickled."""
        try:
            return size_of(Packer().pack((element, 0)))
        except Exception as error:
            raise ShipError(unpicklable(f"element {index} of the iterable", error)) from error


class Relay(NamedTuple):
    """Opens the readers of a source that one process reads for others: the first worker is that process."""

    max_attempts: int

    def __call__(self, source: Source, dataset: Any, port: Port) -> Reader:
        """Return what reads, or what a worker takes its elements with."""
        assert port.worker is not None
        assert port.states is not None
        assert port.states.memfd is not None
        number, workers, starts = port.worker
        sizes = StoreSizes(port.ring.slots, source.indices, workers - 1)
        store = Store(port.states.memfd, port.states.end, sizes)
        if number == 0:
            alone = port._replace(worker=(0, 1, starts))  # of those that read
            return StreamServer(source, dataset, alone, store, self.max_attempts)
        return StoreReader(source, dataset, port._replace(worker=(number - 1, workers - 1, starts)), store)
