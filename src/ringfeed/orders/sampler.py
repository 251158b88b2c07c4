"""The order of samples: an epoch gives sample numbers, in constant memory.

    Sampler       an order: a loader binds it to its dataset and seed
    Positional    an order that is a function of (seed, epoch, position)
    Sequential    0, 1, 2, ...

A bound sampler makes epochs, an epoch is read by ``take(count)``: ``Shuffled(10**9,
seed=0).epoch(3).take(128)``. To continue, an epoch begins at a position: ``.epoch(3, 5 * 10**8)``.
`Epoch.state` holds what the position does not determine.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.shard import Part

CHUNK = 4096  # positions permuted at a time: 32 kB, which malloc keeps


class Epoch(ABC):
    """One epoch's sample numbers."""

    position: int | None = None
    """What comes next, where an order may give more than its length."""
    gives_lists = False
    """Whether `take` counts lists of samples and returns as many arrays: each list is a batch."""
    most_ahead: int | None = None
    """How many lists may be read ahead of those handed out, where the order says it."""
    waits = False
    """Whether `take` waits for samples, so that it is called for the first batch, not before."""
    turn: int | None = None
    """The number of position 0 in its epoch, where workers take lists in turn; None: any does."""

    @property
    def whole(self) -> Epoch:
        """The epoch of all ranks; this may be one rank's part."""
        return self

    @abstractmethod
    def take(self, count: int) -> Any:
        """Return the next ``count`` sample numbers, contiguous.

        Fewer at the end of the epoch, then none.

        An epoch updates its position last, by assignments only, so that Ctrl-C leaves it unchanged:
        the next call gives the same numbers.
        """

    def state(self, position: int) -> Any:  # noqa: ARG002 - for most orders it says all
        """Return the JSON that `Sampler.epoch` needs, with this position, to continue here.

        None: nothing.
        """
        return None

    def part_of(self, shard: Part) -> Epoch | None:  # noqa: ARG002 - for orders that can do it
        """Return a rank's part, if the epoch can make it without the other ranks' parts."""
        return None


class Sampler:
    """An order of samples.

    As given to a loader, it belongs to no dataset, and may be given to any number of loaders, which
    do not change it: `bind` makes the order that a loader reads.
    """

    order: str
    """A short name for this order, beside seed and length: at most 40 characters."""
    given_as = "sampler="
    """The parameter of the loader that it is given as, in messages."""
    seed = 0
    """The seed of the loader."""
    dataset_length: int | None = None
    """Samples of the dataset; None: unknown."""
    sample_count: int | None = None
    """Samples of the dataset, where `length` counts something else."""
    carries_weights = False
    """Whether an epoch gives draws, numbers with weights: see `prioritized`."""
    pure = True
    """Whether reading ahead has no visible effect."""
    counts_up = False
    """Whether it is 0, 1, 2, ..., unless it is shuffled."""
    may_exceed = False
    """Whether an epoch may give more than `length`, as a user's ``len()`` may be wrong."""
    ends_unsaid = False
    """Whether an epoch may give more than `length`, or fewer: only reading shows its end."""
    keeps_world_size = False
    """Whether a position means the same only with the same number of ranks."""
    why_no_length = "sampler has no len()"
    """Why there is none, in words that follow "its"."""

    _samples: int | None = None

    @property
    def length(self) -> int | None:
        """Samples in an epoch, or batches if it gives lists; None: unknown."""
        return self.dataset_length if self._samples is None else self._samples

    def bind(self, length: int | None, seed: int) -> Sampler:
        """Return this order over a dataset of ``length`` samples, None: unknown.

        Raises ValueError or IndexError if the order does not fit the dataset.
        """
        self.check_fits(length)
        bound = copy(self)
        bound.dataset_length, bound.seed = length, seed
        return bound

    @property
    def start_state(self) -> Any:
        """The state of an epoch that has not begun."""
        return None

    def check_fits(self, length: int | None) -> None:
        """Raise ValueError or IndexError if this is no order of a dataset of this length."""

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError if several ranks cannot share this order."""

    def padding(self, shard: Part, samples: int) -> int:
        """Return how many rows of padding a rank's last batch of so many samples has."""
        return shard.padding(samples)

    def check_state(self, start: int, state: Any) -> None:  # noqa: ARG002 - most need no state
        """Raise StateError unless `epoch` can continue at position ``start`` with this state."""
        if state is not None:
            from ringfeed.orders.checks import refuse  # noqa: PLC0415 - only for a wrong state

            refuse(state, f"expected none with order {self.order!r}")

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Any:
        """Return epoch ``number`` without its first ``start`` samples.

        ``state``: the result of `Epoch.state` there.
        """
        raise NotImplementedError


class Positional(Sampler):
    """An order in which each sample is a function of (seed, epoch, position)."""

    chunk = CHUNK
    """Positions to compute at a time, at least: one takes nearly as long."""

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:  # noqa: ARG002
        """Return the order of epoch ``number``, of 0 or more, from position ``start`` on."""
        length = sys.maxsize if self.length is None else self.length
        return PositionalEpoch(partial(self.indices_at, number), length, start, self.chunk)

    def indices_at(self, number: int, start: int, stop: int) -> Indices:
        """Return the samples of epoch ``number`` from one position to below another."""
        raise NotImplementedError


class PositionalEpoch(Epoch):
    """One epoch, read a chunk at a time."""

    def __init__(
        self, indices_at: Callable[[int, int], Indices], length: int, start: int, chunk: int
    ) -> None:
        self._indices_at = indices_at
        self._length = length
        self._asked = start  # positions
        self._chunk = chunk
        self._ready = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> Indices:
        """Return the next numbers."""
        ready, asked = self._ready, self._asked
        if count > ready.size and asked < self._length:
            stop = min(asked + max(count - ready.size, self._chunk), self._length)
            ready, asked = np.concatenate([ready, self._indices_at(asked, stop)]), stop
        self._ready, self._asked = ready[count:], asked
        return ready[:count]


class Sequential(Positional):
    """0, 1, 2, ... in every epoch; without end if the dataset has neither length nor end."""

    order = "sequential"
    given_as = "shuffle=False"
    counts_up = True
    why_no_length = "dataset has no len(), and goes on without end"

    def indices_at(self, number: int, start: int, stop: int) -> Indices:  # noqa: ARG002
        """Return the positions themselves."""
        return np.arange(start, stop)
