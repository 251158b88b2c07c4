"""Datasets of whole batches: ``batch_size=None``, and ``dataset[i]`` is a batch of any number of rows."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ringfeed._failure import Kind, kind_of
from ringfeed.datasets.base import Source
from ringfeed.datasets.terms import Delivery
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.orders.sampler import Sampler
    from ringfeed.ring._ring import Lease


def batches_in(dataset: Any) -> int | None:
    """Return the number of batches of a dataset as it is now; None where it has no end, or does not say.

    Keras' own datasets say it by ``num_batches``, which comes before ``len()`` there.
    """
    try:
        if hasattr(type(dataset), "num_batches"):
            count = dataset.num_batches
            if count is None or hasattr(count, "__index__"):
                return count if count is None else operator.index(count)
        return len(dataset)
    except (TypeError, NotImplementedError):  # what Python and Keras raise where there is none
        return None


class BatchSource(Source):
    """A dataset whose ``dataset[i]`` is a whole batch, such as a Keras PyDataset."""

    order: Any = None  # in the place of what the loader's parameters ask for: a `PassOrder`
    least_rows = 1  # that a slot has room for, unless the user says how many

    def length(self) -> int | None:
        """Return the number of batches."""
        return batches_in(self.dataset)

    def sampler(self, *, shuffle: bool | int, sampler: Any) -> Sampler:
        """Return the order of the passes, or what the loader's parameters ask for."""
        if self.order is None:
            return super().sampler(shuffle=shuffle, sampler=sampler)
        self.order.seed = self.seed
        order: Sampler = self.order
        return order

    def learn(self) -> None:
        """Set the spec and the rows, from the first batch that is not None unless they are given."""
        spec, most = self.terms.given_spec(), self.terms.max_batch_size
        if spec is not None:
            if most is None:
                raise ValueError(
                    "batch_size=None with spec= needs max_batch_size=, the most rows that a batch "
                    "has"
                )
            self.accept(spec, most)
            return
        from ringfeed.datasets.first import first_of  # noqa: PLC0415 - no worker learns

        spec, rows, index = first_of(self, self._look)
        if most is not None and most < rows:
            raise ValueError(f"max_batch_size={most}, but batch {index} has {rows} rows; raise it")
        self.has_gaps = index > 0
        self.accept(spec, most or max(rows, self.least_rows))

    def _look(self, batch: Any, index: int) -> tuple[Spec, int, int]:
        from ringfeed.datasets.first import packages_in  # noqa: PLC0415 - no worker learns

        self.packages = packages_in(batch)
        return (*Spec.infer_batch(batch, index), index)

    def settle(self, lease: Lease, rows: int, epoch: Any) -> Delivery:  # noqa: ARG002 - see streams
        """Say why the batch is missing: it fails as one, or there is none."""
        kinds = {kind_of(record) for _, record in lease.failures()}
        failed = [] if kinds - {Kind.ERROR} else lease.failed_rows(1)
        return Delivery(failed, is_none=Kind.NOTHING in kinds, keeps_others=False)

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Read whole batches."""
        return reader.by(reader.writer.batch, reader.reseeded(dataset.__getitem__), self.rows)
