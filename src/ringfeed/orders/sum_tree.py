"""Numbers of 0 or more, their sum, their least, and which of them a point on the line of their sums lies in.

    sums     10
            4   6        a number is the sum of the two below it: a point goes down to one of them, in O(log n)
           1 3 6 0       the numbers

Each sum is that of its own two numbers and of nothing that was there before. So the tree depends on
the numbers alone, not on the order in which they came, and does not drift.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ringfeed.orders.permutation import Indices

    Floats: TypeAlias = NDArray[np.float64]

SIDE = 16  # numbers that a least one is of: 16 bytes a number are those of the sums
FEW = 8  # sums a changed one: with fewer, all are added up again


class SumTree:
    """It takes 17 bytes a number. Changes are added up when something is asked for. Not thread-safe."""

    def __init__(self, size: int) -> None:
        """Begin with zeros."""
        self._sums = [np.zeros(_up(size, SIDE))]
        while self._sums[-1].size > 2:  # noqa: PLR2004  (two numbers have one sum)
            self._sums.append(np.zeros(_up(self._sums[-1].size // 2, 2)))
        self._least = [np.full(_up(self._sums[0].size // SIDE, SIDE), np.inf)]
        while self._least[-1].size > SIDE:
            self._least.append(np.full(_up(self._least[-1].size // SIDE, SIDE), np.inf))
        self.values = self._sums[0][:size]
        """The numbers. Change them by `put`."""
        self._changed: list[Indices] = []

    def put(self, indices: Indices, values: Floats) -> None:
        """Change some numbers; where an index comes twice, the last one counts."""
        self._changed.append(indices)  # first: what breaks off in between is added up all the same
        self.values[indices] = values

    def total(self) -> float:
        """Return the sum of all."""
        self._add_up()
        return float(self._sums[-1].sum())

    def least(self) -> float:
        """Return the least number above 0; infinity where there is none."""
        self._add_up()
        return float(self._least[-1].min())

    def find(self, points: Floats) -> Indices:
        """Return which number each point is in: the first whose sum with all before it exceeds the point.

        Points are from 0 to below the total. A number of 0 has none, whatever was rounded on the
        way.
        """
        self._add_up()
        found, points = np.zeros(points.size, np.int64), points.copy()
        for level in reversed(self._sums):
            found <<= 1
            left = level.take(found)
            right = (points >= left) & (level.take(found + 1) > 0)
            np.subtract(points, left, out=points, where=right)
            found += right
        return found

    def _add_up(self) -> None:
        """Bring the sums and the least numbers up to date."""
        if count := len(self._changed):
            changed = np.concatenate(self._changed[:count])
            _update(self._sums, changed, 2, lambda pairs: pairs[:, 0] + pairs[:, 1])
            _update([self._sums[0], *self._least], changed, SIDE, _least_above_0)
            del self._changed[:count]  # last: Ctrl-C may have come before


def _update(
    levels: list[Floats], changed: Indices, side: int, combine: Callable[[Floats], Floats]
) -> None:
    """Make anew what depends on some changed numbers: each number is made of ``side`` of the level below."""
    for below, above in pairwise(levels):
        groups = below.reshape(-1, side)
        changed = changed // side
        if changed.size * FEW > len(groups):
            changed = np.arange(len(groups))
        above[changed] = combine(groups[changed])


def _least_above_0(groups: Floats) -> Floats:
    least: Floats = np.where(groups > 0, groups, np.inf).min(axis=1)
    return least


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
