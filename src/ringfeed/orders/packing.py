"""Which samples make each row of a `Pack`: functions of (seed, epoch, row).

An epoch keeps some kilobytes.

They are part of the interface, and no later version may change them. Samples of length 0 are left
out, and n is the number of the others. Without a shuffle every epoch is alike.

"ffd"   With K = ceil(n / window), the samples are sorted by length, the longest first, those of one
        length by number, and this row is cut into classes of K; the last may have fewer. A
        class of m samples has them in the order of their numbers. Window k, one of K, has a sample
        of each class: the one at place ``(k + s) % m``, where s is 0 or, shuffled, the word of the
        class's number among those of ``words_at(key, 0, classes)``, and the key is the two
        little-endian words of ``derive("pack", (seed, epoch), 16)``. Where the last class has m < K
        samples, windows from m on have none of it.
        All windows are packed by one pattern: as if each sample were as long as the longest of its
        class, by first fit decreasing (D. S. Johnson, "Near-Optimal Bin Packing Algorithms",
        thesis, MIT 1973; D. S. Johnson, A. Demers, J. D. Ullman, M. R. Garey, R. L. Graham,
        "Worst-Case Performance Bounds for Simple One-Dimensional Packing Algorithms", SIAM Journal
        on Computing 3 (4), 1974, doi:10.1137/0203025): the classes from the longest down, each into
        the first row of the pattern that has room for it. It takes at most 11/9 of the fewest rows,
        and one more. Row i of a pattern of R rows is row ``i % R`` of window ``i // R``; a last row
        of the pattern that has the last class alone, of m < K samples, comes after all others, m
        times.
"wrap"  Unshuffled, all samples side by side, in the order of their numbers, are cut every
        max_length elements. Shuffled, sample j of the n is one of window ``j % K``; the windows
        come in the order of ``permute(positions, K, seed, epoch)``, and the m samples of window k
        in that of ``permute(positions, m, seed_k, epoch)``, where seed_k is the number in the 16
        bytes of ``derive("pack", (seed, k), 16)``, little-endian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.orders.permutation import Indices, permute
from ringfeed.orders.rng import key_of, seed_of, words_at

if TYPE_CHECKING:
    from collections.abc import Callable


KEPT = 4  # windows, and what belongs to an epoch
FFD_WINDOW, FFD_ROWS = 2048, 128  # samples by default; rows that they should fill at least
WRAP_WINDOW = 65536


class Pieces(NamedTuple):
    """The parts of samples that lie side by side in a row."""

    samples: Indices
    begins: Indices
    ends: Indices


class Packing(ABC):
    """The rows of an epoch."""

    rows: int
    """Of every epoch."""
    most: int
    """Pieces that a row has."""

    def __init__(self, lengths: Indices) -> None:
        """``lengths``: of all samples."""
        self.lengths = lengths
        self._kept: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the cached parts."""
        return {**self.__dict__, "_kept": {}}

    @abstractmethod
    def pieces(self, row: int, seed: int | None, epoch: int) -> Pieces:
        """Return the pieces of a row; ``seed``: of a shuffled epoch."""

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the cached result of ``make`` for this key, or make it again.

        From any thread.
        """
        kept = self._kept
        if key not in kept:
            found = make()
            self._kept = {**(kept if len(kept) < KEPT else {}), key: found}
            return found
        return kept[key]


# ---- first fit decreasing ----


class FirstFit(Packing):
    """Whole samples, each in a row that has room for it."""

    def __init__(self, lengths: Indices, max_length: int, window: int | None) -> None:
        """Pack lengths of at most ``max_length``."""
        super().__init__(lengths)
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        if window is None:
            window = max(
                FFD_WINDOW, -(-FFD_ROWS * max_length * order.size // max(int(lengths.sum()), 1))
            )
        self._windows = max(-(-order.size // window), 1)
        longest = lengths[order[:: self._windows]]  # of each class
        fit = first_fit(longest, max_length)
        self._classes = np.argsort(fit, kind="stable")  # row by row
        counts = np.bincount(fit)  # pieces of each row of the pattern
        self._edges = np.concatenate([[0], np.cumsum(counts)])
        self.most = int(counts.max(initial=0))
        self._last = order.size - self._windows * max(
            longest.size - 1, 0
        )  # samples of the last class
        is_alone = bool(
            self._last < self._windows and counts[-1] == 1 and fit[-1] == counts.size - 1
        )
        self._each = counts.size - is_alone  # rows of every window
        self.rows = self._windows * self._each + is_alone * self._last
        full = order[: order.size // self._windows * self._windows].reshape(-1, self._windows)
        full.sort(axis=1)
        order[full.size :].sort()
        self._members = order

    def pieces(self, row: int, seed: int | None, epoch: int) -> Pieces:
        """Return what a row is made of."""
        whole = self._windows * self._each
        window, place = divmod(row, self._each) if row < whole else (row - whole, self._each)
        classes = self._classes[self._edges[place] : self._edges[place + 1]]
        last = self._edges[-1] - 1
        if window >= self._last:
            classes = classes[classes != last]
        sizes = np.where(classes == last, self._last, self._windows)
        places = np.full(classes.size, window, np.int64)
        if seed is not None:
            make = partial(words_at, key_of("pack", (seed, epoch)), 0, int(last) + 1)
            shifts = self.keep((seed, epoch), make)
            places += (shifts[classes] % sizes.astype(np.uint64)).astype(np.int64)
        found = classes * self._windows + places % sizes
        samples = self._members[found]
        return Pieces(samples, np.zeros_like(samples), self.lengths[samples])


def first_fit(lengths: Indices, room: int) -> Indices:
    """Return the bin of each of some descending lengths: the first that has room for it.

    Equal lengths are placed together: for each different length the bins are looked through once.
    """
    left, bins, used = np.full(lengths.size, room), list[int](), 0
    sizes, counts = np.unique(lengths, return_counts=True)
    for size, missing in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        fits = np.flatnonzero(left[:used] >= size)
        for place in chain[int](fits, range(used, left.size)):
            fitting = min(missing, int(left[place]) // size)
            left[place] -= fitting * size
            bins += [place] * fitting
            missing -= fitting  # noqa: PLW2901 - what is left of them
            if not missing:
                used = max(used, place + 1)
                break
    return np.array(bins, np.int64)


# ---- side by side ----


class Wrapped(Packing):
    """All samples side by side, cut into rows of one length."""

    def __init__(self, lengths: Indices, max_length: int, window: int | None) -> None:
        """Cut samples of any length."""
        super().__init__(lengths)
        self._members = np.flatnonzero(lengths)
        self._row = max_length
        self._total = int(lengths.sum())
        self.rows = -(-self._total // max_length)
        count = self._members.size
        self._windows = max(-(-count // (window or WRAP_WINDOW)), 1)
        self._each = -(-count // self._windows)  # samples of a window, at most
        self._totals = {
            mixed: np.array(
                [
                    lengths[self._window(number, mixed=mixed)].sum()
                    for number in range(self._windows)
                ]
            )
            for mixed in (False, True)
        }
        shortest = np.sort(
            np.partition(lengths[self._members], min(max_length, count) - 1)[:max_length]
        )
        within = int(np.searchsorted(np.cumsum(shortest), max_length - 2, "right"))
        self.most = min(within + 2, max_length, count)

    def _window(self, number: int, *, mixed: bool) -> Indices:
        """Return the samples of a window."""
        first, each = number * self._each, self._each
        return (
            self._members[number :: self._windows] if mixed else self._members[first : first + each]
        )

    def pieces(self, row: int, seed: int | None, epoch: int) -> Pieces:
        """Return what a row is made of."""
        begin, end = row * self._row, min((row + 1) * self._row, self._total)
        windows, starts = self.keep((seed, epoch), lambda: self._begin(seed, epoch))
        turn = int(np.searchsorted(starts, begin, "right")) - 1
        found = []
        while begin < end:
            number, start, most = (
                int(windows[turn]),
                int(starts[turn]),
                min(end, int(starts[turn + 1])),
            )
            samples, ends = self.keep(
                (seed, epoch, number), partial(self._read, number, seed, epoch)
            )
            found.append(self._cut(samples, ends, begin - start, most - start))
            begin, turn = most, turn + 1
        return Pieces(*map(np.concatenate, zip(*found, strict=True)))

    def _begin(self, seed: int | None, epoch: int) -> tuple[Indices, Indices]:
        """Return the windows in order, the first element of each, and the end."""
        windows = np.arange(self._windows)
        if seed is not None:
            windows = permute(windows, self._windows, seed, epoch)
        return windows, np.concatenate([[0], np.cumsum(self._totals[seed is not None][windows])])

    def _read(self, number: int, seed: int | None, epoch: int) -> tuple[Indices, Indices]:
        """Return a window's samples in order, and the end of each."""
        samples = self._window(number, mixed=seed is not None)
        if seed is not None:
            own = seed_of("pack", (seed, number))
            samples = samples[permute(np.arange(samples.size), samples.size, own, epoch)]
        return samples, np.cumsum(self.lengths[samples])

    def _cut(self, samples: Indices, ends: Indices, begin: int, end: int) -> Pieces:
        """Return the pieces from one element of a window to below another."""
        first, last = np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end, "left")
        samples, ends = samples[first : last + 1], ends[first : last + 1]
        lengths = self.lengths[samples]
        starts = ends - lengths
        return Pieces(samples, np.maximum(begin - starts, 0), np.minimum(end - starts, lengths))


STRATEGIES: dict[str, type[FirstFit | Wrapped]] = {"ffd": FirstFit, "wrap": Wrapped}
