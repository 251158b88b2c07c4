"""Which sample comes when: an epoch hands out sample numbers, in order and in constant memory.

    Sequential         0, 1, 2, ...
    Shuffled           every number once, in the order of `permutation.permute`
    Custom             whatever an iterable of the user's gives, checked
    make_sampler       one of the three, from the arguments of the loader
    batch_count        how many batches an epoch has

A sampler makes epochs, an epoch is read by ``take(count)``: ``Shuffled(10**9, seed=0).epoch(3).take(128)``.

The shuffled order is part of the interface; `permutation` says what it is.
"""

from __future__ import annotations

import operator
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from ringfeed.data._permute import MAX_LENGTH
from ringfeed.data.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ringfeed.data.permutation import Indices

CHUNK = 4096  # positions permuted at a time: 32 kB, which malloc keeps


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
        """Whether reading ahead has no visible effect."""

    def epoch(self, number: int) -> Epoch:
        """Return epoch ``number``, from its start."""


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
        self._seed = seed

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
                f"sampler is of type {type(source).__name__}, expected an iterable of sample numbers or a function "
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
                    f"sampler({number}) returned type {type(order).__name__}, expected an iterable of sample numbers"
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
                f"sampler is an iterator ({type(numbers).__name__}) that epoch {self._spent[1]} has read, and cannot "
                f"be read again for epoch {number}; give a list, an object whose __iter__ makes a new "
                "iterator, or a function from the number of an epoch to an iterable"
            )
        self._spent = (numbers, number)


class _ArrayEpoch:
    """Reads an order of the user's, and checks that each number is a sample's."""

    def __init__(self, numbers: Any, dataset_length: int | None) -> None:
        self._numbers = numbers
        self._dataset_length = dataset_length
        self._limit = np.uint64(sys.maxsize if dataset_length is None else dataset_length)
        self._position = 0

    def take(self, count: int) -> Indices:
        chunk = self._read(count)
        try:
            taken = np.array(chunk, dtype=np.int64)  # unsigned ones past its range become negative
        except OverflowError:
            self._refuse(chunk)
        if (taken.view(np.uint64) >= self._limit).any():  # negative ones are huge
            self._refuse(chunk)
        self._position += taken.size
        return taken

    def _read(self, count: int) -> Sequence[int]:
        chunk: Sequence[int] = self._numbers[self._position : self._position + count]
        return chunk

    def _refuse(self, chunk: Sequence[int]) -> NoReturn:
        """Raise IndexError for the first number that is no sample."""
        limit = int(self._limit)
        row, number = next((row, number) for row, number in enumerate(map(int, chunk)) if not 0 <= number < limit)
        yielded = f"sampler yielded {number} at position {self._position + row}"
        if self._dataset_length is None:
            raise IndexError(f"{yielded}, expected a sample number from 0 to {limit - 1}")
        if self._dataset_length == 0:
            raise IndexError(f"{yielded}, but the dataset is empty")
        samples = "1 sample (0)" if limit == 1 else f"{limit} samples (0..{limit - 1})"
        raise IndexError(f"{yielded}, but the dataset has {samples}")


class _IteratedEpoch(_ArrayEpoch):
    """Reads the order from an iterator."""

    _error: Exception | None = None

    def _read(self, count: int) -> Sequence[int]:
        if self._error is not None:
            raise self._error
        try:
            chunk: list[Any] = list(islice(self._numbers, count))
        except Exception as error:
            self._error = error  # a generator that has raised, and is asked again, looks merely short
            raise
        if len(chunk) < count:
            self._numbers = iter(())  # some iterators begin again when asked after their end
        if set(map(type, chunk)) - {int}:
            chunk = [_checked_number(number, self._position + row) for row, number in enumerate(chunk)]
        return chunk


def _readable(source: object) -> bool:
    return any(hasattr(source, name) for name in ("__iter__", "__array__", "__getitem__"))


def _checked_array(order: object) -> NDArray[Any]:
    if isinstance(order, np.ma.MaskedArray):
        raise TypeError("sampler is a masked array, expected a plain one; .compressed() leaves masked numbers out")
    numbers = np.asarray(order)
    if numbers.dtype.kind not in "iu":
        mask = "; np.flatnonzero turns a mask into sample numbers" if numbers.dtype.kind == "b" else ""
        raise TypeError(f"sampler is an array of {numbers.dtype}, expected one of integers{mask}")
    if numbers.ndim != 1:
        raise ValueError(f"sampler is an array of shape {numbers.shape}, expected one axis of sample numbers")
    return numbers


def _checked_number(number: Any, position: int) -> int:
    try:
        if isinstance(number, bool | np.bool_):
            raise TypeError  # noqa: TRY301  (NumPy's own only warns before 2.3)
        return operator.index(number)
    except TypeError:
        remedy = "; whole batches are the loader's to make: give the sampler inside, and batch_size="
        raise TypeError(
            f"sampler yielded {number!r} of type {type(number).__name__} at position {position}, expected an integer"
            f"{remedy if isinstance(number, list | tuple) else ''}"
        ) from None


def check_seed(seed: object) -> int:
    """Return ``seed`` as a Python int; TypeError or ValueError unless it is an integer of 0 or more."""
    try:
        number = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool):
        raise TypeError(f"seed is {seed!r}, expected an integer of 0 or more")
    if number < 0:
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
    return samples // batch_size if drop_remainder else -(-samples // batch_size)
