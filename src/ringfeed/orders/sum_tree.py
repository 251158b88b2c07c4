"""Numbers of 0 or more, their sum, their least, and which of them a point on the line of their sums lies in.

    sums     10
            4   6        a number is the sum of the two below it: a point goes down to one of them, in O(log n)
           1 3 6 0       the numbers

Each sum is that of its own two numbers and of nothing that was there before. So the tree depends on the numbers alone,
not on the order in which they came, and does not drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
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

    def put_all(self, values: Floats) -> None:
        """Change all numbers."""
        self.put(np.arange(values.size), values)

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

        Points are from 0 to below the total. A number of 0 has none, whatever was rounded on the way.
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
        """Bring the sums up to date."""
        if count := len(self._changed):
            changed = np.concatenate(self._changed[:count])
            self._add_sums(changed)
            self._find_least(changed)
            del self._changed[:count]  # last: Ctrl-C may have come before

    def _add_sums(self, changed: Indices) -> None:
        for below, sums in zip(self._sums, self._sums[1:], strict=False):
            changed = changed >> 1
            if changed.size * FEW > sums.size:
                np.add(below[::2], below[1::2], out=sums[: below.size // 2])
            else:
                sums[changed] = below[changed * 2] + below[changed * 2 + 1]

    def _find_least(self, changed: Indices) -> None:
        below = self._sums[0]
        for least in self._least:
            changed, groups = changed // SIDE, below.reshape(-1, SIDE)
            if changed.size * FEW > len(groups):
                changed = np.arange(len(groups))
            some = groups[changed]
            least[changed] = np.where(some > 0, some, np.inf).min(axis=1)
            below = least


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
