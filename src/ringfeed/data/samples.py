"""Datasets of samples, and three ways to read them.

read_into    dataset.read_into(i, out) writes a sample into its row: no copy at all
bulk         dataset.__getitems__(indices) gives many samples (torch's protocol); not with reseed=True
samples      dataset[i] gives one
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed.data.base import Reader, Source, packages_in
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.data.base import Terms
    from ringfeed.data.sampler import Sampler


class SampleReader(Reader):
    """Reads samples one by one."""

    def _open(self, dataset: Any) -> Callable[[], bool]:
        return self._samples(self._reseeded(dataset.__getitem__))


class InPlaceReader(Reader):
    """Lets the dataset write each sample into its row."""

    def _open(self, dataset: Any) -> Callable[[], bool]:
        read = self._reseeded(dataset.read_into)
        return partial(self._writer.rows, self._end.claim_address, read, self._context, self._failed)


class BulkReader(Reader):
    """Reads the samples of a ticket together."""

    def _open(self, dataset: Any) -> Callable[[], bool]:
        get = dataset.__getitems__
        return partial(self._writer.bulk, self._end.claim_address, get, self._context, self._failed)


class SampleSource(Source):
    """A dataset whose ``dataset[i]`` is one sample."""

    def __init__(self, given: Any, dataset: Any, terms: Terms) -> None:
        """Choose the quickest way to read."""
        super().__init__(given, dataset, terms)
        self._reader = SampleReader
        # A class may take what it inherits back by setting it to None.
        if callable(getattr(dataset, "read_into", None)):
            self._reader = InPlaceReader
        elif callable(getattr(dataset, "__getitems__", None)) and not terms.reseed:
            self._reader = BulkReader

    def length(self) -> int | None:
        """Return the number of samples."""
        return len(self.dataset) if hasattr(type(self.dataset), "__len__") else None

    def sampler(self, *, shuffle: bool, sampler: Any) -> Sampler:
        """Return the order; TypeError where nothing says which indices there are."""
        if sampler is None and not hasattr(type(self.dataset), "__len__"):
            message = (
                f"the dataset (a {type(self.dataset).__name__}) has no __len__, so the loader cannot know its indices; "
                f"add one, or give sampler="
            )
            raise TypeError(message)
        return super().sampler(shuffle=shuffle, sampler=sampler)

    def learn(self) -> None:
        """Set the spec, from sample 0 unless it is given."""
        spec = self.terms.given_spec()
        if spec is None:
            sample = self.first()
            spec, self.packages = Spec.infer(sample, 0), packages_in(sample)
        else:
            _refuse_variable(spec, self.indices)
            if self._reader is InPlaceReader:
                _refuse_cast(spec)
        self.accept(spec, self.indices)


def _refuse_variable(spec: Spec, batch_size: int) -> None:
    """Refuse samples of different shapes, of which no batch can be made."""
    for leaf in spec.leaves:
        if leaf.variable:
            message = (
                f"{leaf.path} has variable={leaf.variable}, but samples of different shapes make no batch of "
                f"batch_size={batch_size}; pad them in __getitem__, or let it return whole batches with batch_size=None"
            )
            raise SpecError(message)


def _refuse_cast(spec: Spec) -> None:
    """Refuse to convert what a dataset itself writes into the slot."""
    for leaf in spec.leaves:
        if leaf.cast is not None:
            message = (
                f"{leaf.path} is converted by its Array, but read_into writes into the slot itself; write float32 "
                f"there and leave scale=, offset=, mean=, std= and layout= out, or take read_into out of the dataset"
            )
            raise SpecError(message)
