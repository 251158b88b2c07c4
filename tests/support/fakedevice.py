"""A device without hardware, which reads slots as late as its events allow, and what tests do with it."""

from __future__ import annotations

import ctypes
import random
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ahead import loader_with
from datasets import Oracle, check
from ringfeed.frameworks.base import Epochs
from ringfeed.frameworks.device import DevicePrefetcher
from ringfeed.spec._fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LENGTH, ROWS = 60, 8


def never(_event: object) -> bool:
    """A copy passes only when it is waited for."""
    return False


def at_once(_event: object) -> bool:
    """A copy has passed when it is looked at."""
    return True


DICE = random.Random(7)  # noqa: S311 - no secret


def at_random(_event: object) -> bool:
    """Three copies of ten have passed when they are looked at."""
    return DICE.random() < 0.3


class FakeEvent:
    """Passes when its device says so, or when it is waited for."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.is_over = False

    def query(self) -> bool:
        """Whether the device has come so far."""
        if not self.is_over and self.device.has_come(self):
            self.device.copy_until(self)
        return self.is_over

    def synchronize(self) -> None:
        """Have the device come so far."""
        self.device.waits += 1
        self.device.copy_until(self)


class FakeDevice:
    """Reads host memory by its address, and only when a copy's event passes: what was given back too early is wrong.

    ``has_come(event)`` says whether an event passes when it is looked at. Copies pass in their
    order, as on a stream.
    """

    registrar: Any = None

    def __init__(self, has_come: Callable[[FakeEvent], bool] = never) -> None:
        self.has_come = has_come
        self.begun: list[FakeEvent] = []
        self.handed_over: list[FakeEvent] = []
        self.waits = 0
        self.computes = False
        self.refuses: Exception | None = None  # the next copy
        self.breaks: Exception | None = None  # the next event
        self._jobs: list[tuple[FakeEvent, list[tuple[np.ndarray[Any, Any], int]]]] = []

    def is_computing(self) -> bool:
        """Whether it still computes, as the test says."""
        return self.computes

    def copy(self, tensors: list[Any]) -> tuple[list[Any], FakeEvent]:
        """Note down what is to be read, and where; nothing holds it."""
        if self.refuses is not None:
            refuses, self.refuses = self.refuses, None
            raise refuses
        event = FakeEvent(self)
        copies = [
            np.full_like(tensor, 255 if tensor.dtype == np.uint8 else -1) for tensor in tensors
        ]
        self._jobs.append(
            (
                event,
                [(copy, tensor.ctypes.data) for copy, tensor in zip(copies, tensors, strict=True)],
            )
        )
        self.begun.append(event)
        return copies, event

    def copy_until(self, event: FakeEvent) -> None:
        """Copy what comes before and up to an event."""
        while not event.is_over:
            first, copies = self._jobs.pop(0)
            first.is_over = True
            if self.breaks is not None:
                breaks, self.breaks = self.breaks, None
                raise breaks
            for copy, address in copies:
                ctypes.memmove(copy.ctypes.data, address, copy.nbytes)

    def hand_over(self, _copies: list[Any], event: FakeEvent) -> None:
        """Note it down: the test waits before it looks."""
        self.handed_over.append(event)


def epochs_of(loader: ringfeed.Loader, device: FakeDevice) -> Epochs:
    """Return the loader's epochs on a device."""
    stream, fields = loader._stream, Fields(loader.spec, loader.plan.layout.offsets)
    builder: Any = SimpleNamespace(
        leaves=fields.views, finish=loader.spec.unflatten, moved=range(len(loader.spec.leaves))
    )
    return Epochs(stream, lambda: DevicePrefetcher(stream, device, builder))


def oracle(dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader of an Oracle's batches."""
    return loader_with(
        dataset or Oracle(LENGTH), **{"batch_size": ROWS, "workers": 2, "timeout_s": 120} | settings
    )


def outcomes(batches: Iterable[Any]) -> list[Any]:
    """Return what each next() of an epoch came to: an error, or the indices of a batch, checked when all is over."""
    found: list[Any] = []
    iterator = iter(batches)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except ringfeed.RingfeedError as error:
            found.append(f"{type(error).__name__}: {error}")
    return [outcome if isinstance(outcome, str) else check(outcome) for outcome in found]


def until_ready(loader: ringfeed.Loader, count: int) -> None:
    """Wait until so many slots are ready."""
    deadline_s = time.monotonic() + 120
    while loader.slot_states().count("ready") < count:
        assert time.monotonic() < deadline_s, loader.slot_states()
        time.sleep(0.001)


def held(loader: ringfeed.Loader) -> int:
    """Return the slots that somebody holds."""
    return loader.slot_states().count("held")
