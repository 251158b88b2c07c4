"""What is read ahead of the first epoch, to learn what a sample or a list is.

The epoch has it all the same.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]

COUNT = 10
PLACES: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "thread": {"workers": 1, "backend": "thread"},
    "fork": {"workers": 1, "backend": "fork"},
    "process": {"workers": 1},
}


class Held:
    """Gives what it holds, and holds it no longer."""

    def __init__(self, elements: Any) -> None:
        self.held = [*elements]

    def __iter__(self) -> Iterator[Any]:
        while self.held:
            yield self.held.pop(0)


class Queued:
    """Gives what is in a queue, which no process can be sent."""

    def __init__(self, elements: Any) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for element in elements:
            self.queue.put(element)

    def __iter__(self) -> Iterator[Any]:
        while not self.queue.empty():
            yield self.queue.get()


class Kept:
    """Gives one and the same iterator, and is none."""

    def __init__(self, elements: Any) -> None:
        self.iterator = iter([*elements])

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


class Filling(Held):
    """Fills one array again and again."""

    def __iter__(self) -> Iterator[Any]:
        array = np.empty(2, np.int64)
        for element in super().__iter__():
            array[:] = element
            yield array


def returning(elements: Any) -> Callable[..., Any]:
    """A function that returns what is left."""
    held = Held(elements)
    return lambda *_: iter(held)


def firsts(batches: Any) -> list[int]:
    """Return the first number of each sample of an epoch."""
    return [int(np.ravel(row)[0]) for batch in batches for row in batch]


KINDS: dict[str, Callable[[Any], Any]] = {
    "list": Held,
    "queue": Queued,
    "iterator": Kept,
    "array": Filling,
    "function": returning,
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "collate_fn": {"collate_fn": np.stack},
    "transform": {"transform": lambda sample: sample + 0, "spec": None},
    "whole": {"batch_size": None},
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_element_is_lost(kind: str, place: str, function: str) -> None:
    """An iterable that keeps its place in itself gives its first element to the first epoch."""
    if place == "process" and kind == "queue":
        pytest.skip("a queue cannot be sent")
    if kind == "array" and function in {"collate_fn", "whole"}:
        pytest.skip("a list of one array, or a batch of another form")
    numbers = [np.int64(number) for number in range(COUNT)]
    elements = [np.array([number]) for number in numbers] if function == "whole" else numbers
    settings: Any = {"batch_size": 4, "copy": True, **PLACES[place], **FUNCTIONS[function]}
    with ringfeed.Loader(KINDS[kind](elements), **settings) as loader:
        assert firsts(loader) == [*range(COUNT)]


def test_a_second_epoch_begins_anew() -> None:
    """What was read ahead comes once, and nothing is kept of it."""
    with ringfeed.Loader(lambda: iter(np.arange(6)), batch_size=4, workers=0, copy=True) as loader:
        assert [firsts(loader) for _ in range(3)] == [[*range(6)]] * 3


class Knowing:
    """An iterator that gives whether it is the dataset of the worker that reads it."""

    def __init__(self) -> None:
        self.left = 4

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        self.left -= 1
        info = ringfeed.worker_info()
        return np.int64(info is not None and info.dataset is self)


def test_an_iterator_is_its_workers_dataset() -> None:
    """The first element is read ahead, by no worker."""
    with ringfeed.Loader(Knowing(), batch_size=4, copy=True, **PLACES["thread"]) as loader:
        assert firsts(loader) == [0, 1, 1, 1]


class Told:
    """Is told of each epoch, by its user."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Be another."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        yield from np.arange(4) + 10 * self.epoch


def test_one_that_is_told_of_the_epoch_begins_anew() -> None:
    """The first epoch is the one that it was told, and not the one in which it was looked at."""
    told = Told()
    with ringfeed.Loader(told, batch_size=4, workers=0, copy=True) as loader:
        told.set_epoch(3)
        assert firsts(loader) == [30, 31, 32, 33]


def test_random_numbers_are_those_of_the_epoch() -> None:
    """One that draws from ringfeed.rng() gives the numbers that a worker process would."""

    class Drawing:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(4):
                yield np.int64(ringfeed.rng().integers(2**40))

    found = []
    for place in ("here", "process"):
        with ringfeed.Loader(Drawing(), batch_size=4, copy=True, **PLACES[place]) as loader:
            loader.set_epoch(2)
            found.append(firsts(loader))
    assert found[0] == found[1]


LISTS = {name: kind for name, kind in KINDS.items() if name != "array"}


class Numbers:
    """Numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return np.int64(index)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", LISTS)
def test_no_list_is_lost(kind: str, place: str) -> None:
    """A batch_sampler that keeps its place in itself gives its first list to the first epoch."""
    lists = LISTS[kind]([number, number + 1] for number in range(0, COUNT, 2))
    with ringfeed.Loader(Numbers(), batch_sampler=lists, copy=True, **PLACES[place]) as loader:
        assert firsts(loader) == [*range(COUNT)]


def test_a_first_list_that_is_filled_again() -> None:
    """It is as it was when it was read."""

    class Again:
        def __iter__(self) -> Iterator[list[int]]:
            numbers = [0, 0]
            for number in range(0, COUNT, 2):
                numbers[:] = [number, number + 1]
                yield numbers

    with ringfeed.Loader(Numbers(), batch_sampler=Again(), copy=True, workers=0) as loader:
        assert next(iter(loader)).tolist() == [0, 1]


class OfOneThread:
    """Gives elements to the thread alone that has begun to read, as a database's cursor does."""

    def __init__(self, error_at: int) -> None:
        self.error_at = error_at

    def __iter__(self) -> Iterator[int]:
        thread = threading.get_ident()
        for number in range(COUNT):
            if thread != threading.get_ident():
                message = f"begun in another thread, at {number}"
                raise RuntimeError(message)
            if number == self.error_at:
                message = f"no element {number}"
                raise ValueError(message)
            yield number


@pytest.mark.parametrize("place", ["here", "thread"])
def test_an_iterator_of_one_thread_is_begun_anew_in_another(place: str) -> None:
    """Its elements come once each."""
    with ringfeed.Loader(OfOneThread(COUNT), batch_size=4, **PLACES[place]) as loader:
        for _ in range(2):
            assert [number for batch in loader for number in batch.tolist()] == [*range(COUNT)]


@pytest.mark.parametrize("place", ["here", "thread"])
def test_an_error_behind_the_first_element_is_the_users_own(place: str) -> None:
    """It is raised as it is, though the iterable was begun anew."""
    loader = ringfeed.Loader(OfOneThread(1), batch_size=4, **PLACES[place])
    with loader, pytest.raises(ringfeed.WorkerError) as raised:
        next(iter(loader))
    assert str(raised.value) == "element 1 of the iterable raised ValueError: no element 1"
