"""Ctrl-C amid an order: what was not given comes once, with the next call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import points
from ringfeed.datasets.round_robin import RoundRobinEpoch
from ringfeed.orders.buckets import Buckets
from ringfeed.orders.custom import Custom, Lists
from ringfeed.orders.mix import MixSampler
from ringfeed.orders.permutation import Shuffled
from ringfeed.orders.prioritized import PrioritizedSampler
from ringfeed.orders.sampler import PositionalEpoch, Sequential
from ringfeed.orders.shard import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.orders.sampler import Epoch

pytestmark = pytest.mark.once  # tests/engine/test_points.py does some of it on each Python


class Counted:
    """A sampler that can be brought to a place."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 30:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> Any:
        """Return where it is."""
        return self.at

    def load_state_dict(self, state: Any) -> None:
        """Go there."""
        self.at = state


def mix(weights: Any, **settings: Any) -> MixSampler:
    """Return a mix of three datasets, in batches of 3."""
    return MixSampler(
        (7, 11, 9), weights, "first", 3, **{"per_batch": False, "seed": 4, **settings}
    )


BUCKETS = Buckets([1 + i % 7 for i in range(30)], max_tokens=20, window=9)
EPOCHS: dict[str, Callable[[], Epoch]] = {
    "in order": lambda: Sequential().bind(30, 0).epoch(1),
    "shuffled, chunk by chunk": lambda: PositionalEpoch(
        partial(Shuffled().bind(30, 3).indices_at, 1), 30, 0, 4
    ),
    "an array": lambda: Custom([*range(30)]).bind(30, 0).epoch(1),
    "a generator": lambda: Custom(lambda _: iter([*range(30)])).bind(30, 0).epoch(1),
    "a sampler with a state": lambda: Custom(Counted()).bind(30, 0).epoch(1),
    "priorities": lambda: PrioritizedSampler(30, num_samples=99).bind(30, 4).epoch(1),
    "lists": lambda: Lists([[i, i + 1] for i in range(20)], 2).bind(30, 0).epoch(1),
    "buckets": lambda: BUCKETS.shared_by(1, "pad", None).bind(30, 5).epoch(1),
    "a rank of buckets": lambda: Part(1, 2, 1, "pad").part_of(
        BUCKETS.shared_by(2, "pad", None).bind(30, 5).epoch(1)
    ),
    "a mix": lambda: mix((3, 2, 1)).epoch(1),
    "a mix with quotas": lambda: mix((3, 2, 1), per_batch=True).epoch(1),
    "a mix of changing weights": lambda: mix(lambda _, batch: (1, 1 + batch % 3, 2)).epoch(1),
    "streams": lambda: RoundRobinEpoch(3, 3),
    "a rank": lambda: Part(1, 2, 3, "keep").part_of(Shuffled().bind(29, 3).epoch(1)),
    "a rank of a mix": lambda: Part(0, 2, 3, "pad").part_of(
        mix(lambda _, batch: (1, 1 + batch % 3, 2)).epoch(1)
    ),
}


def read(epoch: Epoch, hit: points.Points) -> list[int]:
    """Read 24 numbers; after Ctrl-C, ask for fewer at a time."""
    found: list[int] = []
    count = 12
    with hit:
        while len(found) < 24:
            try:
                some = epoch.take(count)
            except KeyboardInterrupt:
                count = 3
            else:
                found += np.concatenate(some).tolist() if epoch.gives_lists and some else [*some]
                if not len(some):
                    break
    return found


@pytest.mark.parametrize("kind", EPOCHS)
def test_ctrl_c_at_any_point_of_take_costs_nothing(kind: str) -> None:
    """The numbers and their order are those without it."""
    counting = points.Points()
    expected = read(EPOCHS[kind](), counting)
    wrong = {}
    for number in counting.moments():
        hit = points.Points(number)
        found = read(EPOCHS[kind](), hit)
        if found[:24] != expected[:24]:
            wrong[hit.where] = found
    assert len(expected) >= 10
    assert wrong == {}


def interrupted_once(given: list[int]) -> Iterator[int]:
    """Give two numbers, and be interrupted."""
    yield from given[:2]
    raise KeyboardInterrupt


def test_a_generator_that_ctrl_c_has_ended_does_not_look_like_one_that_is_over() -> None:
    """What it would have given is not left out without a word."""
    epoch = Custom(lambda _: interrupted_once([4, 5])).bind(30, 0).epoch(1)
    with pytest.raises(KeyboardInterrupt):
        epoch.take(4)
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            epoch.take(4)
        assert str(caught.value) == (
            "KeyboardInterrupt has ended the generator that sampler is read from, at position 2; "
            "load the state that the loader has now, or begin an epoch"
        )


class Once:
    """An iterator whose third number Ctrl-C keeps back, the first time it is asked for."""

    def __init__(self) -> None:
        self.at = 0
        self.armed = True

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == 2 and self.armed:
            self.armed = False
            raise KeyboardInterrupt
        self.at += 1
        return self.at - 1


def test_what_an_iterator_gave_ahead_of_ctrl_c_is_kept() -> None:
    """Of a batch that was half read, no number is lost."""
    epoch = Custom(Once()).bind(30, 0).epoch(1)
    with pytest.raises(KeyboardInterrupt):
        epoch.take(4)
    assert epoch.take(4).tolist() == [0, 1, 2, 3]


def state_of_streams(hit: points.Points) -> Any:
    """Return the state after two batches; behind Ctrl-C it shows that a stream is over."""
    epoch = RoundRobinEpoch(3, 3)
    try:
        with hit:
            epoch.take(18)
    except KeyboardInterrupt:
        epoch.end(1)
        epoch.take(18)
    return epoch.state(6)


def test_a_state_says_nothing_of_what_ctrl_c_kept_back() -> None:
    """What was noted for it is forgotten: the streams have changed since."""
    counting = points.Points()
    state_of_streams(counting)
    wrong = {}
    for number in counting.moments():
        hit = points.Points(number)
        state = state_of_streams(hit)
        if state != {"given": 6, "read": [3, 0, 3], "turn": [0, 2]}:
            wrong[hit.where] = state
    assert counting.moments()
    assert wrong == {}
