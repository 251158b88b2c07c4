"""What a batch is made of, and when it goes out as a copy: without any framework."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.frameworks.batch import Framework, Outstanding, TensorBuilder
from ringfeed.frameworks.cast import Chosen
from ringfeed.frameworks.dlpack import Exported


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
    """Where a caller has a tensor of every other slot, waiting is in vain."""
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


# ---- what a batch is made of ----


def over(capsule: object) -> Any:
    """Return an array over the memory of a capsule."""
    return np.from_dlpack(Exported(capsule))


@pytest.mark.parametrize("copy", [False, True])
def test_a_leaf_that_is_cast_is_read_from_the_slot(copy: bool) -> None:  # noqa: FBT001
    """Other leaves are copied if that is asked for, have a conversion of their own, or no code in DLPack."""
    arrays = (np.arange(4, dtype=np.uint8), np.arange(4), np.arange(4.0), np.arange(4, dtype=">i2"))
    with ringfeed.Loader(arrays, batch_size=4, workers=0, slots=2, copy=copy) as loader:
        info = loader._stream.info
        read: list[int] = []

        def cast(array: Any) -> Any:
            read.append(array.ctypes.data)
            return array.astype(np.float32)

        builder = TensorBuilder(
            info,
            Framework(over, np.asarray),
            cast=Chosen({0: cast}),
            own={2: lambda view: view * 2},
        )
        assert builder.over_slot == ([0] if copy else [0, 1])
        lease, made, private = next(
            loader._stream.epoch(
                lambda lease, rows: (lease, builder(lease, rows), builder.private(lease, rows))
            )
        )
        at = [lease.address + offset for offset in info.offsets]
        assert read[0] == at[0] != read[1]
        assert [leaf.ctypes.data == place for leaf, place in zip(made, at, strict=True)] == [
            False,
            not copy,
        ] + [False] * 2
        np.frombuffer(lease, np.uint8)[:] = 255
        assert [leaf.tolist() for leaf in private] == [
            [0, 1, 2, 3],
            [0, 1, 2, 3],
            [0, 2, 4, 6],
            [0, 1, 2, 3],
        ]
        assert [leaf.dtype for leaf in private] == ["f4", "i8", "f8", "i2"]
