"""Which sample comes when: an epoch hands out sample numbers, in order and in constant memory.

    Sequential         0, 1, 2, ...
    Shuffled           every number once, in the order of `permutation.permute`
    make_sampler       one of these, or of the user's (see `custom`), from the arguments of the loader

A sampler makes epochs, an epoch is read by ``take(count)``: ``Shuffled(10**9, seed=0).epoch(3).take(128)``. One that
goes on where it was left begins at a position: ``.epoch(3, 5 * 10**8)``. What a position alone does not say, the epoch
keeps: see `Epoch.state`.

The shuffled order is part of the interface; `permutation` says what it is.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ringfeed.data._permute import MAX_LENGTH
from ringfeed.data.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ringfeed.data.permutation import Indices

CHUNK = 4096  # positions permuted at a time: 32 kB, which malloc keeps


class Epoch(Protocol):
    """One pass over the samples."""

    def take(self, count: int) -> Indices:
        """Return the next ``count`` sample numbers, contiguous; fewer at the end of the epoch, then none."""

    def state(self, position: int) -> Any:
        """Return what `Sampler.epoch` needs besides this position to go on there, as JSON has it; None: nothing."""


class Sampler(Protocol):
    """What a loader needs to know of an order."""

    @property
    def length(self) -> int | None:
        """Samples in an epoch, where that is known."""

    @property
    def pure(self) -> bool:
        """Whether reading ahead has no visible effect."""

    @property
    def order(self) -> str:
        """A short name that tells this order from others, beside seed and length: at most 40 characters."""

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return epoch ``number`` without its first ``start`` samples; ``state``: what `Epoch.state` said there."""


class Sequential:
    """0, 1, 2, ... in every epoch; without end where the length is None, and the dataset itself has one."""

    pure = True
    order = "sequential"

    def __init__(self, length: int | None) -> None:
        self.length = length

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:  # noqa: ARG002  (epochs are alike)
        """Return the numbers from ``start`` on."""
        return _SequentialEpoch(sys.maxsize if self.length is None else self.length, start)


class Stateless:
    """An epoch whose position says all."""

    def state(self, position: int) -> Any:
        """Return None."""


class _SequentialEpoch(Stateless):
    def __init__(self, length: int, start: int) -> None:
        self._length = length
        self._position = start

    def take(self, count: int) -> Indices:
        start = self._position
        self._position = max(start, min(start + count, self._length))
        return np.arange(start, self._position, dtype=np.int64)


class Shuffled:
    """Every sample once an epoch, in an order that is a function of (seed, epoch); nothing else is kept."""

    pure = True
    order = "shuffled"

    def __init__(self, length: int, seed: int) -> None:
        if length > MAX_LENGTH:
            raise ValueError(f"cannot shuffle {length} samples: 2**62 is the most")
        self.length = length
        self._seed = seed

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:  # noqa: ARG002  (numbers say it all)
        """Return the order of epoch ``number``, of 0 or more, from position ``start`` on."""
        return _ShuffledEpoch(self.length, self._seed, number, start)


class _ShuffledEpoch(Stateless):
    """Permutes a chunk at a time, since 16 thousand positions take hardly longer than a hundred."""

    def __init__(self, length: int, seed: int, number: int, start: int) -> None:
        self._order = (length, seed, number)
        self._permuted = start  # positions
        self._ready = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> Indices:
        if count > self._ready.size:
            self._ready = np.concatenate([self._ready, *self._chunks(count - self._ready.size)])
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _chunks(self, missing: int) -> Iterator[Indices]:
        while missing > 0 and self._permuted < self._order[0]:
            stop = min(self._permuted + CHUNK, self._order[0])
            chunk = permute(np.arange(self._permuted, stop, dtype=np.int64), *self._order)
            self._permuted = stop
            missing -= chunk.size
            yield chunk


def check_seed(seed: object) -> int:
    """Return ``seed`` as a Python int; TypeError or ValueError unless it is an integer of 0 or more."""
    try:
        number = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool):
        raise TypeError(f"seed is {seed!r}, expected an integer of 0 or more")
    if number < 0:
        raise ValueError(f"seed is {number}, expected an integer of 0 or more")
    return number


def make_sampler(
    length: int | None,
    *,
    shuffle: bool,
    seed: int,
    sampler: Iterable[int] | Callable[[int], Iterable[int]] | None,
) -> Sampler:
    """Return the order that a loader's arguments ask for; ``length`` is the dataset's, None where unknown."""
    seed = check_seed(seed)
    if sampler is not None:
        from ringfeed.data.custom import Custom  # noqa: PLC0415  (it builds on this module)

        if shuffle:
            raise ValueError("shuffle=True and sampler= exclude each other: give the one or the other")
        return Custom(sampler, length)
    if not shuffle:
        return Sequential(length)
    if length is None:
        raise ValueError("shuffle=True needs a dataset with a length; shuffle inside the dataset instead")
    return Shuffled(length, seed)
