"""Samples that come with their number and weight: what a dataset is under a `PrioritizedSampler`.

draw = weight | number     the index of the plan, of the slot's header and of failures (see `orders.draws`)
number                     what the dataset is asked for, what errors name, what `rng` belongs to
(sample, number, weight)   what is in the slot, as three branches of the spec
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed.data.base import Source
from ringfeed.orders.draws import index_of
from ringfeed.spec._rows import fill_draws
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from typing_extensions import Self

    from ringfeed.data.base import Delivery, Fill, Reader
    from ringfeed.orders.sampler import Sampler
    from ringfeed.ring._ring import Lease


class DrawSource(Source):
    """A dataset of samples, each of which comes with its number and weight."""

    def __init__(self, samples: Source) -> None:
        """Read what ``samples`` reads; ValueError for a dataset of whole batches."""
        super().__init__(samples.given, samples.dataset, samples.terms)
        if self.whole:
            message = (
                "PrioritizedSampler draws single samples, and with batch_size=None dataset[i] is a whole batch; give a "
                "dataset of samples and a batch_size"
            )
            raise ValueError(message)
        self.samples = samples
        self.hooks, self.changes = samples.hooks, samples.changes
        self.streams, self.local_only, self.runs_code = samples.streams, samples.local_only, samples.runs_code

    def without_dataset(self) -> Self:
        """Return a copy for the engine."""
        other = super().without_dataset()
        other.samples = self.samples.without_dataset()
        return other

    def learn(self) -> None:
        """Set the spec: that of a sample, and two leaves more."""
        self.samples.learn()
        self.has_gaps, self.packages = self.samples.has_gaps, self.samples.packages
        spec = Spec((self.samples.spec.tree, Array((), "int64"), Array((), "float32")))
        self.accept(spec, self.samples.rows)

    def length(self) -> int | None:
        """Return the number of samples."""
        return self.samples.length()

    def sampler(self, *, shuffle: bool | int, sampler: Any) -> Sampler:
        """Return the order."""
        self.samples.seed = self.seed  # which a state may have brought
        order = self.samples.sampler(shuffle=shuffle, sampler=sampler)
        self.is_sized = self.samples.is_sized
        return order

    def run_hook(self, name: str) -> bool:
        """Call a hook."""
        return self.samples.run_hook(name)

    def check_sendable(self) -> None:
        """Raise TypeError for a dataset that cannot be sent to worker processes."""
        self.samples.check_sendable()

    def settle(self, lease: Lease, rows: int, epoch: Any) -> Delivery:
        """Say what has become of a batch."""
        delivery = self.samples.settle(lease, rows, epoch)
        return delivery._replace(failed=[(row, index_of(draw), mark) for row, draw, mark in delivery.failed])

    def describe(self, index: int) -> str:
        """Say which sample a draw, or an index, means."""
        return self.samples.describe(index_of(index))

    def describe_all(self, indices: list[int]) -> str:
        """Say which samples some workers are at."""
        return self.samples.describe_all(indices)

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Write numbers and weights, then the samples."""
        *offsets, index_at, weight_at = reader.port.offsets
        reader.writer = reader.writer_of(self.samples.spec, tuple(offsets))
        return partial(fill_draws, reader.end.claim_address, index_at, weight_at, self.samples.open(dataset, reader))

    def note_failure(self, reader: Reader, row: int, index: int, error: BaseException) -> None:
        """Record what a row has raised."""
        self.samples.note_failure(reader, row, index, error)
