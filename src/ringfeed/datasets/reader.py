"""What fills slots from a dataset in a worker, in the way that the dataset's source opens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringfeed._checks import reworded
from ringfeed._failure import End, Kind, encode, kind_of
from ringfeed.errors import SpecError
from ringfeed.orders.rng import SampleContext, installed, reseed
from ringfeed.spec._rows import RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.streams import StreamSource
    from ringfeed.ring._ring import Ring, WorkerEnd
    from ringfeed.spec.spec import Spec

CACHES = 3  # times the last cache: from here on writing past the caches costs no consumer anything
# Bytes, where the kernel does not say: C's sysconf tells that of all processors of a machine.
USUAL_CACHE = 32 << 20
NEVER = 2**64 - 1  # bytes: more than any slots have
IDLE_NS = 10**10  # a sleeping worker looks round this often; waking it does not depend on it

Fill: TypeAlias = "Callable[[], bool]"  # fills the claim; returns False when it was cancelled


class Port(NamedTuple):
    """A worker's access to the ring."""

    end: WorkerEnd
    ring: Ring
    offsets: tuple[int, ...]  # of the fields of a slot, in bytes
    is_consumer: bool = (
        False  # the consumer fills its own batches: then Ctrl-C comes out of `Reader.fill`
    )
    bars: Sequence[
        tuple[int, int]
    ] = ()  # elements that replaced workers must not read again (see `Source.barred`)
    states: Any = None  # what is kept of an iterable: see `Source.keep`
    timeout_s: float | None = (
        None  # how long the consumer waits for what it reads itself beside its own thread
    )
    worker: tuple[int, int, int] | None = (
        None  # its number, how many there are, how often it was started again
    )


class Reader:
    """A dataset, ready to fill claims. One for each worker thread."""

    def __init__(self, source: Source, dataset: Any, port: Port) -> None:
        """Prepare to fill what the port's end claims."""
        self.source = source
        self.port = port
        self.end = port.end
        self.functions: Any = None  # the user's; None where there are none
        if source.has_functions:
            self.functions, dataset = dataset.functions, dataset.dataset
        self.dataset = dataset
        self.context = SampleContext(source.seed)
        self.writer: Any = self.writer_of(source.spec, port.offsets)
        # Makes a new sample of an index and a sample, on its way to the writer.
        self.make: Callable[[int, Any], Any] | None = None
        self._introduced = False  # to the user's code
        self._fill = source.fill(dataset, self)

    def writer_of(self, spec: Spec, offsets: tuple[int, ...]) -> RowWriter:
        """Return what writes samples into these fields of a slot."""
        # What the consumer fills itself, it takes at once: it finds the batch in a cache, whatever
        # lies in other slots.
        beyond = NEVER if self.port.is_consumer else beyond_caches()
        return RowWriter(spec, offsets, self.port.ring, beyond)

    def open_stream(self, source: StreamSource, iterables: tuple[Any, ...]) -> Fill:
        """Return what fills claims with the elements of iterables."""
        from ringfeed.datasets.stream_reader import StreamReader  # noqa: PLC0415 - rarely

        return StreamReader(source, iterables, self).read_claim

    def serve(self, version: int, *, claimed: bool = False) -> bool:
        """Fill tickets of one version of the dataset until the ring stops: see `WorkerEnd.serve`.

        What is raised outside the samples of a ticket fails all of them.
        """
        self.begin()
        before = installed.context
        try:
            installed.context = self.context
            return self.end.serve(
                self._fill, self.context, self.fail_all, version, IDLE_NS, claimed
            )
        finally:
            installed.context = before

    def begin(self) -> None:
        """Let the user's code ask which worker this thread is; its first reader begins it."""
        if self.port.worker is None:
            return
        from ringfeed.datasets.worker_info import WorkerInfo, introduce  # noqa: PLC0415 - workers

        number, workers, starts = self.port.worker
        info = WorkerInfo(
            number, workers, self.source.users_own(self.dataset), self.source.seed, starts
        )
        is_new = introduce(info, again=self._introduced, reads_all=self.source.streams > 0)
        if is_new and self.functions is not None:
            from ringfeed.datasets.transformed import begin_worker  # noqa: PLC0415 - if needed

            begin_worker(self.functions, number)
        self._introduced = True

    def fill(self) -> bool | None:
        """Fill the claim, recording what fails in its failure record; False when it was cancelled.

        None: what is read beside this thread does not come.
        """
        self.context.epoch = self.end.epoch
        before = installed.context
        try:
            installed.context = self.context
            return self._fill()
        finally:
            installed.context = before

    def stack(self) -> str:
        """Return where that is which does not come."""
        return ""

    def close(self) -> None:
        """End what reads beside the thread that fills, if anything does."""

    def by(
        self, write: Callable[..., bool], *given: Any, failed: Callable[..., None] | None = None
    ) -> Fill:
        """Fill claims by a method of the writer; ``failed`` gets each failed row."""
        return partial(write, self.end.claim_address, *given, self.context, failed or self.failed)

    def by_method(self, method: str, read: Callable[..., Any]) -> Fill:
        """Return what fills the claim by a method of datasets: see `indexed`."""
        if method == "__getitems__":
            if self.make is not None or self.source.collates:
                from ringfeed.datasets.transformed import many_made  # noqa: PLC0415 - if needed

                read = partial(many_made, self, read)
            return self.by(self.writer.bulk, read)
        if method == "read_into":
            return self.by(self.writer.rows, self.reseeded(read))
        return self.by_element(self.reseeded(read))

    def by_element(
        self, read: Callable[[int], Any], failed: Callable[..., None] | None = None
    ) -> Fill:
        """Return what fills the claim with read(index): samples, or a whole batch."""
        if self.make is not None:
            read = partial(_made, self.make, read)
        if self.source.whole:
            return self.by(self.writer.batch, read, self.source.rows, failed=failed)
        return self.by(self.writer.samples, read, failed=failed)

    def failed(self, row: int, index: int, error: BaseException) -> None:
        """Record why a row of the claim is not there; a SpecError names its sample."""
        if isinstance(error, SpecError):
            reworded(error, index, self.source.describe(index))
        if self.port.is_consumer and isinstance(error, KeyboardInterrupt):
            raise error
        # Of the rows that an iterable does not have only the first counts.
        if type(error) is End and not self.end.cut(row):
            return
        record = encode(error, interruptible=self.port.is_consumer)
        if self.source.collates and self.source.skips and kind_of(record) is Kind.ERROR:
            record = b""  # the batch has room for one reason, which the end of an iterable needs
        self.record(row, record)

    def record(self, row: int, record: bytes) -> None:
        """Record a failure of a row of the claim."""
        self.end.fail(row, record)

    def fail_all(self, error: BaseException) -> None:
        """Record for all rows of the claim what was raised outside of any."""
        for row in range(len(self.end.indices)):
            self.end.fail(row, encode(error))

    def reseeded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Seed the legacy states ahead of each call, where ``reseed=True`` asks for it."""
        if not self.source.reseed:
            return function

        def call(*arguments: Any) -> Any:
            reseed(self.context)
            return function(*arguments)

        return call


def _made(make: Callable[[int, Any], Any], read: Callable[[int], Any], index: int) -> Any:
    return make(index, read(index))


def beyond_caches(file: str = "/sys/devices/system/cpu/cpu0/cache/index3/size") -> int:
    """Return how many bytes of slots are too many for a batch to be found in a cache.

    The size of the last cache decides.
    """
    try:
        # A worker imports no pathlib for it.
        with open(file, encoding="ascii") as text:  # noqa: PTH123
            size = int(text.read().removesuffix("K\n")) * 1024
    except (OSError, ValueError):
        size = USUAL_CACHE
    return CACHES * size
