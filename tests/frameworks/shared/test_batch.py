"""When a batch goes out as a copy: by what the lease says of the slots alone, without any framework."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from ringfeed.frameworks.base import Framework
from ringfeed.frameworks.batch import Outstanding


class Asked:
    """A lease that has room as it is told, and notes how long it was to wait."""

    def __init__(self) -> None:
        self.room = False
        self.comes = False
        self.waited_ns: list[int] = []

    def has_room(self) -> bool:
        return self.room

    def wait_room(self, timeout_ns: int) -> bool:
        self.waited_ns.append(timeout_ns)
        self.room = self.comes
        return self.room


class Tensor:
    """Something to refer to weakly."""


def outstanding_of(slots: int, in_flight_s: float = 0.0) -> tuple[Outstanding, Framework, Any]:
    """Return the batches of a loader, how its framework takes memory, and a lease."""
    framework = Framework(lambda capsule: capsule, lambda array: array, in_flight_s=in_flight_s)
    return Outstanding(slots), framework, Asked()


@pytest.mark.parametrize("room", [True, False])
def test_a_batch_without_room_is_a_copy(room: bool) -> None:  # noqa: FBT001
    """Where no slot is left to be filled the batch is copied, and counted."""
    outstanding, framework, lease = outstanding_of(3)
    lease.room = room
    assert outstanding.has_room(lease, framework) == room
    assert outstanding.copied == (0 if room else 1)


def test_slots_in_flight_are_waited_for_to_the_deadline() -> None:
    """A slot without a tensor is in flight: it is waited for once in vain, and again after one has come back."""
    outstanding, framework, lease = outstanding_of(3, in_flight_s=7.5)
    kept = [Tensor()]
    outstanding.add(1, kept)
    assert [outstanding.has_room(lease, framework) for _ in range(3)] == [False] * 3
    assert lease.waited_ns == [7_500_000_000]
    lease.room = True
    assert outstanding.has_room(lease, framework)
    outstanding.add(2, [])
    lease.room, lease.comes = False, True
    assert outstanding.has_room(lease, framework)
    assert len(lease.waited_ns) == 2
    assert outstanding.copied == 3


def test_slots_of_living_tensors_are_not_waited_for() -> None:
    """Where somebody has a tensor of every other slot, waiting is in vain."""
    outstanding, framework, lease = outstanding_of(3, in_flight_s=7.5)
    kept = [Tensor(), Tensor()]
    outstanding.add(1, kept[:1])
    outstanding.add(2, kept[1:])
    assert not outstanding.has_room(lease, framework)
    assert lease.waited_ns == []


def test_what_is_remembered_is_bounded_by_the_slots() -> None:
    """However many batches have gone out, no more is remembered than there are slots."""
    outstanding, framework, lease = outstanding_of(4)
    lease.room = True
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2000):
        assert outstanding.has_room(lease, framework)
        outstanding.add(number % 4, [Tensor()])
    gc.collect()
    assert len(gc.get_objects()) - before < 100
