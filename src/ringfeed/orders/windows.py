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

import numpy as np

from ringfeed._checks import check_count, check_integer
from ringfeed.orders.permutation import Indices, Shuffled, permute
from ringfeed.orders.rng import derive, seed_of


class WindowShuffle(Shuffled):
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

    given_as = "sampler=WindowShuffle(...)"

    def __init__(self, window: int, block: int | None = None) -> None:
        self._window = check_integer("window", window, 2)
        self._block = check_count("block", block, 1) or math.isqrt(self._window)
        if self._block > self._window:
            raise ValueError(
                f"block is {self._block}, expected at most the window's {self._window} samples; "
                f"raise window= or make block= smaller"
            )
        self.order = f"window:{self._window}:{self._block}"

    def __repr__(self) -> str:
        """Return the call that makes this sampler."""
        return f"WindowShuffle({self._window}, block={self._block})"

    def indices_at(self, number: int, start: int, stop: int) -> Indices:
        """Return the samples at these positions.

        A place is a position before its window is mixed.
        """
        length = self.dataset_length or 0
        # Any block that is longer than the dataset gives the same order.
        block, blocks = min(self._block, length + 1), self._window // self._block
        # The place of the short block among the others; after them all, if there is none.
        short, missing = length // block, -length % block
        if missing:
            word = derive("window", (self.seed, number, length, block), 8)
            short = int.from_bytes(word, "little") % (short + 1)

        def begin(window: int) -> int:
            """Return the first position of a window."""
            before = window * blocks
            return min(before * block - missing * (before > short), length)

        places, window = [], start // (blocks * block)
        while start < stop:
            first, end = begin(window), begin(window + 1)
            # If the short block lies before this window, the window may end before the start.
            if start < end:
                within = np.arange(start - first, min(stop, end) - first)
                seed = seed_of("window", (self.seed, window))
                places.append(first + permute(within, end - first, seed, number))
                start = end
            window += 1
        return self._samples_of(np.concatenate(places), number, block, short)

    def _samples_of(self, places: Indices, number: int, block: int, short: int) -> Indices:
        """Return the samples at some places, where the short block has the place ``short``."""
        whole, rest = divmod(self.dataset_length or 0, block)
        if rest:
            # As if the short block were as long as the others.
            places[places >= short * block + rest] += block - rest
        blocks, rows = np.divmod(places, block)
        is_short = blocks == short
        blocks -= blocks > short
        blocks[is_short] = 0
        blocks = permute(blocks, max(whole, 1), self.seed, number)
        blocks[is_short] = whole
        return blocks * block + rows
