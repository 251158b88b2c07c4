"""An order of the user's: numbers that an array or an iterable gives, checked as they are read."""

from __future__ import annotations

import operator
import pickle
import sys
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ringfeed._classes import copied
from ringfeed.errors import StateError
from ringfeed.orders.checks import check_at_most, check_fields
from ringfeed.orders.replay import Replay
from ringfeed.orders.sampler import Stateless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Epoch

REPLAYED = 512  # numbers at a time
REMEDY = "give the sampler state_dict() and load_state_dict(), or give an array"
_END = object()
MOST_STATES = 64  # of a source, that are kept; one goes on from an older one by reading
MOST_STATES_SIZE = 2**26  # bytes of these, and one state in any case


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
    parameter = "sampler"  # of the loader
    expected = "an iterable of sample numbers"

    def __init__(self, source: object, dataset_length: int | None) -> None:
        if not (is_readable(source) or callable(source)):
            raise TypeError(
                f"{self.parameter} is of type {type(source).__name__}, expected {self.expected} or a function "
                "from the number of an epoch to one"
            )
        self._source: Any = source
        self._dataset_length = dataset_length
        self._spent: tuple[object, int] | None = None  # an iterator, and the epoch that read it

    @property
    def may_exceed(self) -> bool:
        """Whether there may be more numbers than `length`: iterables say what they like, arrays do not."""
        return not hasattr(self._source, "__array__")

    @property
    def length(self) -> int | None:
        """What ``len`` says of the source at this moment; None where it says nothing."""
        try:
            return len(self._source)
        except (TypeError, NotImplementedError):
            return None

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return epoch ``number`` as the source gives it; ValueError when an iterator would be read again."""
        self._set_epoch(number)
        position = 0
        if state is not None:
            position = state["position"]
            self._source.load_state_dict(copied(state["of"]))  # which may keep it, and change it
        epoch = self._begin(number, position)
        epoch.go_to(start)
        return epoch

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError for what is no state, or where the source takes none."""
        if state is None:
            return
        if self._look() is None:
            message = (
                f"the state has one of {self.parameter}'s own, and this one (a {type(self._source).__name__}) has no "
                f"state_dict() and load_state_dict(); give the {self.parameter} that it was taken with"
            )
            raise StateError(message)
        check_fields(state, position=0, of=None)
        check_at_most(state, "position", start, "the state's samples")

    def _set_epoch(self, number: int) -> None:
        if (set_epoch := getattr(self._source, "set_epoch", None)) is not None:
            set_epoch(number)

    def _begin(self, number: int, position: int) -> ArrayEpoch:
        order = order_of(self._source, number, self.parameter, self.expected)
        if hasattr(order, "__array__"):
            return ArrayEpoch(checked_array(order, self.parameter), self._dataset_length)
        return IteratedEpoch(self._iterator(order, number), self._dataset_length, position, self._look())

    def _iterator(self, order: Any, number: int) -> Any:
        """Begin to read an order; ValueError for an iterator that was read before."""
        iterator = iter(order)
        if iterator is order:
            self._spend(iterator, number)
        return iterator

    def _look(self) -> Callable[[], Any] | None:
        """Return what asks the source for its state, where it has one."""
        look = getattr(self._source, "state_dict", None)
        return look if callable(look) and callable(getattr(self._source, "load_state_dict", None)) else None

    def _spend(self, numbers: object, number: int) -> None:
        if self._spent is not None and self._spent[0] is numbers:
            raise ValueError(
                f"{self.parameter} is an iterator ({type(numbers).__name__}) that epoch {self._spent[1]} has read, "
                f"and cannot be read again for epoch {number}; give a list, an object whose __iter__ makes a new "
                "iterator, or a function from the number of an epoch to an iterable"
            )
        self._spent = (numbers, number)


class ArrayEpoch(Stateless):
    """Reads an order of the user's, and checks that each number is a sample's."""

    name = "sampler"

    def __init__(self, numbers: Any, dataset_length: int | None, position: int = 0) -> None:
        """``numbers``: an array; ``position``: of the first that is read."""
        self._numbers = numbers
        self._dataset_length = dataset_length
        self._limit = np.uint64(sys.maxsize if dataset_length is None else dataset_length)
        self.position = position

    def take(self, count: int) -> Indices:
        """Return the next numbers."""
        taken = self._indices_of(self._numbers[self.position : self.position + count])
        self.position += taken.size
        return taken

    def _indices_of(self, chunk: Sequence[int]) -> Indices:
        """Return numbers as indices; IndexError for the first that is no sample."""
        try:
            taken = np.array(chunk, dtype=np.int64)  # unsigned ones past its range become negative
        except OverflowError:
            self._refuse(chunk)
        if (taken.view(np.uint64) >= self._limit).any():  # negative ones are huge
            self._refuse(chunk)
        return taken

    def go_to(self, start: int) -> None:
        """Leave out what comes before."""
        self.position = start

    def _refuse(self, chunk: Sequence[int]) -> NoReturn:
        """Raise IndexError for the first number that is no sample."""
        limit = int(self._limit)
        row, number = next((row, number) for row, number in enumerate(map(int, chunk)) if not 0 <= number < limit)
        yielded = f"{self.name} yielded {number} at position {self.position + row}"
        if self._dataset_length is None:
            raise IndexError(f"{yielded}, expected a sample number from 0 to {limit - 1}")
        if self._dataset_length == 0:
            raise IndexError(f"{yielded}, but the dataset is empty")
        samples = "1 sample (0)" if limit == 1 else f"{limit} samples (0..{limit - 1})"
        raise IndexError(f"{yielded}, but the dataset has {samples}")


class IteratedEpoch(ArrayEpoch):
    """Reads the order from an iterator; ``look`` asks its source for the state that it can be brought to again."""

    def __init__(
        self, numbers: Any, dataset_length: int | None, position: int = 0, look: Callable[[], Any] | None = None
    ) -> None:
        """Begin at a position, to which the source was brought."""
        # Some iterators begin again when they are asked after their end; a chain does not ask.
        super().__init__(chain(numbers, (_END,)), dataset_length, position)
        self._iterator = numbers
        self._ahead: list[Any] = []  # was read, and is not given yet
        self.error: Exception | None = None
        """What has ended it: raised again by whatever is read later."""
        self._is_of_ints = False  # which nothing changes, so that many may be read at once
        self._look = look
        self._first = None if look is None else _State.at(position, look)
        self._newest: deque[_State] = deque(maxlen=MOST_STATES)

    def take(self, count: int) -> Indices:
        """Return the next numbers."""
        chunk = self.read(count)
        if set(map(type, chunk)) - {int}:
            chunk = [_checked_number(number, self.name, self.position + row) for row, number in enumerate(chunk)]
        taken = self._indices_of(chunk)
        self.note(len(chunk))
        rest, position = self._ahead[len(chunk) :], self.position + len(chunk)
        self._ahead, self.position = rest, position
        return taken

    def note(self, count: int) -> None:
        """Keep the source's state after the next ``count`` of what was read, if it is there.

        A source that has come to its end may be back at its start, so a state of its end is none of these numbers.
        """
        if self._look is None or self._ahead[count:]:
            return
        if (found := _State.at(self.position + count, self._look)) is not None:
            self._newest.append(found)
        while len(self._newest) > 1 and sum(len(one.pickled) for one in self._newest) > MOST_STATES_SIZE:
            self._newest.popleft()

    def state(self, position: int) -> dict[str, Any] | None:
        """Return the newest of the source's states that is of this position, or of one before it."""
        known = [*self._newest][::-1]  # at once: another thread may plan
        found = next((one for one in known if one.position <= position), self._first)
        return None if found is None else {"position": found.position, "of": pickle.loads(found.pickled)}  # noqa: S301 - `_State.at`

    def go_to(self, start: int) -> None:
        """Read what comes before, once more."""
        replay = Replay("the numbers of the sampler before this place are read", REMEDY)
        while self.position < start and self.take(min(REPLAYED, start - self.position)).size:
            replay.note(self.position, start)

    def read(self, count: int) -> list[Any]:
        """Return what the iterator gives next, as it is, until that is taken."""
        if self.error is not None:
            raise self.error
        try:
            self._read(count)
        except BaseException as error:  # a generator that has raised, and is asked again, looks merely short
            self.error = error if isinstance(error, Exception) else self._interrupted(error)
            raise
        chunk = self._ahead[:count]
        return chunk[:-1] if chunk and chunk[-1] is _END else chunk

    def _read(self, count: int) -> None:
        """Read up to ``count``; each is a copy before the next is asked for, which may be the same object, changed.

        By C: what was read stays, where Ctrl-C comes.
        """
        self._own_last()
        while (missing := count - len(self._ahead)) > 0:
            before = len(self._ahead)
            self._ahead.extend(islice(self._numbers, missing if self._is_of_ints else 1))
            if len(self._ahead) == before:
                return
            self._own_last()
            self._is_of_ints = isinstance(self._ahead[-1], int | np.integer) or self._ahead[-1] is _END

    def _own_last(self) -> None:
        if self._ahead and not self._is_of_ints:
            self._ahead[-1] = self.owned(self._ahead[-1])

    def owned(self, given: Any) -> Any:
        """Return what the user's code cannot change: numbers may be arrays without an axis."""
        return copied(given) if hasattr(given, "__array__") else given

    def _interrupted(self, error: BaseException) -> Exception | None:
        """Return what is to be raised for a generator that Ctrl-C has ended before its time."""
        if getattr(self._iterator, "gi_frame", self) is not None or (self._ahead and self._ahead[-1] is _END):
            return None
        return RuntimeError(
            f"{type(error).__name__} has ended the generator that {self.name} is read from, at position "
            f"{self.position + len(self._ahead)}; load the state that the loader has now, or begin an epoch"
        )


class _State(NamedTuple):
    """A state of a source's own, as bytes: the source may go on changing what it has returned."""

    position: int
    pickled: bytes

    @classmethod
    def at(cls, position: int, look: Callable[[], Any]) -> _State | None:
        """Ask for the state at a position; None for one that cannot be pickled, and so not be kept either."""
        state = look()
        try:
            return cls(position, pickle.dumps(state, 5))
        except Exception:  # noqa: BLE001 - of the user's classes
            return None


def order_of(source: Any, number: int, parameter: str, expected: str) -> Any:
    """Return the source itself, or what it returns for an epoch, where it is a function; TypeError for neither."""
    if is_readable(source):
        return source
    order = source(number)
    if not is_readable(order):
        raise TypeError(f"{parameter}({number}) returned type {type(order).__name__}, expected {expected}")
    return order


def is_readable(source: object) -> bool:
    """Whether it holds an order, rather than returns one when it is called."""
    return any(hasattr(source, name) for name in ("__iter__", "__array__", "__getitem__"))


def checked_array(order: object, name: str) -> NDArray[Any]:
    """Return an array of sample numbers; TypeError or ValueError where it has none, ``name`` says whose."""
    if isinstance(order, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, expected a plain one; .compressed() leaves masked numbers out")
    numbers = np.asarray(order)
    if numbers.dtype.kind not in "iu":
        mask = "; np.flatnonzero turns a mask into sample numbers" if numbers.dtype.kind == "b" else ""
        raise TypeError(f"{name} is an array of {numbers.dtype}, expected one of integers{mask}")
    if numbers.ndim != 1:
        raise ValueError(f"{name} is an array of shape {numbers.shape}, expected one axis of sample numbers")
    return numbers


def _checked_number(number: Any, name: str, position: int) -> int:
    try:
        if isinstance(number, bool | np.bool_):
            raise TypeError  # noqa: TRY301  (NumPy's own only warns before 2.3)
        return operator.index(number)
    except TypeError:
        remedy = "; what yields whole batches is for batch_sampler="
        raise TypeError(
            f"{name} yielded {number!r} of type {type(number).__name__} at position {position}, expected an integer"
            f"{remedy if isinstance(number, list | tuple) else ''}"
        ) from None
