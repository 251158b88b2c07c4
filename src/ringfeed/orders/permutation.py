"""The shuffled order: a function of (position, length, seed, epoch), without any state.

The order is part of the interface, and no later version may change it. All its random bits are
``derive("order", (seed, epoch, length), size)`` (see `rng`), little-endian. An epoch of

- at most 4096 samples is sorted by random keys (T. Cormen and others, "Introduction to Algorithms",
  5.3): the i-th 64-bit word belongs to sample i, and the samples come in the order of their words,
  or, where two words are equal, of their numbers.
- more samples goes through VariablePhilox with 24 rounds (R. Mitchell, D. Stokes, E. Frank, G.
  Holmes, "Bandwidth-Optimal Random Shuffling for GPUs", ACM Transactions on Parallel Computing 9
  (1), 2022, doi:10.1145/3505287; after J. Salmon and others, "Parallel random numbers: as easy as
  1, 2, 3", SC 2011), a bijection on the numbers of the fewest bits that hold length - 1; round i
  has the i-th 32-bit word for its key. A result that is no sample goes through again, until it is
  one: the cycle walking of J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
  2002. It takes under two passes on average.

In a round of VariablePhilox a number is a left half of bits // 2 and a right half of the rest. The
left half is multiplied by 0xd2b74407b1ce6e93, of Philox2x64: the product's bits from 32 up, the key
and the right half become the new left half, the product's low bits the new right one. Multiplying
by an odd constant can be undone, and therefore the round. Where the bits are odd, the right half's
spare bit moves down to its low end. `cext/bytes/permute.c` does it.

Sorting makes all permutations equally likely, for lengths where the bijection has too few bits of
state to be random. One trace remains: the order of exactly 2**n samples, n > 12, is always an
even permutation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ringfeed.orders._permute import MAX_LENGTH, ROUNDS, walk
from ringfeed.orders.rng import derive
from ringfeed.orders.sampler import Positional

if TYPE_CHECKING:
    from numpy.typing import NDArray

Indices: TypeAlias = "NDArray[np.int64]"
Words: TypeAlias = "NDArray[np.uint64]"

MAX_SORTED_LENGTH = 4096


def permute(positions: NDArray[np.int64] | Words, length: int, seed: int, epoch: int) -> Indices:
    """Return the samples at ``positions`` of a shuffled epoch: a bijection of range(length).

    ``length`` is 1 to 2**62; ``seed`` and ``epoch`` are any integers of 0 or more. Takes 10 to 25
    ns a position, and memory for the positions alone.
    """
    numbers = positions.astype(np.uint64)  # negative ones become huge
    if numbers.size and numbers.max() >= length:
        raise IndexError(
            f"positions are {positions.min()} to {positions.max()}, expected 0 to {length - 1}: "
            f"the epoch has {length} samples"
        )
    if length <= MAX_SORTED_LENGTH:
        words = np.frombuffer(derive("order", (seed, epoch, length), 8 * length), "<u8")
        return np.argsort(words, kind="stable")[numbers.view(np.int64)].astype(np.int64, copy=False)
    keys = np.frombuffer(derive("order", (seed, epoch, length), 4 * ROUNDS), "<u4").astype(
        np.uint32, copy=False
    )
    walk(numbers, length, keys)
    return numbers.view(np.int64)


def permute_few(positions: NDArray[np.int64], length: int, seed: int, epoch: int) -> Indices:
    """Return the result of `permute`, faster for few positions of many short epochs."""
    if length > MAX_SORTED_LENGTH:
        return permute(positions, length, seed, epoch)
    return _whole(length, seed, epoch)[positions].astype(np.int64)


@lru_cache(maxsize=1024)  # of 8 kB at most
def _whole(length: int, seed: int, epoch: int) -> NDArray[np.int16]:
    return permute(np.arange(length), length, seed, epoch).astype(np.int16)


class Shuffled(Positional):
    """Every sample once an epoch, in an order that is a function of (seed, epoch).

    It keeps no other state.
    """

    order = "shuffled"
    given_as = "shuffle=True"

    def check_fits(self, length: int | None) -> None:
        """Raise ValueError for a length that is unknown, or beyond the numbers of `permute`."""
        if length is None:
            raise ValueError(
                f"{self.given_as} needs a dataset with a length; shuffle inside the dataset instead"
            )
        if length > MAX_LENGTH:
            raise ValueError(f"cannot shuffle {length} samples: 2**62 is the most")

    def indices_at(self, number: int, start: int, stop: int) -> Indices:
        """Return the samples at these positions."""
        return permute(np.arange(start, stop), self.dataset_length or 0, self.seed, number)
