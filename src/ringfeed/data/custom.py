"""An order of the user's: numbers that an array or an iterable gives, checked as they are read."""

from __future__ import annotations

import operator
import sys
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ringfeed.data.sampler import CHUNK, Stateless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ringfeed.data.permutation import Indices
    from ringfeed.data.sampler import Epoch

MOST_STATES = 64  # of a source, that are kept; one goes on from an older one by reading


class Custom:
    """The order that the user's ``source`` gives, read no further than asked, and checked as it is read.

    ``source`` is an array of integers, an iterable of integers (a list, a torch-style sampler), or a function
    from the number of an epoch to one of these. Its method ``set_epoch``, if any, is called with the number
    before each epoch. An iterator, which can be read but once, serves one epoch. ``dataset_length`` bounds
    the numbers; None where it is unknown.

    An epoch that goes on at a position has its first numbers read once more, unless the source has ``state_dict()`` and
    ``load_state_dict()``, after which its ``__iter__`` goes on.
    """

    pure = False
    order = "custom"

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

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return epoch ``number`` as the source gives it; ValueError when an iterator would be read again."""
        if (set_epoch := getattr(self._source, "set_epoch", None)) is not None:
            set_epoch(number)
        position = 0
        if state is not None:
            position = state["position"]
            self._source.load_state_dict(state["of"])
        epoch = self._begin(number, position)
        epoch.go_to(start)
        return epoch

    def _begin(self, number: int, position: int) -> _ArrayEpoch:
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
        look = getattr(self._source, "state_dict", None)
        if callable(look) and callable(getattr(self._source, "load_state_dict", None)):
            return _StatefulEpoch(numbers, self._dataset_length, position, look)
        return _IteratedEpoch(numbers, self._dataset_length)

    def _spend(self, numbers: object, number: int) -> None:
        if self._spent is not None and self._spent[0] is numbers:
            raise ValueError(
                f"sampler is an iterator ({type(numbers).__name__}) that epoch {self._spent[1]} has read, and cannot "
                f"be read again for epoch {number}; give a list, an object whose __iter__ makes a new "
                "iterator, or a function from the number of an epoch to an iterable"
            )
        self._spent = (numbers, number)


class _ArrayEpoch(Stateless):
    """Reads an order of the user's, and checks that each number is a sample's."""

    def __init__(self, numbers: Any, dataset_length: int | None, position: int = 0) -> None:
        self._numbers = numbers
        self._dataset_length = dataset_length
        self._limit = np.uint64(sys.maxsize if dataset_length is None else dataset_length)
        self.position = position

    def take(self, count: int) -> Indices:
        chunk = self._read(count)
        try:
            taken = np.array(chunk, dtype=np.int64)  # unsigned ones past its range become negative
        except OverflowError:
            self._refuse(chunk)
        if (taken.view(np.uint64) >= self._limit).any():  # negative ones are huge
            self._refuse(chunk)
        self.position += taken.size
        return taken

    def go_to(self, start: int) -> None:
        """Leave out what comes before."""
        self.position = start

    def _read(self, count: int) -> Sequence[int]:
        chunk: Sequence[int] = self._numbers[self.position : self.position + count]
        return chunk

    def _refuse(self, chunk: Sequence[int]) -> NoReturn:
        """Raise IndexError for the first number that is no sample."""
        limit = int(self._limit)
        row, number = next((row, number) for row, number in enumerate(map(int, chunk)) if not 0 <= number < limit)
        yielded = f"sampler yielded {number} at position {self.position + row}"
        if self._dataset_length is None:
            raise IndexError(f"{yielded}, expected a sample number from 0 to {limit - 1}")
        if self._dataset_length == 0:
            raise IndexError(f"{yielded}, but the dataset is empty")
        samples = "1 sample (0)" if limit == 1 else f"{limit} samples (0..{limit - 1})"
        raise IndexError(f"{yielded}, but the dataset has {samples}")


class _IteratedEpoch(_ArrayEpoch):
    """Reads the order from an iterator."""

    _error: Exception | None = None

    def go_to(self, start: int) -> None:
        """Read what comes before, once more."""
        while self.position < start and self.take(min(CHUNK, start - self.position)).size:
            pass

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
            chunk = [_checked_number(number, self.position + row) for row, number in enumerate(chunk)]
        return chunk


class _StatefulEpoch(_IteratedEpoch):
    """Reads the order from an iterator of a source that can say where it is, and be brought there again."""

    def __init__(self, numbers: Any, dataset_length: int | None, position: int, look: Callable[[], Any]) -> None:
        super().__init__(numbers, dataset_length, position)
        self._look = look
        self._first = {"position": position, "of": look()}
        self._newest: deque[dict[str, Any]] = deque(maxlen=MOST_STATES)

    def take(self, count: int) -> Indices:
        taken = super().take(count)
        self._newest.append({"position": self.position, "of": self._look()})
        return taken

    def state(self, position: int) -> dict[str, Any]:
        """Return the newest of the source's states that is of this position, or of one before it."""
        return next((one for one in reversed(self._newest) if one["position"] <= position), self._first)


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
