"""An epoch that goes on at a position gives what it would have given there from its start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ringfeed.datasets.passes import PassOrder
from ringfeed.datasets.round_robin import RoundRobinSampler
from ringfeed.orders.custom import Custom
from ringfeed.orders.permutation import Shuffled
from ringfeed.orders.sampler import Sequential

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.orders.sampler import Sampler

pytestmark = pytest.mark.once

LENGTH = 5000
SAMPLERS: dict[str, Sampler] = {
    "sequential": Sequential().bind(LENGTH, 0),
    "shuffled, sorted": Shuffled().bind(4000, 7),
    "shuffled": Shuffled().bind(LENGTH, 7),
    "array": Custom(np.arange(LENGTH)[::-1]).bind(LENGTH, 0),
    "list": Custom([*range(LENGTH)][::-1]).bind(LENGTH, 0),
    "function": Custom(lambda epoch: ((epoch + i) % LENGTH for i in range(LENGTH))).bind(LENGTH, 0),
    "passes": PassOrder(lambda: LENGTH),
    "stream": RoundRobinSampler(([],), 10),
}


@pytest.mark.parametrize("start", [0, 1, 10, 777, 3999])
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_epoch_goes_on_at_a_position(name: str, start: int) -> None:
    """What comes is what comes there in an epoch from its start."""
    sampler = SAMPLERS[name]
    whole = sampler.epoch(3).take(4100)
    assert sampler.epoch(3, start).take(4100 - start).tolist() == whole[start:].tolist()


@pytest.mark.parametrize("name", set(SAMPLERS) - {"stream"})
def test_past_the_end_there_is_nothing(name: str) -> None:
    """An epoch that is over gives no numbers."""
    assert SAMPLERS[name].epoch(3, LENGTH + 1).take(10).size == 0


class Walk:
    """A sampler whose next number depends on all before, and which knows where it is."""

    def __init__(self) -> None:
        self.state = [1]
        self.steps = 0
        self.resumed = False

    def state_dict(self) -> dict[str, Any]:
        return {"state": [*self.state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = [*state["state"]]
        self.resumed = True

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.state = [1]
        self.resumed = False
        while True:
            self.steps += 1
            self.state[0] = self.state[0] * 48271 % 2147483647
            yield self.state[0] % 100


@pytest.mark.parametrize("position", [0, 40, 70, 80])
def test_a_sampler_that_has_a_state_goes_on_from_it(position: int) -> None:
    """Its numbers before are not read again, but for those since its newest state."""
    epoch = Custom(Walk()).bind(100, 0).epoch(0)
    whole = np.concatenate([epoch.take(40) for _ in range(5)])
    state = json.loads(json.dumps(epoch.state(position)))
    walk = Walk()
    rest = Custom(walk).bind(100, 0).epoch(0, position, state).take(50)
    assert rest.tolist() == whole[position : position + 50].tolist()
    assert walk.steps == 50 + position % 40


@pytest.mark.parametrize("position", [0, 10, 30, 70])
def test_several_streams_go_on_in_their_turns(position: int) -> None:
    """Where one has ended, it stays out."""
    sampler = RoundRobinSampler(([], [], []), 10)
    epoch = sampler.epoch(0)
    first = epoch.take(30)
    assert epoch.end(int(first[10]))
    whole = np.concatenate([first, epoch.take(90)])
    state = json.loads(json.dumps(epoch.state(position)))
    rest = sampler.epoch(0, position, state).take(40)
    kept = [number for number in rest.tolist() if position >= 40 or number % 3 != 1]
    others = [number for number in whole[position:].tolist() if position >= 40 or number % 3 != 1]
    assert kept == others[: len(kept)]
