"""A shuffle for storage that reads fastest in order: `WindowShuffle`.

The order is part of the interface, and no later version may change it. With n samples in blocks of
b and windows of k = window // b blocks, an epoch is made in two steps, each a function of the
position alone:

    blocks     Block i is the samples from i * b to below (i + 1) * b. The whole blocks come in the
               order of ``permute(positions, n // b, seed, epoch)``. If n % b samples are left over,
               they are a short block, at place ``t`` among the others: t is the 64-bit word
               ``derive("window", (seed, epoch, n, b), 8)``, little-endian, modulo the number of all
               blocks.
    windows    Each k blocks of that order, beginning with the first, are a window, the last of
               fewer. The samples of window w, as many as s, laid side by side in the order of their
               blocks, come in the order of ``permute(positions, s, seed_w, epoch)``, where seed_w
               is the number in the 16 bytes of ``derive("window", (seed, w), 16)``, little-endian.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ringfeed.orders._permute import MAX_LENGTH
from ringfeed.orders.permutation import permute
from ringfeed.orders.rng import derive, seed_of
from ringfeed.orders.sampler import Positional, SeededSampler, check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler


class WindowShuffle(SeededSampler):
    """Shuffles blocks of neighbouring samples, and the samples within windows of blocks.

        loader = ringfeed.Loader(dataset, sampler=ringfeed.orders.WindowShuffle(10_000, block=100))

    Reading files on disks and networks is fastest in order. Here the dataset is cut into blocks of
    ``block`` samples. The blocks come in a new order each epoch; each window mixes the samples of
    ``window // block`` blocks. So with a page cache for ``window`` samples, each block is read
    once, from its first sample to its last. Every sample comes once an epoch.

    window: the number of samples that are mixed: 2 or more, rounded down to a multiple of
        ``block``.
    block: neighbouring samples per block: 1 to ``window``. By default the square root of
        ``window``, so that a window has as many blocks as a block has samples. If your storage has
        chunks, give the number of samples per chunk; ``block=window`` mixes only neighbours.

    ``Loader(dataset, shuffle=10_000)`` is short for
    ``sampler=ringfeed.orders.WindowShuffle(10_000)``.

    There is no buffer and no state to save: the order is a function of (the loader's seed, epoch,
    position), which `orders.windows` defines. It takes memory for one window of up to 4096 samples.
    Beginning at any position takes at most the work of a window.

    Raises TypeError for values that are no integers, ValueError for a window below 2, for a block
    below 1 or above the window, and in a loader whose dataset has no length.
    """

    def __init__(self, window: int, block: int | None = None) -> None:
        self._window = check_integer("window", window, 2)
        self._block = (
            math.isqrt(self._window) if block is None else check_integer("block", block, 1)
        )
        if self._block > self._window:
            raise ValueError(
                f"block is {self._block}, expected at most the window's {self._window} samples; "
                f"raise window= or make block= smaller"
            )

    def __repr__(self) -> str:
        """Return the call that makes this sampler."""
        return f"WindowShuffle({self._window}, block={self._block})"

    def bind(self, length: int | None, seed: int) -> Sampler:
        """Return the order over a dataset of ``length`` samples."""
        if length is None:
            raise ValueError(
                "WindowShuffle needs a dataset with a length; shuffle inside the dataset instead"
            )
        if length > MAX_LENGTH:
            raise ValueError(f"cannot shuffle {length} samples: 2**62 is the most")

        # Any block that is longer than the dataset gives the same order.
        block, blocks = min(self._block, length + 1), self._window // self._block

        def indices_at(number: int, start: int, stop: int) -> Indices:
            return _Windows(length, block, blocks, seed, number).indices_at(start, stop)

        return Positional(f"window:{self._window}:{self._block}", length, indices_at)


class _Windows:
    """One epoch. A place is a position before its window is mixed."""

    def __init__(self, length: int, block: int, blocks: int, seed: int, number: int) -> None:
        self._length, self._block, self._blocks = length, block, blocks  # of a window
        self._seed, self._number = seed, number
        self._whole, self._rest = divmod(length, block)
        self._short = (
            self._whole
        )  # where the short block comes among the others; past them, where there is none
        if self._rest:
            word = int.from_bytes(derive("window", (seed, number, length, block), 8), "little")
            self._short = word % (self._whole + 1)

    def indices_at(self, start: int, stop: int) -> Indices:
        return self._samples(np.concatenate([*self._places(start, stop)]))

    def _places(self, start: int, stop: int) -> Iterator[Indices]:
        """Mix the positions within each of their windows."""
        window = self._window_of(start)
        while start < stop:
            first, end = self._begin(window), self._begin(window + 1)
            seed = seed_of("window", (self._seed, window))
            positions = np.arange(start - first, min(stop, end) - first, dtype=np.int64)
            yield first + permute(positions, end - first, seed, self._number)
            start, window = end, window + 1

    def _begin(self, window: int) -> int:
        """Return the first position of a window."""
        blocks = window * self._blocks
        return min(
            blocks * self._block - (self._missing if blocks > self._short else 0), self._length
        )

    def _window_of(self, position: int) -> int:
        size = self._blocks * self._block
        window = position // size  # if the short block lies before, it may be the next
        return window + (self._begin(window + 1) <= position)

    @property
    def _missing(self) -> int:
        """How many samples the short block has fewer than others."""
        return self._block - self._rest if self._rest else 0

    def _samples(self, places: Indices) -> Indices:
        """Return the samples at some places."""
        after = places >= self._short * self._block + self._rest  # the short block
        block, row = np.divmod(places + after * self._missing, self._block)
        is_short = (block == self._short) & (self._rest > 0)
        whole = np.where(is_short, 0, block - (block > self._short) * (self._rest > 0))
        numbers = permute(whole, self._whole, self._seed, self._number) if self._whole else whole
        found: Indices = np.where(is_short, self._whole, numbers) * self._block + row
        return found
