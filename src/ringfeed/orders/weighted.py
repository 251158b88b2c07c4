"""Samples drawn by weight: `WeightedSampler`.

The order is part of the interface, and no later version may change it. All its random bits are
64-bit words of Philox4x64-10 (see `rng`), with ``derive("weighted", (seed, epoch, number of
weights), 16)`` for its key, two little-endian words. Word p is word p mod 4 of the block whose
counter is p // 4 + 1, so that any position can be asked. The weights are float64.

With replacement, word p belongs to position p. Its upper 53 bits, as a fraction of 2**53, times the
sum of all weights, are a point; the sample is the first of those whose weights, added up from
sample 0 to it in this order, exceed it.

Without replacement, word i belongs to sample i. Its upper 52 bits, as u = (bits + 0.5) / 2**52,
give the sample's key -log(u) / weight, and the samples come in the order of their keys, or, where
two keys are equal, of their numbers. That is the order of draws one after another, each by the
weights of the samples that are left (P. Efraimidis, P. Spirakis, "Weighted random sampling with a
reservoir", Information Processing Letters 97, 2006, doi:10.1016/j.ipl.2005.11.003; its key
u**(1/weight) sorts the same way, the other way round). The logarithm is a series of additions,
multiplications and divisions, which IEEE 754 rounds alike on every machine; the last bit of NumPy's
depends on the CPU.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed.orders.checks import check_length, checked_array, digest, refuse_where
from ringfeed.orders.rng import fractions_at, key_of, words_at
from ringfeed.orders.sampler import Positional, SeededSampler, check_integer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ringfeed.orders.permutation import Indices, Words
    from ringfeed.orders.sampler import Sampler

    Floats: TypeAlias = NDArray[np.float64]

BLOCK = 65536  # keys made at a time
HALF_ROOT = 0.7071067811865476
LN_2 = 0.6931471805599453


class WeightedSampler(SeededSampler):
    """Draws samples by weight: ``sampler=ringfeed.orders.WeightedSampler(weights)``.

    weights: a number of 0 or more for each sample of the dataset, with any sum: an array of one
        axis, or a list. They are copied.
    num_samples: draws per epoch; by default the number of weights or, without replacement, of
        weights above 0.
    replacement: whether a sample may be drawn again in the same epoch. Without replacement, each
        draw uses the weights of the samples that are left.

    Each epoch has new draws. The order is a function of (the loader's seed, epoch, position), the
    same on every machine; `orders.weighted` defines it. With replacement, reading can begin at any
    position at once, and the sampler takes 8 bytes a weight; a weight below 2**-53 of the sum of
    all may count as 0. Without replacement, each epoch, even a continued one, begins by sorting all
    keys; it takes 8 bytes a weight, and 24 more for each epoch that is read.

    Raises TypeError for weights that are no numbers. ValueError for weights that are NaN, infinite
    or negative, for no weight above 0, for a ``num_samples`` below 1 or, without replacement, above
    the number of weights above 0; and in a loader whose dataset has another length.
    """

    def __init__(
        self,
        weights: Iterable[float],
        num_samples: int | None = None,
        replacement: bool = True,  # noqa: FBT001, FBT002  (torch's own)
    ) -> None:
        if not isinstance(replacement, bool | np.bool_):
            raise TypeError(f"replacement is {replacement!r}, expected True or False")
        checked = _checked_weights(weights)
        self._count, self._replacement = checked.size, bool(replacement)
        self._num_samples = _checked_count(num_samples, checked, replacement=self._replacement)
        self._order = f"weighted:{digest(checked, '' if replacement else 'without replacement')}"
        self._weights = (
            checked.cumsum() if replacement else checked
        )  # added up, where points are looked up in them

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        return self._num_samples

    def __repr__(self) -> str:
        """Return the numbers of draws and of weights."""
        without = "" if self._replacement else " without replacement"
        return f"<WeightedSampler: {self._num_samples} draws of {self._count} weights{without}>"

    def bind(self, length: int | None, seed: int) -> Sampler:
        """Return the order over a dataset of ``length`` samples."""
        check_length("WeightedSampler", self._count, "weights", length)
        if self._replacement:
            return Positional(self._order, self._num_samples, partial(self._drawn, seed))
        sorted_of = lru_cache(maxsize=1)(partial(self._sorted, seed))
        return Positional(
            self._order,
            self._num_samples,
            lambda number, start, stop: sorted_of(number)[start:stop],
        )

    def _drawn(self, seed: int, number: int, start: int, stop: int) -> Indices:
        """Return draws with replacement."""
        key, sums = key_of("weighted", (seed, number, self._count)), self._weights
        points = fractions_at(key, start, stop) * sums[-1]
        ascending = np.argsort(points)  # with many weights, twice as fast as one after another
        drawn = np.empty(points.size, np.int64)
        drawn[ascending] = np.searchsorted(sums, points[ascending], side="right")
        return drawn

    def _sorted(self, seed: int, number: int) -> Indices:
        """Return a whole epoch without replacement."""
        key, keys = key_of("weighted", (seed, number, self._count)), np.empty(self._count)
        for start in range(0, self._count, BLOCK):
            stop = min(start + BLOCK, self._count)
            keys[start:stop] = _sort_keys(words_at(key, start, stop), self._weights[start:stop])
        order = np.argsort(keys, kind="stable")[: self._num_samples]
        return order.astype(np.int64, copy=False)


def _sort_keys(words: Words, weights: Floats) -> Floats:
    """Return a finite key for each weight above 0, and infinity for the others."""
    with np.errstate(over="ignore", divide="ignore"):
        keys: Floats = np.minimum(_negative_log(words) / weights, np.finfo(np.float64).max)
    keys[weights == 0] = np.inf
    return keys


def _negative_log(words: Words) -> Floats:
    """Return -log(u) of a u between 0 and 1 for each word.

    With f near 1, log(f) = 2 artanh((f - 1) / (f + 1)).
    """
    fraction, exponent = np.frexp(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
    low = fraction < HALF_ROOT
    fraction[low] *= 2.0
    exponent[low] -= 1
    part = (fraction - 1.0) / (fraction + 1.0)
    square, series = part * part, np.zeros_like(part)
    for power in range(21, 0, -2):
        series = series * square + 1.0 / power
    found: Floats = -(exponent * LN_2 + 2.0 * part * series)
    return found


def _checked_weights(weights: Any) -> Floats:
    axis = "one axis, a weight for each sample"
    given = checked_array("weights are", weights, "biuf", "numbers", axis)
    if not given.size:
        raise ValueError(f"weights are an array of shape {given.shape}, expected {axis}")
    checked = given.astype(np.float64)  # a copy
    refuse_where(
        ~(np.isfinite(checked) & (checked >= 0)), "weights", checked, "a finite number of 0 or more"
    )
    if not checked.any():
        raise ValueError(f"all {checked.size} weights are 0, expected at least one above 0")
    with np.errstate(over="ignore"):
        if not np.isfinite(checked.cumsum()[-1]):
            raise ValueError("the sum of all weights is infinite; divide them by their largest")
    return checked


def _checked_count(num_samples: int | None, weights: Floats, *, replacement: bool) -> int:
    most = weights.size if replacement else np.count_nonzero(weights)
    if num_samples is None:
        return int(most)
    count = check_integer("num_samples", num_samples, 1)
    if count > most and not replacement:
        raise ValueError(
            f"num_samples is {count}, but without replacement only the {most} samples of a weight "
            f"above 0 can be drawn; give at most {most}, or replacement=True"
        )
    return count
