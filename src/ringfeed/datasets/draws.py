"""Samples that come with their number and weight: what a dataset is under a `PrioritizedSampler`.

draw = weight | number     the index of the plan, of the slot's header and of failures (see `orders.prioritized`)
number                     what the dataset is asked for, what errors name, what `rng` belongs to
(sample, number, weight)   what is in the slot, as three branches of the spec
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed.datasets._changes import fill_draws
from ringfeed.datasets.wrapped import WrappedSource
from ringfeed.orders.prioritized import index_of
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Delivery
    from ringfeed.ring._ring import Lease


class DrawSource(WrappedSource):
    """A dataset of samples, each of which comes with its number and weight."""

    def __init__(self, samples: Source) -> None:
        """Read what ``samples`` reads; ValueError where a row is not a sample."""
        super().__init__(samples)
        if self.whole:
            message = (
                "PrioritizedSampler draws single samples, and with batch_size=None dataset[i] is a whole batch; give a "
                "dataset of samples and a batch_size"
            )
            raise ValueError(message)
        if self.collates:
            message = (
                "PrioritizedSampler has an index and a weight for each row, and collate_fn= may make any rows of the "
                "samples; give transform= or batch_transform="
            )
            raise ValueError(message)

    def learn(self) -> None:
        """Set the spec: that of a sample, and two leaves more."""
        self.learn_inner()
        spec = Spec((self.inner.spec.tree, Array((), "int64"), Array((), "float32")))
        self.accept(spec, self.inner.rows)

    def settle(self, lease: Lease, rows: int, epoch: Any) -> Delivery:
        """Say what has become of a batch."""
        delivery = super().settle(lease, rows, epoch)
        return delivery._replace(failed=[(row, index_of(draw), mark) for row, draw, mark in delivery.failed])

    def number_of(self, index: int) -> int:
        """Return the number of the sample that a draw means."""
        return int(index_of(index))

    def describe(self, index: int) -> str:
        """Say which sample a draw, or an index, means."""
        return self.inner.describe(index_of(index))

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Write numbers and weights, then the samples."""
        *offsets, index_at, weight_at = reader.port.offsets
        reader.writer = reader.writer_of(self.inner.spec, tuple(offsets))
        return partial(fill_draws, reader.end.claim_address, index_at, weight_at, self.inner.open(dataset, reader))
