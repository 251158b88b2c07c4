"""The shuffled order: a function of (position, length, seed, epoch), without any state.

It is part of the interface, and no later version may change it. All its random bits are
``derive("order", (seed, epoch, length), size)`` (see `randomness`), little-endian. An epoch of

- at most 4096 samples is sorted by random keys (T. Cormen and others, "Introduction to Algorithms", 5.3): the
  i-th 64-bit word belongs to sample i, and the samples come in the order of their words, or, where two words
  are equal, of their numbers.
- more samples goes through VariablePhilox with 24 rounds (R. Mitchell, D. Stokes, E. Frank, G. Holmes,
  "Bandwidth-Optimal Random Shuffling for GPUs", ACM Transactions on Parallel Computing 9 (1), 2022,
  doi:10.1145/3505287; after J. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a
  bijection on the numbers of the fewest bits that hold length - 1; round i has the i-th 32-bit word for its
  key. A result that is no sample goes through again, until it is one: the cycle walking of J. Black,
  P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002. It takes under two passes on average.

Sorting makes all permutations equally likely, for lengths where the bijection has too few bits of state to be
random. What remains of that: the order of exactly 2**n samples, n > 12, is always an even permutation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ringfeed.randomness import derive

if TYPE_CHECKING:
    from numpy.typing import NDArray

Indices: TypeAlias = "NDArray[np.int64]"
Words: TypeAlias = "NDArray[np.uint64]"

MAX_LENGTH = 2**62  # halves of 31 bits: the products below fit 64
MAX_SORTED_LENGTH = 4096
ROUNDS = 24

# Arrays without axes, not scalars: a ufunc takes them in half the time.
MULTIPLIER = np.array(0xD2B74407B1CE6E93, dtype=np.uint64)  # of Philox2x64
HALF_WORD = np.array(32, dtype=np.uint64)


def permute(positions: NDArray[np.int64] | Words, length: int, seed: int, epoch: int) -> Indices:
    """Return the samples at ``positions`` of a shuffled epoch: a bijection of range(length) onto itself.

    ``length`` is 1 to 2**62; ``seed`` and ``epoch`` are any integers of 0 or more. Takes 20 to 120 ns a
    position in a call with ten thousand, and memory for the positions alone.
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
    keys = np.frombuffer(derive("order", (seed, epoch, length), 4 * ROUNDS), "<u4").astype(np.uint64)
    return _walk(numbers, length, keys).view(np.int64)


def _walk(numbers: Words, length: int, keys: Words) -> Words:
    bits = (length - 1).bit_length()
    numbers = _variable_philox(numbers, keys, bits)
    limit = np.uint64(length)
    outside = np.flatnonzero(numbers >= limit)
    while outside.size:
        again = _variable_philox(numbers[outside], keys, bits)
        numbers[outside] = again
        outside = outside[again >= limit]
    return numbers


def _variable_philox(numbers: Words, keys: Words, bits: int) -> Words:
    """Return where the bijection on ``bits`` bits takes each number.

    A number is a left half of bits // 2 and a right half of the rest. A round multiplies the left half: the
    product's bits from 32 up, the key and the right half become the new left half, the product's low bits the
    new right one. Multiplying by an odd constant can be undone, and therefore the round. Where ``bits`` is
    odd, the right half's spare bit moves down to its low end.
    """
    shift = bits % 2
    low_bits, high_bits = _word(bits // 2), _word(bits - bits // 2)
    low_mask, high_mask = _word(2 ** (bits // 2) - 1), _word(2 ** (bits - bits // 2) - 1)
    left, right = numbers >> high_bits, numbers & high_mask
    product = np.empty_like(numbers)
    for key in keys.reshape(-1, 1):
        np.multiply(left, MULTIPLIER, product)
        np.right_shift(product, HALF_WORD, left)
        np.bitwise_xor(left, key, left)
        np.bitwise_xor(left, right, left)
        np.bitwise_and(left, low_mask, left)
        if shift:
            np.right_shift(right, low_bits, right)
            np.bitwise_or(right, np.left_shift(product, 1, product), right)
            np.bitwise_and(right, high_mask, right)
        else:
            np.bitwise_and(product, high_mask, right)
    combined: Words = (left << high_bits) | right
    return combined


def _word(number: int) -> Words:
    return np.array(number, dtype=np.uint64)
