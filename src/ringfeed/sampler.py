"""Which sample comes when: an epoch hands out sample numbers, in order and in constant memory.

    permute            the shuffled order itself: a function of (position, length, seed, epoch), no state
    Sequential         0, 1, 2, ...
    Shuffled           every number once, in the order of `permute`
    Custom             whatever an iterable of the user's gives, checked
    make_sampler       one of the three, from the arguments of the loader
    batch_count        how many batches an epoch has

A sampler makes epochs, an epoch is read by ``take(count)``: ``Shuffled(10**9, seed=0).epoch(3).take(128)``.

The shuffled order is part of the interface, and no later version may change it. All its random bits are
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

import operator
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from ringfeed.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

Indices: TypeAlias = "NDArray[np.int64]"
Words: TypeAlias = "NDArray[np.uint64]"

MAX_LENGTH = 2**62  # halves of 31 bits: the products below fit 64
MAX_SORTED_LENGTH = 4096
ROUNDS = 24
CHUNK = 16_384  # positions permuted at a time; with fewer, the last few walkers cost more than all others

# Arrays without axes, not scalars: a ufunc takes them in half the time.
MULTIPLIER = np.array(0xD2B74407B1CE6E93, dtype=np.uint64)  # of Philox2x64
HALF_WORD = np.array(32, dtype=np.uint64)


class Epoch(Protocol):
    """One pass over the samples."""

    def take(self, count: int) -> Indices:
        """Return the next ``count`` sample numbers, contiguous; fewer at the end of the epoch, then none."""


class Sampler(Protocol):
    """What a loader needs to know of an order."""

    @property
    def length(self) -> int | None:
        """Samples in an epoch, where that is known."""

    @property
    def pure(self) -> bool:
        """Whether reading ahead has no effect that anyone could notice."""

    def epoch(self, number: int) -> Epoch:
        """Return epoch ``number``, from its start."""


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


class Sequential:
    """0, 1, 2, ... in every epoch; without end where the length is None, and the dataset itself has one."""

    pure = True

    def __init__(self, length: int | None) -> None:
        self.length = length

    def epoch(self, number: int) -> Epoch:  # noqa: ARG002  (epochs are alike)
        """Return the numbers from 0."""
        return _SequentialEpoch(sys.maxsize if self.length is None else self.length)


class _SequentialEpoch:
    def __init__(self, length: int) -> None:
        self._length = length
        self._position = 0

    def take(self, count: int) -> Indices:
        start = self._position
        self._position = min(start + count, self._length)
        return np.arange(start, self._position, dtype=np.int64)


class Shuffled:
    """Every sample once an epoch, in an order that is a function of (seed, epoch); nothing else is kept."""

    pure = True

    def __init__(self, length: int, seed: int) -> None:
        if length > MAX_LENGTH:
            raise ValueError(f"cannot shuffle {length} samples: 2**62 is the most")
        self.length = length
        self._seed = check_seed(seed)

    def epoch(self, number: int) -> Epoch:
        """Return the order of epoch ``number``, of 0 or more."""
        return _ShuffledEpoch(self.length, self._seed, number)


class _ShuffledEpoch:
    """Permutes a chunk at a time, since 16 thousand positions take hardly longer than a hundred."""

    def __init__(self, length: int, seed: int, number: int) -> None:
        self._order = (length, seed, number)
        self._permuted = 0  # positions
        self._ready = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> Indices:
        if count > self._ready.size:
            self._ready = np.concatenate([self._ready, *self._chunks(count - self._ready.size)])
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _chunks(self, missing: int) -> Iterator[Indices]:
        while missing > 0 and self._permuted < self._order[0]:
            stop = min(self._permuted + CHUNK, self._order[0])
            chunk = permute(np.arange(self._permuted, stop, dtype=np.int64), *self._order)
            self._permuted = stop
            missing -= chunk.size
            yield chunk


class Custom:
    """The order that the user's ``source`` gives, read no further than asked, and checked as it is read.

    ``source`` is an array of integers, an iterable of integers (a list, a torch-style sampler), or a function
    from the number of an epoch to one of these. Its method ``set_epoch``, if any, is called with the number
    before each epoch. An iterator, which can be read but once, serves one epoch. ``dataset_length`` bounds
    the numbers; None where it is unknown.
    """

    pure = False

    def __init__(self, source: object, dataset_length: int | None) -> None:
        if not (_readable(source) or callable(source)):
            raise TypeError(
                f"sampler is of type {_name(source)}, expected an iterable of sample numbers or a function "
                "from the number of an epoch to one"
            )
        self._source: Any = source
        self._dataset_length = dataset_length
        self._spent: tuple[object, int] | None = None  # an iterator, and the epoch that read it

    @property
    def length(self) -> int | None:
        """What ``len`` says of the source at this moment; None where it says nothing."""
        try:
            return len(self._source)
        except (TypeError, NotImplementedError):
            return None

    def epoch(self, number: int) -> Epoch:
        """Return epoch ``number`` as the source gives it; ValueError when an iterator would be read again."""
        if (set_epoch := getattr(self._source, "set_epoch", None)) is not None:
            set_epoch(number)
        order = self._source
        if not _readable(order):
            order = self._source(number)
            if not _readable(order):
                raise TypeError(
                    f"sampler({number}) returned type {_name(order)}, expected an iterable of sample numbers"
                )
        if hasattr(order, "__array__"):
            return _ArrayEpoch(_checked_array(order), self._dataset_length)
        numbers = iter(order)
        if numbers is order:
            self._spend(numbers, number)
        return _IteratedEpoch(numbers, self._dataset_length)

    def _spend(self, numbers: object, number: int) -> None:
        if self._spent is not None and self._spent[0] is numbers:
            raise ValueError(
                f"sampler is an iterator ({_name(numbers)}) that epoch {self._spent[1]} has read, and cannot "
                f"be read again for epoch {number}; give a list, an object whose __iter__ makes a new "
                "iterator, or a function from the number of an epoch to an iterable"
            )
        self._spent = (numbers, number)


class _ArrayEpoch:
    def __init__(self, numbers: NDArray[Any], dataset_length: int | None) -> None:
        self._numbers = numbers
        self._dataset_length = dataset_length
        self._position = 0

    def take(self, count: int) -> Indices:
        chunk = self._numbers[self._position : self._position + count]
        taken = chunk.astype(np.int64)  # unsigned ones past the range of int64 become negative
        if _any_outside(taken, self._dataset_length):
            _refuse(chunk.tolist(), self._position, self._dataset_length)
        self._position += taken.size
        return taken


class _IteratedEpoch:
    def __init__(self, numbers: Iterator[object], dataset_length: int | None) -> None:
        self._numbers = numbers
        self._dataset_length = dataset_length
        self._position = 0

    def take(self, count: int) -> Indices:
        chunk: list[Any] = list(islice(self._numbers, count))
        if len(chunk) < count:
            self._numbers = iter(())  # some iterators begin again when asked after their end
        if set(map(type, chunk)) - {int}:
            chunk = [_checked_number(number, self._position + row) for row, number in enumerate(chunk)]
        try:
            taken = np.array(chunk, dtype=np.int64)
        except OverflowError:
            _refuse(chunk, self._position, self._dataset_length)
        if _any_outside(taken, self._dataset_length):
            _refuse(chunk, self._position, self._dataset_length)
        self._position += taken.size
        return taken


def _readable(source: object) -> bool:
    return any(hasattr(source, name) for name in ("__iter__", "__array__", "__getitem__"))


def _name(value: object) -> str:
    return type(value).__name__


def _checked_array(order: object) -> NDArray[Any]:
    numbers = np.asarray(order)
    if numbers.dtype.kind not in "iu":
        mask = "; np.flatnonzero turns a mask into sample numbers" if numbers.dtype.kind == "b" else ""
        raise TypeError(f"sampler is an array of {numbers.dtype}, expected one of integers{mask}")
    if numbers.ndim != 1:
        raise ValueError(f"sampler is an array of shape {numbers.shape}, expected one axis of sample numbers")
    return numbers


def _checked_number(number: Any, position: int) -> int:
    try:
        if isinstance(number, bool):
            raise TypeError  # noqa: TRY301  (NumPy's own refuses by itself)
        return operator.index(number)
    except TypeError:
        raise TypeError(
            f"sampler yielded {number!r} of type {_name(number)} at position {position}, expected an integer"
        ) from None


def _any_outside(numbers: Indices, dataset_length: int | None) -> bool:
    limit = np.uint64(sys.maxsize if dataset_length is None else dataset_length)
    return bool((numbers.view(np.uint64) >= limit).any())  # negative ones are huge


def _refuse(chunk: Sequence[int], position: int, dataset_length: int | None) -> NoReturn:
    """Raise IndexError for the first number of ``chunk`` that is no sample."""
    limit = sys.maxsize if dataset_length is None else dataset_length
    row, number = next((row, number) for row, number in enumerate(chunk) if not 0 <= number < limit)
    yielded = f"sampler yielded {number} at position {position + row}"
    if dataset_length is None:
        raise IndexError(f"{yielded}, expected a sample number from 0 to {limit - 1}")
    if dataset_length == 0:
        raise IndexError(f"{yielded}, but the dataset is empty")
    samples = "1 sample (0)" if limit == 1 else f"{limit} samples (0..{limit - 1})"
    raise IndexError(f"{yielded}, but the dataset has {samples}")


def check_seed(seed: object) -> int:
    """Return ``seed`` as a Python int; TypeError or ValueError unless it is an integer of 0 or more."""
    if not hasattr(seed, "__index__"):
        raise TypeError(f"seed is {seed!r}, expected an integer of 0 or more")
    if (number := operator.index(seed)) < 0:
        raise ValueError(f"seed is {number}, expected an integer of 0 or more")
    return number


def make_sampler(
    length: int | None,
    *,
    shuffle: bool,
    seed: int,
    sampler: Iterable[int] | Callable[[int], Iterable[int]] | None,
) -> Sampler:
    """Return the order that a loader's arguments ask for; ``length`` is the dataset's, None where unknown."""
    seed = check_seed(seed)
    if sampler is not None:
        if shuffle:
            raise ValueError("shuffle=True and sampler= exclude each other: give the one or the other")
        return Custom(sampler, length)
    if not shuffle:
        return Sequential(length)
    if length is None:
        raise ValueError("shuffle=True needs a dataset with a length; shuffle inside the dataset instead")
    return Shuffled(length, seed)


def batch_count(samples: int, batch_size: int, drop_remainder: bool) -> int:  # noqa: FBT001
    """Return how many batches ``samples`` make; the last may be shorter, unless the remainder is dropped."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected 1 or more")
    return samples // batch_size if drop_remainder else -(-samples // batch_size)
