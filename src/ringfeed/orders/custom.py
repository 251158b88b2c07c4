"""The user's orders: sample numbers, or lists of them, from an array or an iterable.

Custom     of ``sampler=``: sample numbers
Lists      of ``batch_sampler=``: lists of sample numbers, each a batch; a position counts lists
Reading    one epoch of either; reads only what is requested, and checks each number
"""

from __future__ import annotations

import operator
import pickle
import sys
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import class_names, copied, keeps_state, length_of
from ringfeed.errors import StateError
from ringfeed.orders.checks import check_at_most, check_fields, checked_array
from ringfeed.orders.replay import Replay
from ringfeed.orders.sampler import Epoch, PositionalEpoch, Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ringfeed.orders.permutation import Indices

_END = object()
MOST_STATES = 64  # of a source, that are kept; one goes on from an older one by reading
REPLAYED = 512  # numbers that are read at a time to come to a position
MOST_STATES_SIZE = 2**26  # bytes of these, and one state in any case


class Custom(Sampler):
    """The order of the user's ``source``: reads only what is requested, and checks it.

    ``source`` is an array of integers, an iterable of integers (a list, a torch-style sampler), or
    a function from the number of an epoch to one of these. Its method ``set_epoch``, if any, is
    called with the number before each epoch. An iterator serves one epoch, since it can be read
    only once. ``dataset_length`` bounds the numbers; None: unknown.

    An epoch that continues at a position reads the numbers before it again, unless the source has
    ``state_dict()`` and ``load_state_dict()``; after loading, its ``__iter__`` continues there.
    """

    pure = False
    order = "custom"
    parameter = "sampler"
    expected = "an iterable of sample numbers"
    gives_lists = False

    def __init__(self, source: object) -> None:
        if not (is_readable(source) or callable(source)):
            raise TypeError(
                f"{self.parameter} is of type {type(source).__name__}, expected {self.expected} or "
                "a function from the number of an epoch to one"
            )
        self.source: Any = source
        self.may_exceed = not hasattr(source, "__array__")
        self._spent: tuple[object, int] | None = None  # an iterator, and the epoch that read it

    @property
    def length(self) -> int | None:
        """The source's current ``len()``; None if it has none."""
        return length_of(self.source)

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return epoch ``number`` of the source.

        Raises ValueError if an iterator would be read again.
        """
        for told in self._told():
            told.set_epoch(number)
        position = 0
        if state is not None:
            position = state["position"]
            self.source.load_state_dict(copied(state["of"]))  # which may keep it, and change it
        order = self._begin(number)
        if hasattr(order, "__array__") and not self.gives_lists:
            numbers = array_of(order, self.parameter)
            check = partial(check_numbers, name=self.parameter, dataset_length=self.dataset_length)
            return PositionalEpoch(
                lambda at, stop: check(numbers[at:stop], at), len(numbers), start, 1
            )
        numbers = iter(order)
        if numbers is order:
            self._spend(numbers, number)
        epoch = Reading(self, numbers, position)
        remedy = "give the sampler state_dict() and load_state_dict(), or give an array or a list"
        replay = Replay(f"what {self.parameter}= gives before this place is read", remedy)
        at_once = 1 if self.gives_lists else REPLAYED
        while epoch.position < start and len(epoch.take(min(at_once, start - epoch.position))):
            replay.note(epoch.position, start)
        return epoch

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError for an invalid state, or if the source loads no states."""
        if state is None:
            return
        if not keeps_state(self.source):
            raise StateError(
                f"the state has one of {self.parameter}'s own, and this one (a "
                f"{type(self.source).__name__}) has no state_dict() and load_state_dict(); give "
                f"the {self.parameter} that it was taken with"
            )
        check_fields(state, position=0, of=None)
        check_at_most(state, "position", start, "the state's samples")

    def checked(self, given: list[Any], position: int) -> Any:
        """Check the numbers read from a position on, and return them for the ring."""
        return check_numbers(given, position, self.parameter, self.dataset_length)

    def owned(self, given: Any) -> Any:
        """Copy a number that the user's code could change: an array without an axis."""
        return copied(given) if hasattr(given, "__array__") else given

    def _begin(self, number: int) -> Any:
        """Return the source itself, or its result for an epoch if it is a function.

        Raises TypeError if neither is an order.
        """
        order = self.source if is_readable(self.source) else self.source(number)
        if not is_readable(order):
            raise TypeError(
                f"{self.parameter}({number}) returned type {type(order).__name__}, expected "
                f"{self.expected}"
            )
        return order

    def _told(self) -> list[Any]:
        """Return the objects that are told the number of each epoch.

        A BatchSampler of torch's does not pass the number on to the sampler inside.
        """
        both = self.source, getattr(self.source, "sampler", None)
        return [one for one in both if hasattr(one, "set_epoch")]

    def _spend(self, numbers: object, number: int) -> None:
        """Note that an iterator is read; ValueError if it was read before."""
        if self._spent is not None and self._spent[0] is numbers:
            raise ValueError(
                f"{self.parameter} is an iterator ({type(numbers).__name__}) that epoch "
                f"{self._spent[1]} has read, and cannot be read again for epoch {number}; give a "
                "list, an object whose __iter__ makes a new iterator, or a function from the "
                "number of an epoch to an iterable"
            )
        self._spent = (numbers, number)


class Lists(Custom):
    """A batch_sampler, and the largest number of samples in its lists.

    By default this number is the length of the first list, which is read for that.
    """

    order = "lists"
    parameter = "batch_sampler"
    given_as = "batch_sampler="
    why_no_length = "batch_sampler has no len()"
    expected = "an iterable of lists of sample numbers"
    gives_lists = True

    def __init__(self, source: Any, most: int | None) -> None:
        """Read no list if ``most`` is given, or known from torch's BatchSampler."""
        super().__init__(source)
        self._begun: list[Any] = []  # lists that the first epoch goes on with
        if most is None and "torch.BatchSampler" in class_names(source):
            most = source.batch_size
        self.most = self._length_of_first() if most is None else most

    def _length_of_first(self) -> int:
        """Return the length of the first list, which the first epoch still gives.

        Raises ValueError if there is no list, or none can be read before the epoch.
        """
        source = self.source
        if hasattr(source, "__next__"):
            raise ValueError(
                f"batch_sampler is an iterator ({type(source).__name__}), which cannot be read "
                "ahead of its epoch; give max_batch_size=, the most samples that a list has"
            )
        lists = iter(self._begin(0))
        for given in lists:
            first = copy(_list_of(given, _name(0)))  # the source may fill it again
            if not len(first):
                raise ValueError(
                    f"{_name(0)} is empty, so it does not say how many samples a batch has; give "
                    "max_batch_size="
                )
            # A list, or what is told of the epoch, gives its first list again.
            gives_again = hasattr(type(source), "__getitem__") or keeps_state(source)
            if not (self._told() or gives_again):
                self._begun.append(chain([first], lists))
            return len(first)
        raise ValueError(
            "batch_sampler has no lists, so nothing says how many samples a batch has; give "
            "max_batch_size="
        )

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError for several ranks.

        Lists may differ in length, so the parts of ranks cannot be known in advance.
        """
        if world_size > 1:
            raise ValueError(
                f"batch_sampler= with world_size={world_size}: lists cannot be cut into the parts "
                "of ranks; give each rank a batch_sampler of its own lists, and leave shard= out"
            )

    def _begin(self, number: int) -> Any:
        if self._begun and (is_readable(self.source) or number == 0):
            return self._begun.pop()
        return super()._begin(number)

    def checked(self, given: list[Any], position: int) -> Any:
        """Return lists as arrays; each fits into a slot and holds only sample numbers."""
        return [self._checked_list(one, _name(batch)) for batch, one in enumerate(given, position)]

    def _checked_list(self, given: Any, name: str) -> Indices:
        numbers, most = _list_of(given, name), self.most
        if not len(numbers):
            raise ValueError(f"{name} is empty, expected 1 to {most} samples")
        if len(numbers) > most:
            raise ValueError(
                f"{name} has {len(numbers)} samples, but a slot has room for {most}: give "
                f"max_batch_size={len(numbers)}, or as many as the longest list has"
            )
        return check_numbers(numbers, 0, name, self.dataset_length)

    def owned(self, given: Any) -> Any:
        """Copy a list that the user's code could change; read the numbers of an iterator."""
        if isinstance(given, str | tuple | range) or not is_readable(given):
            return given
        return copied(given) if hasattr(given, "__array__") else [*given]


class Reading(Epoch):
    """One epoch of a user's order, read from an iterator."""

    position: int

    def __init__(self, order: Custom, numbers: Any, position: int) -> None:
        """Begin at a position that the source has reached."""
        self.gives_lists = order.gives_lists
        self.most_ahead = getattr(numbers, "most_ahead", None)
        self.turn = getattr(numbers, "turn", None)
        self.position = position
        self._order = order
        self._iterator = numbers
        # Some iterators begin again when they are asked after their end; a chain does not ask.
        self._numbers = chain(numbers, (_END,))
        self._ahead: list[Any] = []  # was read, and is not given yet
        # The error that has ended the epoch: a generator that has raised, and is asked again, looks
        # merely short.
        self._error: Exception | None = None
        # Positions, and the source's states there as bytes: it may go on changing what it has
        # returned.
        self._states: list[tuple[int, bytes]] = []
        self._note(0)

    def take(self, count: int) -> Any:
        """Return the next numbers or lists, checked."""
        if self._error is not None:
            raise self._error
        try:
            self._read_ahead(count)
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else self._interrupted(error)
            raise
        chunk = self._ahead[:count]
        if chunk and chunk[-1] is _END:
            chunk.pop()
        taken = self._order.checked(chunk, self.position)
        self._note(len(chunk))
        rest, position = self._ahead[len(chunk) :], self.position + len(chunk)
        self._ahead, self.position = rest, position
        return taken

    def _note(self, count: int) -> None:
        """Keep the source's state after the next ``count`` numbers read, if it has a state.

        A source at its end may be back at its start, so a state taken there does not belong to
        these numbers. A state that cannot be pickled is not kept.
        """
        if not keeps_state(self._order.source) or self._ahead[count:]:
            return
        given = self._order.source.state_dict()
        with suppress(Exception):  # of the user's classes
            states = [*self._states, (self.position + count, pickle.dumps(given, 5))]
            # The first and the newest stay.
            while states[2:] and (
                len(states) > MOST_STATES + 1
                or sum(len(kept) for _, kept in states) > MOST_STATES_SIZE
            ):
                del states[1]
            self._states = states

    def state(self, position: int) -> dict[str, Any] | None:
        """Return the newest of the source's states up to this position."""
        states = self._states[::-1]  # at once: another thread may plan
        at, kept = next((one for one in states if one[0] <= position), (0, b""))
        return {"position": at, "of": pickle.loads(kept)} if kept else None  # noqa: S301 - our own

    def _read_ahead(self, count: int) -> None:
        """Read up to ``count`` values; each is copied, since the next may be the same object.

        C code reads, so that Ctrl-C loses no value. Nothing changes an int, so that many are read
        at once.
        """
        ahead, at_once = self._ahead, 1
        while True:
            if ahead:
                ahead[-1] = last = self._order.owned(ahead[-1])
                if last is _END:
                    return
                at_once = count if isinstance(last, int | np.integer) else 1
            if (missing := count - len(ahead)) <= 0:
                return
            ahead.extend(islice(self._numbers, min(missing, at_once)))

    def _interrupted(self, error: BaseException) -> Exception | None:
        """Return the error for a generator that Ctrl-C ended early."""
        is_over = bool(self._ahead) and self._ahead[-1] is _END
        if is_over or getattr(self._iterator, "gi_frame", self) is not None:
            return None
        return RuntimeError(
            f"{type(error).__name__} has ended the generator that {self._order.parameter} is read "
            f"from, at position {self.position + len(self._ahead)}; load the state that the loader "
            "has now, or begin an epoch"
        )


def is_readable(source: object) -> bool:
    """Whether the source is an order, not a function that returns one."""
    return any(hasattr(source, name) for name in ("__iter__", "__array__", "__getitem__"))


def array_of(order: object, name: str) -> NDArray[Any]:
    """Return an array of sample numbers.

    Raises TypeError or ValueError for anything else; ``name`` says whose numbers.
    """
    # By its name: an import of NumPy's masked arrays takes 50 ms.
    if isinstance(order, np.ndarray) and "numpy.MaskedArray" in class_names(order):
        raise TypeError(
            f"{name} is a masked array, expected a plain one; .compressed() leaves masked numbers "
            "out"
        )
    return checked_array(
        f"{name} is", order, "iu", "one of integers", "one axis of sample numbers", numbers=True
    )


def check_numbers(given: Any, position: int, name: str, dataset_length: int | None) -> Indices:
    """Return numbers as indices; IndexError for the first that is no sample number.

    ``position``: the position of the first number.
    """
    if isinstance(given, list) and {*map(type, given)} != {int}:
        given = [_checked_number(number, name, row) for row, number in enumerate(given, position)]
    limit = sys.maxsize if dataset_length is None else dataset_length
    with suppress(OverflowError):
        # Negative numbers become huge ones, and unsigned ones past the range of int64 negative.
        taken: Indices = np.array(given, dtype=np.int64)
        if not (taken.view(np.uint64) >= np.uint64(limit)).any():
            return taken
    numbers = enumerate(map(int, given), position)
    row, number = next((row, number) for row, number in numbers if not 0 <= number < limit)
    if dataset_length is None:
        has = f"expected a sample number from 0 to {limit - 1}"
    elif dataset_length == 0:
        has = "but the dataset is empty"
    else:
        samples = "1 sample (0)" if limit == 1 else f"{limit} samples (0..{limit - 1})"
        has = f"but the dataset has {samples}"
    raise IndexError(f"{name} yielded {number} at position {row}, {has}")


def _checked_number(number: Any, name: str, position: int) -> int:
    try:
        if isinstance(number, bool | np.bool_):
            raise TypeError  # noqa: TRY301  (NumPy's own only warns before 2.3)
        return operator.index(number)
    except TypeError:
        remedy = "; what yields whole batches is for batch_sampler="
        raise TypeError(
            f"{name} yielded {number!r} of type {type(number).__name__} at position {position}, "
            f"expected an integer{remedy if isinstance(number, list | tuple) else ''}"
        ) from None


def _name(batch: int) -> str:
    return f"batch {batch} of batch_sampler"


def _list_of(given: Any, name: str) -> Any:
    """Return a list or an array of sample numbers."""
    is_array = hasattr(given, "__array__")
    if is_array and np.ndim(given):
        return array_of(given, name)
    if is_array or isinstance(given, str) or not is_readable(given):
        raise TypeError(
            f"{name} is {given!r} of type {type(given).__name__}, expected a list of sample "
            "numbers; what yields single numbers is for sampler="
        )
    return given if isinstance(given, list) else [*given]
