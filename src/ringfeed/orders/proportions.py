"""The dataset from which each position of a mix draws.

It is part of the interface, and no later version may change it.

**Shares.** Weights are exact fractions with the decimals that they are written with (0.7 is 7/10),
reduced to integers w_i without a common divisor, of sum W. Where W would be above 2**30, w_i is
2**30 times the weight's share of their sum, to the nearest, and at least 1 for a weight above 0.
Without weights, w_i are the lengths.

**Totals.** With lengths L_i, an epoch of ``stop="first"`` has N = floor(min L_i W / w_i) draws, so
that no sample comes twice; one of ``"all"`` has N = ceil(max L_i W / w_i), so that each comes once
at least; a dataset of weight 0 does not count. Dataset i is drawn a_i times: N w_i / W, rounded by
largest remainders (A. Hamilton's method; M. Balinski, H. P. Young, "Fair Representation", 1982), up
first where that uses the dataset up. ``"never"`` has a_i = w_i and N = W, over and over.

**Draws.** They are systematic samples (W. Madow, L. Madow, "On the theory of systematic sampling,
I", Annals of Mathematical Statistics 15 (1), 1944, doi:10.1214/aoms/1177731312). Let x_i = r a_i /
N be the share of dataset i in a block of r positions, X_i = x_0 + ... + x_i, and q the least number
for which all q X_i are integers. Block k draws from datasets 0 to i, together, floor(X_i + u_k)
times, where u_k = ((s + k g) mod q) / q and s is 0 at first (see `mix`). So each dataset has
floor(x_i) or ceil(x_i) positions of each block, and its exact share of q blocks.

- A block is one position or, with ``per_batch=True``, a batch; there dataset i's rows j = 0, 1, ...
  of n_i are put in the order of (2 j + 1) / (2 n_i), equal ones in the order of the datasets.
- A last batch of t < r positions that ends an epoch has b_i of each dataset: a_i - (N - t) w_i / W,
  rounded to 0 or more by largest remainders. The blocks ahead of it share a_i - b_i, so that the
  totals stay exact.
- g is one of the first 32 numbers without a common divisor with q from floor(q * 0x9E3779B97F4A7C15
  / 2**64) on, q over the golden ratio: the first for which no term of the continued fraction of g /
  q is above 5 or, if there is none, the first whose greatest term is least. Then counts are never
  far from shares: by terms of log k (L. Kuipers, H. Niederreiter, "Uniform Distribution of
  Sequences", 1974, 2.3).
- Counts at any position are sums of floors of a line, which Euclid's algorithm gives in O(log q)
  (R. Graham, D. Knuth, O. Patashnik, "Concrete Mathematics", 3.5): an epoch goes on at any position
  without the draws ahead of it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, islice
from itertools import count as count_from
from math import gcd, isfinite, lcm
from numbers import Rational, Real
from operator import add, sub
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.orders.sampler import CHUNK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.orders.permutation import Indices

FINEST = 2**30  # weights are rounded to such parts of their sum
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
STEPS = 32  # numbers that are tried as a step
GOOD_TERM = 5  # of a continued fraction
NARROW = 2**50  # times CHUNK, still 63 bits


# ---- shares ----


def shares_of(weights: Any, count: int, name: str = "weights") -> tuple[int, ...]:
    """Return weights as integers in the same proportions.

    Raises ValueError or TypeError for invalid weights, with their ``name``.
    """
    try:
        given = [*(weights.tolist() if hasattr(weights, "tolist") else weights)]
    except TypeError:
        raise TypeError(
            f"{name} is of type {type(weights).__name__}, expected {count} numbers"
        ) from None
    if len(given) != count:
        raise ValueError(
            f"{name} has length {len(given)}, expected {count}, a number for each dataset"
        )
    exact = [_exact(weight, f"{name}[{number}]") for number, weight in enumerate(given)]
    total = sum(exact)
    if not total:
        raise ValueError(f"{name} is {given}, expected at least one number above 0")
    finest = lcm(*(part.denominator for part in exact))
    parts = _reduced([int(part * finest) for part in exact])
    if sum(parts) > FINEST:
        parts = _reduced([max(round(FINEST * part / total), 1) if part else 0 for part in exact])
    return parts


def _exact(weight: object, name: str) -> Fraction:
    if not isinstance(weight, Real) or isinstance(weight, bool):
        raise TypeError(f"{name} is {weight!r} of type {type(weight).__name__}, expected a number")
    if isinstance(weight, Rational):
        found = Fraction(int(weight.numerator), int(weight.denominator))
    else:
        found = Fraction(repr(float(weight))) if isfinite(float(weight)) else Fraction(-1)
    if found < 0:
        raise ValueError(f"{name} is {weight}, expected a finite number of 0 or more")
    return found


def _reduced(parts: Sequence[int]) -> tuple[int, ...]:
    divisor = gcd(*parts) or 1
    return tuple(part // divisor for part in parts)


def rounded(parts: Sequence[Fraction], total: int, first: Sequence[bool] = ()) -> list[int]:
    """Round parts of a total to integers of 0 or more, up by largest remainders.

    Parts that are ``first`` come ahead of others.

    If negative parts leave the others too much, each other part gives up one in turn, the smallest
    remainder first.
    """
    found = [max(part.__floor__(), 0) for part in parts]
    order = sorted(
        range(len(parts)), key=lambda i: (not (first and first[i]), found[i] - parts[i], i)
    )
    for number in order[: max(total - sum(found), 0)]:
        found[number] += 1
    while (surplus := sum(found) - total) > 0:
        for number in [i for i in reversed(order) if found[i]][:surplus]:
            found[number] -= 1
    return found


def totals(weights: Sequence[int], left: Sequence[int], stop: str) -> list[int]:
    """Return how often each dataset is drawn until the epoch stops; ``left``: its samples."""
    if stop == "never":
        return [*weights]
    whole = sum(weights)
    ends = [
        Fraction(rest * whole, weight) for weight, rest in zip(weights, left, strict=True) if weight
    ]
    draws = min(ends).__floor__() if stop == "first" else max(ends).__ceil__()
    parts = [Fraction(draws * weight, whole) for weight in weights]
    uses_up = [rest - 1 < part < rest for part, rest in zip(parts, left, strict=True)]
    return rounded(parts, draws, uses_up)


# ---- draws ----


class Pattern:
    """The datasets from which the positions of an epoch draw, from one of them on.

    For given amounts, or repeated without end; positions count from the epoch's start.
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        start: int,
        before: tuple[int, ...],
        weights: tuple[int, ...],
        amounts: Sequence[int],
        rows: int,
        *,
        ends: bool,
    ) -> None:
        """Draw ``amounts`` in blocks of ``rows``; ``before``: draws ahead of the start."""
        self.start, self.before, self.weights = start, before, weights
        self._amounts, self._rows, self._ends = amounts, rows, ends
        self._draws = sum(amounts)
        self._last: list[int] = []  # what the last block has, which is shorter
        cumulated = [amount * rows for amount in accumulate(amounts)]
        blocks = self._draws
        if ends and rows > 1:
            rest, whole = self._draws % rows, sum(weights)
            parts = [
                amount - Fraction((self._draws - rest) * weight, whole)
                for amount, weight in zip(amounts, weights, strict=True)
            ]
            self._last = rounded(parts, rest)
            cumulated = [*accumulate(map(sub, amounts, self._last))]
            blocks //= rows
        self._period, *self._cumulated = _reduced([blocks or 1, *cumulated])
        self._step = step_of(self._period)
        self._shift = self._period * (start // rows * GOLDEN % 2**64) >> 64
        self._dtype = np.dtype(np.int64 if self._period * rows < NARROW else object)

    def members(self, position: int, count: int) -> Indices:
        """Return at most ``count`` datasets' numbers from a position on, fewer at the end."""
        position -= self.start
        if self._ends:
            count = min(count, self._draws - position)
        count = max(min(count, max(CHUNK, self._rows)), 0)
        if self._rows == 1:
            above = self._period - self._offsets(position, count)
            edges = np.array(self._cumulated, self._dtype)
            return np.searchsorted(edges, above, "left").astype(np.int64)
        block, skipped = divmod(position, self._rows)
        counts = self._counts_from(block, -(-(skipped + count) // self._rows))
        return spread(counts)[skipped : skipped + count]

    def _offsets(self, block: int, count: int) -> Any:
        """Return q u_k of blocks."""
        first = (self._shift + block * self._step) % self._period
        return (np.arange(count).astype(self._dtype) * self._step + first) % self._period

    def _counts_from(self, block: int, count: int) -> Indices:
        """Return how often each block, a row, draws from each dataset."""
        full = max(min(count, self._draws // self._rows - block), 0) if self._ends else count
        edges = np.array([0, *self._cumulated], self._dtype)
        cumulated = (edges + self._offsets(block, full)[:, None]) // self._period
        counts = np.diff(cumulated).astype(np.int64)
        return np.concatenate([counts, [self._last]]) if full < count else counts

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how often each dataset is drawn before a position of the epoch."""
        begun = position - self.start
        if self._ends and begun >= self._draws:
            return tuple(map(add, self.before, self._amounts))
        blocks, rest = divmod(begun, self._rows)
        # Of whole blocks, from the datasets below each edge.
        line = self._step, self._period
        sums = [floor_sum(blocks, edge + self._shift, *line) for edge in (0, *self._cumulated)]
        last = np.bincount(self.members(position - rest, rest), minlength=len(self._amounts))
        return tuple(map(add, map(add, self.before, map(sub, sums[1:], sums)), last.tolist()))


def spread(counts: Indices) -> Indices:
    """Return the datasets' numbers, block by block, each spread evenly over its block."""
    blocks, datasets = counts.shape
    flat = counts.ravel()
    members = np.repeat(np.tile(np.arange(datasets), blocks), flat)
    ranks = np.arange(len(members)) - np.repeat(np.cumsum(flat) - flat, flat)
    places = (2 * ranks + 1) / (2 * np.repeat(flat, flat)) + np.repeat(
        np.arange(blocks), counts.sum(1)
    )
    return members[np.argsort(places, kind="stable")]


def floor_sum(count: int, first: int, step: int, period: int) -> int:
    """Return the sum of floor((first + k * step) / period) over k from 0 to count - 1."""
    found = 0
    while count > 0:
        whole, step = divmod(step, period)
        found += whole * (count * (count - 1) // 2)
        whole, first = divmod(first, period)
        found += whole * count
        # Now below the diagonal: count the same lattice points by columns of the other axis.
        count, first = divmod(first + step * count, period)
        step, period = period, step
    return found


@lru_cache(maxsize=64)
def step_of(period: int) -> int:
    """Return the g of a q: see the module's docstring."""
    first = period * GOLDEN >> 64
    steps = (step for step in count_from(first) if gcd(step, period) == 1)
    best, least = first, period + 1
    for step in islice(steps, min(STEPS, period)):
        greatest = _greatest_term(step, period)
        if greatest < least:
            best, least = step, greatest
        if least <= GOOD_TERM:
            break
    return best


def _greatest_term(step: int, period: int) -> int:
    greatest = 0
    while step:
        term, rest = divmod(period, step)
        greatest = max(greatest, term)
        period, step = step, rest
    return greatest
