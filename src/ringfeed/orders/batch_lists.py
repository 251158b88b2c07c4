"""An order of whole batches: the lists of sample numbers that the user's batch_sampler gives.

BatchLists      the loader's parameter, and the most samples that a list has
ListOrder       bound to a dataset; a position in it counts lists
ListEpoch       one epoch, read by ``take_batches(count)``
"""

from __future__ import annotations

from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import class_names, copied
from ringfeed.orders.custom import REMEDY, ArrayEpoch, Custom, IteratedEpoch, checked_array, is_readable, order_of
from ringfeed.orders.replay import Replay
from ringfeed.orders.sampler import SeededSampler

if TYPE_CHECKING:
    from ringfeed.orders.permutation import Indices

EXPECTED = "an iterable of lists of sample numbers"


class BatchLists(SeededSampler):
    """A batch_sampler, with the most samples of its lists: by default those of its first one, which is read for it."""

    parameter = "batch_sampler="

    def __init__(self, source: Any, most: int | None) -> None:
        """Read no list where ``most`` is given, or where a BatchSampler of torch's says it."""
        ListOrder(source, None, 0)  # refuses what is none
        self._source = source
        self._begun: list[Any] = []
        if most is None and "torch.BatchSampler" in class_names(source):
            most = source.batch_size
        self.most = self._length_of_first() if most is None else most

    def _length_of_first(self) -> int:
        """Return the samples of the first list, which the first epoch has all the same.

        ValueError where it has none, or cannot be read ahead of its epoch.
        """
        source = self._source
        if hasattr(source, "__next__"):
            raise ValueError(
                f"batch_sampler is an iterator ({type(source).__name__}), which cannot be read ahead of its epoch; "
                "give max_batch_size=, the most samples that a list has"
            )
        lists = iter(order_of(source, 0, ListOrder.parameter, EXPECTED))
        for given in lists:
            first = copy(_list_of(given, 0))  # the source may fill it again
            if not len(first):
                raise ValueError(
                    f"{_name(0)} is empty, so it does not say how many samples a batch has; give max_batch_size="
                )
            if not _begins_anew(source):
                self._begun.append(chain([first], lists))
            return len(first)
        message = "batch_sampler has no lists, so nothing says how many samples a batch has; give max_batch_size="
        raise ValueError(message)

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError for several ranks: lists may differ in length, so that no rank's part of one is known."""
        if world_size > 1:
            raise ValueError(
                f"batch_sampler= with world_size={world_size}: lists cannot be cut into the parts of ranks; give each "
                "rank a batch_sampler of its own lists, and leave rank=, world_size= and shard= out"
            )

    def bind(self, length: int | None, seed: int) -> ListOrder:  # noqa: ARG002  (the order is the user's)
        """Return the order over a dataset of ``length`` samples."""
        return ListOrder(self._source, length, self.most, self._begun)


class ListOrder(Custom):
    """The lists that a batch_sampler gives, each a batch: see `Custom`, which it is but for its positions."""

    order = "lists"
    parameter = "batch_sampler"
    expected = EXPECTED

    def __init__(self, source: Any, dataset_length: int | None, most: int, begun: list[Any] | None = None) -> None:
        """``most``: samples that a list may have; ``begun``: lists that the first epoch goes on with."""
        super().__init__(source, dataset_length)
        self._most = most
        self._begun = [] if begun is None else begun

    def _set_epoch(self, number: int) -> None:
        super()._set_epoch(number)
        inner = getattr(self._source, "sampler", None)  # that of a BatchSampler of torch's, which does not pass it on
        if (set_epoch := getattr(inner, "set_epoch", None)) is not None:
            set_epoch(number)

    def _begin(self, number: int, position: int) -> ListEpoch:
        if self._begun and (is_readable(self._source) or number == 0):
            lists = self._begun.pop()
        else:
            lists = self._iterator(order_of(self._source, number, self.parameter, self.expected), number)
        return ListEpoch(lists, self._dataset_length, self._most, position, self._look())


class ListEpoch(IteratedEpoch):
    """Reads lists, and checks that each fits into a slot and has samples' numbers alone."""

    def __init__(self, lists: Any, dataset_length: int | None, most: int, position: int, look: Any) -> None:
        """Begin at a position, to which the source was brought."""
        super().__init__(lists, dataset_length, position, look)
        self._most = most
        self.most_ahead: int | None = getattr(lists, "most_ahead", None)
        """How many lists may be read beyond those that were handed out, where that is for the lists to say."""

    def owned(self, given: Any) -> Any:
        """Return a list that the user's code cannot change; numbers of an iterator are read now."""
        if isinstance(given, str | tuple | range) or not is_readable(given):
            return given
        return copied(given) if hasattr(given, "__array__") else [*given]

    def take_batches(self, count: int) -> list[Indices]:
        """Return the next ``count`` lists; fewer at the end of the epoch. What is wrong with one ends it."""
        lists = self.read(count)
        try:
            batches = [self._checked(one, self.position + row) for row, one in enumerate(lists)]
        except (TypeError, ValueError, IndexError) as error:
            self.error = error
            raise
        self.note(len(batches))
        rest, position = self._ahead[len(batches) :], self.position + len(batches)
        self._ahead, self.position = rest, position
        return batches

    def take(self, count: int) -> Indices:
        """Return the samples of the next ``count`` lists, side by side."""
        return np.concatenate([np.empty(0, np.int64), *self.take_batches(count)])

    def go_to(self, start: int) -> None:
        """Read the lists that come before, once more."""
        replay = Replay("the lists of batch_sampler before this place are read", REMEDY.replace("an array", "a list"))
        while self.position < start and self.read(1):
            rest, position = self._ahead[1:], self.position + 1
            self._ahead, self.position = rest, position
            replay.note(position, start)

    def _checked(self, given: Any, batch: int) -> Indices:
        numbers = _list_of(given, batch)
        if not 0 < len(numbers) <= self._most:
            raise ValueError(_misfit(len(numbers), self._most, batch))
        found: ArrayEpoch
        if hasattr(numbers, "__array__"):
            found = ArrayEpoch(numbers, self._dataset_length)
        else:
            found = IteratedEpoch(iter(numbers), self._dataset_length)
        found.name = _name(batch)
        return found.take(len(numbers))


def _name(batch: int) -> str:
    return f"batch {batch} of batch_sampler"


def _misfit(count: int, most: int, batch: int) -> str:
    if not count:
        return f"{_name(batch)} is empty, expected 1 to {most} samples"
    return (
        f"{_name(batch)} has {count} samples, but a slot has room for {most}: give max_batch_size={count}, or as many "
        f"as the longest list has"
    )


def _list_of(given: Any, batch: int) -> Any:
    """Return a list or an array of sample numbers."""
    is_array = hasattr(given, "__array__")
    if is_array and np.ndim(given):
        return checked_array(given, _name(batch))
    if is_array or isinstance(given, str) or not is_readable(given):
        raise TypeError(
            f"{_name(batch)} is {given!r} of type {type(given).__name__}, expected a list of sample numbers; what "
            "yields single numbers is for sampler="
        )
    return given if isinstance(given, list) else [*given]


def _begins_anew(source: Any) -> bool:
    """Whether a batch_sampler gives its first list again: it is a list, or is told of the epoch."""
    told = (source, getattr(source, "sampler", None))
    return any(hasattr(one, "set_epoch") for one in told) or hasattr(source, "state_dict") or _is_sequence(source)


def _is_sequence(source: Any) -> bool:
    return hasattr(type(source), "__getitem__")


def refuse_beside_lists(*named: str | None, **given: Any) -> None:
    """Raise ValueError for parameters that batch_sampler= decides: those named, and those not None or False."""
    others = [name for name, value in given.items() if value is not None and value is not False]
    if names := [f"{name}=" for name in [*named, *others] if name]:
        raise ValueError(f"batch_sampler= says which samples each batch has; leave {' and '.join(names)} out")
