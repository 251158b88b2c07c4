"""Datasets of samples, and three ways to read them; read_into is not for samples that differ in length.

read_into       dataset.read_into(i, out) writes a sample into its row: no copy at all
__getitems__    dataset.__getitems__(indices) gives many samples (torch's protocol); not with reseed=True
__getitem__     dataset[i] gives one
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.datasets.base import Source
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Terms
    from ringfeed.orders.sampler import Sampler


class SampleSource(Source):
    """A dataset whose ``dataset[i]`` is one sample."""

    def __init__(self, given: Any, dataset: Any, terms: Terms) -> None:
        """Choose the quickest way to read."""
        super().__init__(given, dataset, terms)
        self.method = "__getitem__"
        if terms.waits:
            return
        # A class may take what it inherits back by setting it to None.
        if callable(getattr(dataset, "read_into", None)) and terms.collate is None:
            self.method = "read_into"
        elif callable(getattr(dataset, "__getitems__", None)) and not terms.reseed:
            self.method = "__getitems__"

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Read in that way."""
        read = getattr(dataset, self.method)
        if self.method == "__getitems__":
            return reader.by(reader.writer.bulk, read)
        write = reader.writer.rows if self.method == "read_into" else reader.writer.samples
        return reader.by(write, reader.reseeded(read))

    def length(self) -> int | None:
        """Return the number of samples."""
        return len(self.dataset) if hasattr(type(self.dataset), "__len__") else None

    def sampler(self, *, shuffle: bool | int, sampler: Any) -> Sampler:
        """Return the order; TypeError where nothing says which indices there are."""
        if sampler is None and not hasattr(type(self.dataset), "__len__"):
            raise TypeError(
                f"the dataset (a {type(self.dataset).__name__}) has no __len__, so the loader "
                "cannot know its indices; add one, or give sampler="
            )
        return super().sampler(shuffle=shuffle, sampler=sampler)

    def learn(self) -> None:
        """Set the spec, from sample 0 unless it is given."""
        if self.terms.collate is not None:
            self.terms.collate.learn(self)
            return
        from ringfeed.datasets.first import first_of  # noqa: PLC0415 - no worker learns

        spec, trial = self.terms.given_spec(), self.terms.trial
        learnt = first_of(self, self._look) if self.terms.reads_first(self.length()) else None
        if trial is not None and not trial.in_place and self.method == "read_into":
            self.method = "__getitem__"  # it makes new samples
        if spec is None:
            assert learnt is not None
            spec = learnt
        else:
            if self.indices > 1 and any(leaf.variable for leaf in spec.leaves):
                from ringfeed.spec.form_arrays import padded  # noqa: PLC0415 - only where it is needed

                spec = padded(spec)
            if (
                any(leaf.form or leaf.variable for leaf in spec.leaves)
                and self.method == "read_into"
            ):
                self.method = (
                    "__getitem__"  # no place in a slot is that of a row before its length is known
                )
            if self.method == "read_into" and any(leaf.cast or leaf.casts for leaf in spec.leaves):
                from ringfeed.spec.conversion import refuse_in_place  # noqa: PLC0415 - only where it is needed

                refuse_in_place(spec)
        self.accept(spec, self.indices)

    def _look(self, sample: Any, index: int) -> Spec | None:
        if self.terms.spec is not None:
            return None
        from ringfeed.datasets.first import packages_in  # noqa: PLC0415 - no worker learns

        self.packages = packages_in(sample)
        return Spec.infer(sample, index)
