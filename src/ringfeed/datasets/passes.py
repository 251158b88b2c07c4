"""A Keras dataset, read pass by pass in Keras' order; Keras says when its hooks run.

    numbers      0 1 2 3 4 5 6 7      the batches of one pass, in its order
    given        0 1 2 3 4            to the ring, as far as it plans ahead
    taken        0 1                  the rest can be planned anew, from the dataset as it is now

No worker imports this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.datasets.indexed import IndexedSource
from ringfeed.orders.making import sampler_of
from ringfeed.orders.sampler import Epoch, Sampler, Sequential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.datasets.terms import Terms
    from ringfeed.orders.permutation import Indices


ENDLESS = range(sys.maxsize)
"""The numbers of the batches of a dataset without end."""


class Pass(Epoch):
    """The numbers of the batches of one pass; without end, a range that no run exhausts."""

    def __init__(self, numbers: Sequence[int] | Indices, begin: int = 0) -> None:
        """Begin at a position."""
        self._numbers = numbers if isinstance(numbers, range) else np.asarray(numbers, np.int64)
        self.begun = self.given = begin

    def take(self, count: int) -> Indices:
        """Return the next numbers."""
        taken = np.asarray(self._numbers[self.given : self.given + count], np.int64)
        self.given += len(taken)
        return taken

    def go_to(self, count: int) -> None:
        """Give the numbers once more that come after the first ``count`` since the beginning."""
        self.given = self.begun + count

    def rest(self, count: int) -> Iterator[int]:
        """Give all numbers that come after the first ``count`` since the beginning."""
        return map(int, self._numbers[self.begun + count :])


class PassOrder(Sampler):
    """A sampler whose every epoch is one pass over the dataset as it is when the pass begins.

    ``count()`` says how many batches there are then, None: without end, from position ``begin``
    on. ``draw(count, epoch)`` gives their order, a range where there is no end; without it,
    ``shuffle`` and `seed` say it, as a loader's do. It is drawn as a whole, so that the ring may
    plan ahead.
    """

    order = "passes"
    counts_up = True
    why_no_length = Sequential.why_no_length

    def __init__(
        self,
        count: Callable[[], int | None],
        draw: Callable[[int | None, int], Sequence[int]] | None = None,
        begin: int = 0,
        *,
        shuffle: bool | int = False,
    ) -> None:
        """Draw nothing yet; ValueError or TypeError for what is no ``shuffle``."""
        self._order = sampler_of(shuffle=shuffle)
        self._count = count
        self._draw = draw
        self._begin = begin
        self.now = Pass(())
        """The newest pass."""

    def bind(self, length: int | None, seed: int) -> PassOrder:  # noqa: ARG002 - it counts itself
        """Take the loader's seed."""
        self.seed = seed
        return self

    @property
    def length(self) -> int | None:
        """The batches of a pass over the dataset as it is now."""
        return self._count()

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Pass:  # noqa: ARG002
        """Begin a pass, at position ``start``."""
        count = self._count()
        self.now = Pass(
            self._drawn(count, number), start if count is not None else self._begin + start
        )
        return self.now

    def _drawn(self, count: int | None, number: int) -> Sequence[int] | Indices:
        if self._draw is not None:
            return self._draw(count, number)
        if count is None:
            return ENDLESS
        return self._order.bind(count, self.seed).epoch(number).take(count)


class Passes:
    """A dataset of whole batches for `ringfeed.Loader`, with the order that its passes have.

    The loader runs no hooks of it.
    """

    def __init__(self, dataset: Any, order: PassOrder) -> None:
        """Look at nothing yet."""
        self.dataset = dataset
        self.order = order

    def __ringfeed_source__(self, terms: Terms, open_source: object) -> IndexedSource:
        """Return the source of the dataset, as one of passes."""
        source = IndexedSource(self.dataset, self.dataset, terms)
        source.has_passes = True
        source.hooks, source.order = frozenset(), self.order
        source.least_rows = batch_size_of(self.dataset)
        return source


def batch_size_of(dataset: Any) -> int:
    """Return what a dataset's own attribute ``batch_size`` says; 1 where it says nothing."""
    said = getattr(dataset, "batch_size", None)
    return max(said, 1) if isinstance(said, int) and not isinstance(said, bool) else 1
