"""Datasets of an index: ``dataset[i]`` is a sample or, with ``batch_size=None``, a whole batch.

There are three ways to read samples:

read_into       dataset.read_into(i, out) writes a sample into its row; all must be of one length
__getitems__    dataset.__getitems__(indices) gives many (torch's protocol); not with reseed=True
__getitem__     dataset[i] gives one
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ringfeed._classes import length_of
from ringfeed.datasets.base import Source
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Terms
    from ringfeed.orders.sampler import Sampler


def batches_in(dataset: Any) -> int | None:
    """Return how many batches a dataset has now; None where it has no end, or does not say.

    Keras' own datasets say it by ``num_batches``, which comes before ``len()`` there.
    """
    try:
        if hasattr(type(dataset), "num_batches"):
            count = dataset.num_batches
            if count is None or hasattr(count, "__index__"):
                return count if count is None else operator.index(count)
    except (TypeError, NotImplementedError):  # what Keras raises where there is none
        return None
    return length_of(dataset)


class IndexedSource(Source):
    """A dataset whose ``dataset[i]`` is one sample, or one whole batch."""

    order: Any = None  # in the place of what the loader's parameters ask for: a `PassOrder`
    least_rows = 1  # of a whole batch, that a slot has room for unless the user says how many

    def __init__(self, given: Any, dataset: Any, terms: Terms) -> None:
        """Choose the quickest way to read."""
        super().__init__(given, dataset, terms)
        self.method = "__getitem__"
        if self.whole or terms.waits:
            return
        # A class may take what it inherits back by setting it to None.
        if callable(getattr(dataset, "read_into", None)) and not self.collates:
            self.method = "read_into"
        elif callable(getattr(dataset, "__getitems__", None)) and not terms.reseed:
            self.method = "__getitems__"

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Read in that way."""
        return reader.by_method(self.method, getattr(dataset, self.method))

    def length(self) -> int | None:
        """Return the number of samples, or of whole batches."""
        if self.whole:
            return batches_in(self.dataset)
        return len(self.dataset) if hasattr(type(self.dataset), "__len__") else None

    def sampler(self, order: Sampler) -> Sampler:
        """Return the order of the passes, or the loader's order.

        TypeError where nothing says which indices there are.
        """
        if self.order is not None:
            return self.order.bind(None, self.seed)
        has_length = self.whole or hasattr(type(self.dataset), "__len__")
        if not has_length and order.given_as.startswith("shuffle="):
            raise TypeError(
                f"the dataset (a {type(self.dataset).__name__}) has no __len__, so the loader "
                "cannot know its indices; add one, or give sampler="
            )
        return super().sampler(order)

    def learn(self) -> None:
        """Set the spec and the rows, from the first sample or whole batch unless they are given."""
        if self.collates:
            from ringfeed.datasets.trial import learn_from_batch  # noqa: PLC0415 - not for workers

            learn_from_batch(self)
        elif self.whole:
            self._learn_from_batch()
        else:
            self._learn_from_sample()

    def _learn_from_batch(self) -> None:
        spec, most = self.terms.given_spec(), self.terms.max_batch_size
        if spec is not None:
            if most is None:
                raise ValueError(
                    "batch_size=None with spec= needs max_batch_size=, the most rows that a batch "
                    "has"
                )
            self.accept(spec, most)
            return
        (spec, rows), index = self._first(Spec.infer_batch)
        if most is not None and most < rows:
            raise ValueError(f"max_batch_size={most}, but batch {index} has {rows} rows; raise it")
        self.has_gaps = index > 0
        self.accept(spec, most or max(rows, self.least_rows))

    def _learn_from_sample(self) -> None:
        spec = self.terms.given_spec()
        if self.reads_first():
            learnt, _ = self._first(Spec.infer)
        if self.function is not None and not self.in_place and self.method == "read_into":
            self.method = "__getitem__"  # it makes new samples
        if spec is None:
            self.accept(learnt, self.indices)
            return
        if self.indices > 1 and any(leaf.variable for leaf in spec.leaves):
            from ringfeed.spec.form_arrays import padded  # noqa: PLC0415 - rarely

            spec = padded(spec)
        if self.method == "read_into":
            if any(leaf.form or leaf.variable for leaf in spec.leaves):
                # No place in a slot is that of a row before its length is known.
                self.method = "__getitem__"
            elif any(leaf.cast or leaf.casts for leaf in spec.leaves):
                from ringfeed.spec.conversion import refuse_in_place  # noqa: PLC0415 - rarely

                refuse_in_place(spec)
        self.accept(spec, self.indices)

    def _first(self, infer: Any) -> tuple[Any, int]:
        """Return what is inferred of the first element, unless the spec is given, and its index."""
        from ringfeed.datasets.first import first_of  # noqa: PLC0415 - not for workers

        def look(element: Any, index: int) -> tuple[Any, int]:
            if self.terms.spec is not None:
                return None, index
            self.note_packages(element)
            return infer(element, index), index

        return first_of(self, look)
