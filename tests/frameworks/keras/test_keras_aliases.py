"""Batches over the slots.

When one is handed out as a copy, with NumPy in the place of a framework.
"""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.frameworks.base import Epoch
from ringfeed.frameworks.batch import Framework, Outstanding, TensorBuilder
from ringfeed.frameworks.dlpack import Exported

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = np.arange(20, dtype=np.float32)


class Tensor:
    """A framework's tensor: it may be dropped while the framework still reads the memory."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


def numpy_memory(**settings: Any) -> Framework:
    """Return how a framework of NumPy arrays takes memory."""
    if "in_flight_s" in settings:
        settings["is_computing"] = lambda: False
    return Framework(lambda capsule: Tensor(np.from_dlpack(Exported(capsule))), Tensor, **settings)


def begin(loader: ringfeed.Loader, **settings: Any) -> tuple[Epoch, Outstanding]:
    """Return an epoch of batches of two, and the count of its copies."""
    outstanding = Outstanding()
    memory = numpy_memory(**settings)
    builder = TensorBuilder(loader._stream.info, memory, outstanding=outstanding)
    return Epoch(loader._stream, builder), outstanding


def make(**settings: Any) -> ringfeed.Loader:
    """Return a loader of ten batches over three slots."""
    return ringfeed.Loader((SAMPLES,), **{"batch_size": 2, "slots": 3, "workers": 0, **settings})


class Interrupted(Exception):  # noqa: N818 - no error
    """What the signal handler of a test raises."""


@contextmanager
def signalled_soon() -> Iterator[None]:
    """Have this thread get a signal in a moment, whose handler raises."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join(120)
        signal.signal(signal.SIGUSR1, before)


def test_dropped_batches_are_never_copied() -> None:
    """Who drops each batch for the next gets all of them over the slots."""
    loader = make()
    epoch, outstanding = begin(loader)
    assert [leaf.memory.tolist() for (leaf,) in epoch] == SAMPLES.reshape(10, 2).tolist()
    assert outstanding.copied == 0
    assert loader.slot_states() == ["free"] * 3


def test_one_slot_is_never_held() -> None:
    """Who keeps all batches gets copies when one slot is left, each with content of its own."""
    loader = make()
    epoch, outstanding = begin(loader, in_flight_s=50)
    kept = [leaf for (leaf,) in epoch]
    assert outstanding.copied == 8
    assert loader.slot_states().count("held") == 2
    assert [tensor.memory.tolist() for tensor in kept] == SAMPLES.reshape(10, 2).tolist()


def test_room_again() -> None:
    """Once a tensor is gone, batches come over the slots again."""
    loader = make()
    epoch, outstanding = begin(loader)
    kept = [next(epoch) for _ in range(4)]
    assert outstanding.copied == 2
    kept.clear()
    kept += [next(epoch), next(epoch)]
    assert outstanding.copied == 2
    assert loader.slot_states().count("held") == 2


def test_slots_in_flight_are_waited_for() -> None:
    """A slot of which no tensor is left, and that the framework still reads, is waited for."""
    loader = make()
    epoch, outstanding = begin(loader, in_flight_s=50)
    read = [next(epoch)[0].memory, next(epoch)[0].memory]  # the tensors are gone
    timer = threading.Timer(0.1, read.pop)
    timer.start()
    (third,) = next(epoch)
    timer.join()
    assert outstanding.copied == 0
    assert third.memory.tolist() == [4, 5]
    assert loader.slot_states().count("held") == 2


def test_a_slot_that_comes_back_ends_the_wait_at_the_end_of_an_epoch() -> None:
    """Nothing is planned any more that could be bound: the slot itself is what is waited for."""
    loader = ringfeed.Loader((SAMPLES[:6],), batch_size=2, slots=3, workers=0)
    epoch, outstanding = begin(loader, in_flight_s=50)
    read = [next(epoch)[0].memory, next(epoch)[0].memory]
    timer = threading.Timer(0.1, read.clear)
    timer.start()
    (third,) = next(epoch)
    timer.join()
    assert third.memory.tolist() == [4, 5]
    assert outstanding.copied == 0


def test_a_slot_that_never_comes_back_is_copied_around() -> None:
    """What is read for ever is waited for to the deadline.

    Then the batch is a copy, and the ring goes on.
    """
    loader = make()
    epoch, outstanding = begin(loader, in_flight_s=0.05)
    read = [next(epoch)[0].memory, next(epoch)[0].memory]
    assert [next(epoch)[0].memory.tolist() for _ in range(3)] == [[4, 5], [6, 7], [8, 9]]
    assert outstanding.copied == 3
    read.pop()
    next(epoch)
    assert outstanding.copied == 3


def test_a_signal_is_answered_while_slots_are_in_flight() -> None:
    """Ctrl-C ends the wait for a framework that does not let go."""
    loader = make()
    epoch, _ = begin(loader, in_flight_s=50)
    read = [next(epoch)[0].memory, next(epoch)[0].memory]
    with signalled_soon(), pytest.raises(Interrupted):
        next(epoch)
    read.clear()


def test_closing_ends_the_wait_for_slots_in_flight() -> None:
    """`close` from another thread does not wait for a framework that does not let go."""
    loader = make()
    epoch, _ = begin(loader, in_flight_s=50)
    read = [next(epoch)[0].memory, next(epoch)[0].memory]
    timer = threading.Timer(0.1, loader.close)
    timer.start()
    next(epoch)
    timer.join(120)
    assert not timer.is_alive()
    with pytest.raises(ringfeed.ClosedError):
        next(epoch)
    assert read[0].tolist() == [0, 1]


def test_an_epoch_that_is_dropped_ends_without_the_garbage_collector() -> None:
    """Nothing that an epoch has refers back to it: dropped, it breaks off at once."""
    loader = make()
    gc.disable()
    try:
        epoch, _ = begin(loader)
        next(epoch)
        dropped = weakref.ref(epoch)
        del epoch
        assert dropped() is None
        assert loader.slot_states() == ["free"] * 3
    finally:
        gc.enable()


def test_cycles_are_collected() -> None:
    """Tensors that a framework leaves in cycles do not wait there for the garbage collector."""
    loader = make()
    epoch, outstanding = begin(loader, in_cycles=True)
    gc.disable()
    try:
        for (tensor,) in epoch:
            cycle = [tensor]
            cycle.append(cycle)
            del tensor, cycle
            assert loader.slot_states().count("held") == 1
    finally:
        gc.enable()
    assert outstanding.copied == 0


def test_cycles_that_are_old_are_collected() -> None:
    """A slot whose batch grew old in a cycle comes back before another batch is copied."""
    loader = make()
    epoch, outstanding = begin(loader, in_cycles=True)
    gc.disable()
    try:
        cycle = [*next(epoch)]
        cycle.append(cycle)
        gc.collect()  # makes old what is alive
        del cycle
        kept = [next(epoch), next(epoch)]
        assert outstanding.copied == 0
        kept += [next(epoch), next(epoch)]
        assert outstanding.copied == 2
    finally:
        gc.enable()
    assert [leaf.memory.tolist() for (leaf,) in kept] == SAMPLES[2:10].reshape(4, 2).tolist()


def test_dtypes_left_alone() -> None:
    """Leaves that a framework does not take are private, hold no slot, in native byte order."""
    arrays = (SAMPLES, SAMPLES.astype(">f8"), SAMPLES.astype(np.uint16))
    loader = ringfeed.Loader(arrays, batch_size=2, slots=3, workers=0)
    epoch, outstanding = begin(loader, leaves_alone=frozenset({"uint16"}))
    kept = list(epoch)
    assert [leaf.memory.dtype for leaf in kept[0]] == ["<f4", "<f8", "<u2"]
    assert [[leaf.memory.tolist() for leaf in batch] for batch in kept] == [
        [[i, i + 1]] * 3 for i in range(0, 20, 2)
    ]
    loader = ringfeed.Loader(arrays[1:], batch_size=2, slots=3, workers=0)
    epoch, outstanding = begin(loader, leaves_alone=frozenset({"uint16"}))
    assert len(list(epoch)) == 10
    assert outstanding.copied == 0


def test_a_loader_of_copies() -> None:
    """`copy=True` of the loader holds here too: no batch keeps a slot."""
    loader = make(copy=True)
    epoch, outstanding = begin(loader)
    kept = list(epoch)
    assert len(kept) == 10
    assert outstanding.copied == 0
    assert loader.slot_states() == ["free"] * 3


def test_views_outlive_the_loader() -> None:
    """A tensor is valid after `close`."""
    with make() as loader:
        epoch, _ = begin(loader)
        (first,) = next(epoch)
    del loader, epoch
    gc.collect()
    assert first.memory.tolist() == [0, 1]
