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

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed._checks import check_count
from ringfeed.orders.checks import check_length, checked_array, digest, refuse_where
from ringfeed.orders.rng import fractions_at, key_of, words_at
from ringfeed.orders.sampler import Epoch, Positional, PositionalEpoch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ringfeed.orders.permutation import Indices, Words

    Floats: TypeAlias = NDArray[np.float64]

BLOCK = 65536  # keys made at a time
HALF_ROOT = 0.7071067811865476
LN_2 = 0.6931471805599453


class WeightedSampler(Positional):
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

    _samples: int

    def __init__(
        self,
        weights: Iterable[float],
        num_samples: int | None = None,
        replacement: bool = True,  # noqa: FBT001, FBT002  (torch's own)
    ) -> None:
        if not isinstance(replacement, bool | np.bool_):
            raise TypeError(f"replacement is {replacement!r}, expected True or False")
        self._weights = _checked_weights(weights)
        self._replacement = bool(replacement)
        name = digest(self._weights, "" if replacement else "without replacement")
        self.order = f"weighted:{name}"
        most = int(np.count_nonzero(self._weights))
        given = check_count("num_samples", num_samples, 1)
        self._samples = given or (self._weights.size if replacement else most)
        if self._samples > most and not replacement:
            raise ValueError(
                f"num_samples is {num_samples}, but without replacement only the {most} samples of "
                f"a weight above 0 can be drawn; give at most {most}, or replacement=True"
            )
        if replacement:
            # Points are looked up in the sums.
            self._weights = self._weights.cumsum()

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        return self._samples

    def __repr__(self) -> str:
        """Return the numbers of draws and of weights."""
        without = "" if self._replacement else " without replacement"
        return f"<WeightedSampler: {self._samples} draws of {self._weights.size} weights{without}>"

    def check_fits(self, length: int | None) -> None:
        """Raise ValueError unless the dataset has a sample for each weight."""
        check_length("WeightedSampler", self._weights.size, "weights", length)

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return the draws of an epoch; without replacement, they are all made at once."""
        if self._replacement:
            return super().epoch(number, start, state)
        samples = self._sorted(self._key(number))
        return PositionalEpoch(lambda at, stop: samples[at:stop], self._samples, start, self.chunk)

    def _key(self, number: int) -> Words:
        return key_of("weighted", (self.seed, number, self._weights.size))

    def indices_at(self, number: int, start: int, stop: int) -> Indices:
        """Return draws with replacement."""
        sums = self._weights
        points = fractions_at(self._key(number), start, stop) * sums[-1]
        ascending = np.argsort(points)  # with many weights, twice as fast as one after another
        drawn = np.empty(points.size, np.int64)
        drawn[ascending] = np.searchsorted(sums, points[ascending], side="right")
        return drawn

    def _sorted(self, key: Words) -> Indices:
        """Return a whole epoch without replacement."""
        weights = self._weights
        keys = np.empty(weights.size)
        for start in range(0, keys.size, BLOCK):
            block = slice(start, start + BLOCK)
            part = weights[block]
            keys[block] = _sort_keys(words_at(key, start, start + part.size), part)
        return np.argsort(keys, kind="stable")[: self._samples].astype(np.int64, copy=False)


def _sort_keys(words: Words, weights: Floats) -> Floats:
    """Return a finite key for each weight above 0, and infinity for the others."""
    with np.errstate(over="ignore", divide="ignore"):
        keys = np.minimum(_negative_log(words) / weights, np.finfo(np.float64).max)
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
    return -(exponent * LN_2 + 2.0 * part * series)


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
