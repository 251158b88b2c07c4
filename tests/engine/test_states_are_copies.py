"""What a state was, it stays.

Whatever the user's sampler, dataset or code does with its parts afterwards.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = 40


class Pops:
    """Numbers of a list that it pops from, and that its state refers to."""

    def __init__(self) -> None:
        self.left = [*range(LENGTH)]

    def __iter__(self) -> Iterator[int]:
        while self.left:
            yield self.left.pop(0)
        self.left = [*range(LENGTH)]

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


class PopsLists(Pops):
    """The same, as the lists of a batch_sampler: one list, filled again."""

    def __iter__(self) -> Iterator[Any]:
        one: list[int] = []
        while self.left:
            one[:] = [self.left.pop(0) for _ in range(4)]
            yield one
        self.left = [*range(LENGTH)]


class Steered:
    """A dataset whose hook changes the list that its state refers to."""

    def __init__(self) -> None:
        self.ended = [0]

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index + 100 * self.ended[0]

    def on_epoch_end(self) -> None:
        self.ended[0] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self.ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ended = state["ended"]


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sampler": (Pops, {"batch_size": 4}),
    "batch_sampler": (PopsLists, {"max_batch_size": 4}),
}


def loader_of(way: str) -> ringfeed.Loader:
    """Return a loader whose order is the user's, or whose dataset has a state."""
    if way == "dataset":
        return ringfeed.Loader(Steered(), batch_size=4, workers=0)
    kind, parameters = WAYS[way]
    return ringfeed.Loader(np.arange(LENGTH), **{way: kind()}, **parameters, workers=0, slots=4)


def rest_of(loader: ringfeed.Loader) -> list[int]:
    """Return what an epoch gives."""
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("way", [*WAYS, "dataset"])
@pytest.mark.parametrize("taken", [1, 3, 9, LENGTH // 4])
def test_a_state_is_of_its_moment(way: str, taken: int) -> None:
    """A run goes on from it, though what it was taken of has changed since, and loses no sample."""
    with loader_of(way) as loader:
        expected = [number for _ in range(2) for number in rest_of(loader)]
    with loader_of(way) as loader:
        batches = iter(loader)
        seen = [number for _ in range(taken) for number in next(batches).tolist()]
        state = loader.state_dict()
        first = json.dumps(state)
        for _ in batches:
            pass
        assert json.dumps(state) == first
    with loader_of(way) as loader:
        loader.load_state_dict(state)
        seen += rest_of(loader)
        assert json.dumps(state) == first
        seen += rest_of(loader)
    assert seen == expected


@pytest.mark.parametrize("way", [*WAYS, "dataset"])
def test_what_is_done_to_a_state_is_done_to_no_loader(way: str) -> None:
    """The user may change what `state_dict` returned, and what was loaded."""
    with loader_of(way) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        before = copy.deepcopy(state)
        _spoil(state)
        assert loader.state_dict() == before
    with loader_of(way) as loader:
        state = copy.deepcopy(before)
        loader.load_state_dict(state)
        _spoil(state)
        assert loader.state_dict() == before
        assert rest_of(loader) == [*range(4, LENGTH)]


def _spoil(state: dict[str, Any]) -> None:
    """Empty all lists and dicts of a state."""
    for value in [*state.values()]:
        if isinstance(value, dict):
            _spoil(value)
        if isinstance(value, list | dict):
            value.clear()


def test_states_of_a_sampler_that_are_large_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no more than so many bytes; one goes on from an older one by reading."""
    monkeypatch.setattr("ringfeed.orders.custom.MOST_STATES_SIZE", 100)
    with loader_of("sampler") as loader:
        batches = iter(loader)
        seen = [number for _ in range(2) for number in next(batches).tolist()]
        state = loader.state_dict()
    with loader_of("sampler") as loader:
        loader.load_state_dict(state)
        assert seen + rest_of(loader) == [*range(LENGTH)]


def of_one_array() -> Iterator[Any]:
    """Give one array without an axis, filled again."""
    one = np.array(0)
    for number in range(LENGTH):
        one[...] = number
        yield one


def in_one_array() -> Iterator[Any]:
    """Give one array of four numbers, filled again."""
    one = np.zeros(4, np.int64)
    for number in range(0, LENGTH, 4):
        one[:] = range(number, number + 4)
        yield one


@pytest.mark.parametrize(
    "order",
    [
        {"sampler": lambda _: of_one_array()},
        {"batch_sampler": lambda _: in_one_array(), "max_batch_size": 4},
    ],
    ids=["sampler", "batch_sampler"],
)
def test_an_order_may_fill_what_it_yields_again(order: dict[str, Any]) -> None:
    """Numbers and lists that are read ahead are what they were."""
    with ringfeed.Loader(np.arange(LENGTH), **order, workers=0, slots=6) as loader:
        assert rest_of(loader) == [*range(LENGTH)]


def test_a_sampler_of_priorities_keeps_no_state_of_the_users() -> None:
    """What was loaded may be changed afterwards."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH)
    with ringfeed.Loader(np.arange(LENGTH), batch_size=4, sampler=sampler, workers=0) as loader:
        next(iter(loader))
        state = sampler.state_dict()
    other = ringfeed.orders.PrioritizedSampler(LENGTH)
    other.load_state_dict(state)
    for value in state.values():
        value[...] = 0
    assert {
        name: value.tolist() for name, value in other.state_dict().items() if name != "beta"
    } == {name: value.tolist() for name, value in sampler.state_dict().items() if name != "beta"}
