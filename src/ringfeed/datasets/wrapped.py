"""A source around another: it says what that one says, but for what its class says itself.

TransformSource    what the user's functions make of samples and batches
DrawSource         samples with their number and weight
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.datasets.base import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from ringfeed.datasets.base import Bars
    from ringfeed.datasets.reader import Reader
    from ringfeed.datasets.terms import Delivery, Kept
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler
    from ringfeed.ring._ring import Lease
    from ringfeed.system._system import Descriptor


class WrappedSource(Source):
    """A source that asks another one."""

    def __init__(self, inner: Source) -> None:
        """Read what ``inner`` reads."""
        super().__init__(inner.given, inner.dataset, inner.terms)
        self.inner = inner
        self.hooks, self.has_hooks = inner.hooks, inner.has_hooks
        self.streams, self.local_only, self.runs_code = inner.streams, inner.local_only, inner.runs_code
        self.at_once, self.in_turn, self.collates = inner.at_once, inner.in_turn, inner.collates

    @property
    def innermost(self) -> Source:
        """The source that reads the user's dataset."""
        return self.inner.innermost

    @property
    def inner_sources(self) -> Sequence[Source]:
        """The inner source."""
        return (self.inner,)

    def without_dataset(self) -> Self:
        """Return a copy for the engine."""
        other = super().without_dataset()
        other.inner = self.inner.without_dataset()
        return other

    @property
    def reads(self) -> bool:
        """Whether `learn` reads elements."""
        return self.inner.reads

    def hold(self, dataset: Any) -> None:
        """Read this dataset from now on."""
        super().hold(dataset)
        self.inner.hold(dataset)

    def end_reading(self) -> None:
        """End what reads elements in this process."""
        self.inner.end_reading()

    def learn_inner(self) -> None:
        """Have the inner source learn, and know what it has learnt but for its spec."""
        inner = self.inner
        inner.learn()
        self.dataset = inner.dataset  # an iterable is another one, once an element was read
        self.has_gaps, self.packages, self.states_size = inner.has_gaps, inner.packages, inner.states_size

    def current(self) -> Any:
        """Return the dataset for an epoch that begins."""
        self.inner.current()
        return self.dataset

    def length(self) -> int | None:
        """Return the number of samples."""
        return self.inner.length()

    def sampler(self, *, shuffle: bool | int, sampler: Any) -> Sampler:
        """Return the order."""
        self.inner.seed = self.seed  # which a state may have brought
        order = self.inner.sampler(shuffle=shuffle, sampler=sampler)
        self.is_sized = self.inner.is_sized
        return order

    def run_hook(self, name: str) -> bool:
        """Call a hook."""
        return self.inner.run_hook(name)

    def check_sendable(self) -> None:
        """Raise TypeError for a dataset that cannot be sent to worker processes."""
        self.inner.check_sendable()

    def keep(self, store: Any, *, shared: bool) -> Kept:
        """Reserve what is kept beside the slots."""
        return self.inner.keep(store, shared=shared)

    def kept(self, memfd: Descriptor, size: int) -> Any:
        """Map what readers write of it."""
        return self.inner.kept(memfd, size)

    def cut(self, indices: Indices, workers: int) -> Iterable[tuple[Indices, int]]:
        """Cut indices into what may be planned together."""
        return self.inner.cut(indices, workers)

    def settle(self, lease: Lease, rows: int, epoch: Any) -> Delivery:
        """Say what has become of a batch."""
        return self.inner.settle(lease, rows, epoch)

    def barred(self, bars: Bars, epoch: int, row: int, index: int) -> Bars:
        """Return ``bars`` with an element that was given up."""
        return self.inner.barred(bars, epoch, row, index)

    def describe(self, index: int) -> str:
        """Say which sample an index means."""
        return self.inner.describe(index)

    def describe_read(self, row: int, index: int) -> str:
        """Say which samples may be read while a worker is at a row of its batch."""
        return self.inner.describe_read(row, index)

    def describe_stream(self, index: int) -> str:
        """Say which iterable an index means."""
        return self.inner.describe_stream(index)

    def describe_all(self, indices: list[int]) -> str:
        """Say which samples some workers are at."""
        return self.inner.describe_all(indices)

    def users_own(self, dataset: Any) -> Any:
        """Return the user's dataset in what was sent to a worker."""
        return self.inner.users_own(dataset)

    def note_failure(self, reader: Reader, row: int, index: int, error: BaseException) -> None:
        """Record what a row has raised."""
        self.inner.note_failure(reader, row, index, error)
