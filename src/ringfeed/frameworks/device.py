"""Batches on another device, copied ahead of the step that wants them.

No framework is imported here.

    step k is computed              ──────────────────────────
    batch k + 1 is copied           ───────────  its slot comes back at the `next()` after this
    workers fill k + 2, k + 3, …    ──────────────────────────

A batch is copied one ahead, and only if it is ready: the program never waits for one that it has
not asked for yet. It holds its slot until the copy's event has passed. Before the program waits for
the workers, it waits for the copies, which are short, and the last slot that is free is left to the
workers: two slots are enough.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from ringfeed.errors import RingfeedError
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.batch import TensorBuilder
    from ringfeed.frameworks.device_slots import DeviceSlots, Event
    from ringfeed.frameworks.jax import JaxDevice
    from ringfeed.frameworks.torch import CudaDevice
    from ringfeed.ring._ring import Lease

    Device: TypeAlias = "CudaDevice | JaxDevice"
    Copied: TypeAlias = "tuple[list[Any], list[Any], Event]"
    """The leaves of a batch, those of them that are copies, and the end of the copies."""

AHEAD = 1  # more would take memory of the device; the ring already evens out what the workers do


class DevicePrefetcher:
    """The loader's next epoch. Dropped before its end, it waits for its copies and breaks off."""

    def __init__(self, stream: BatchStream, device: Device, builder: TensorBuilder) -> None:
        """Copy the leaves that ``builder`` makes, and finishes when the step asks for them."""
        self._slots = stream.slots
        self._device: Any = device  # of two frameworks, whose tensors and events differ
        self._builder = builder
        self._most = stream.info.slots - 2  # copies in flight when one more begins
        self._queue: deque[tuple[Copied | Exception, int, bool]] = deque()
        # Nothing here may refer to this iterator: it must die, and its epoch with it, when the
        # program drops it.
        self._batches = stream.epoch(_CopyAhead(stream.slots, device, builder))
        self._progress = self._batches.count_alone()
        if device.registrar is not None:
            stream.slots.register(device.registrar)

    def __iter__(self) -> DevicePrefetcher:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, in the structure of a sample; its memory is the device's own."""
        self._slots.give_back_passed()
        if not self._queue:
            self._fetch(ready=self._batches.ready())
        while (
            len(self._queue) <= AHEAD and self._batches.ready()
        ):  # which raises if this iterator has had its time
            self._fetch(ready=True)
        first, finished, is_over = self._queue.popleft()
        self._progress.finished_batches, self._progress.is_over = finished, is_over
        if isinstance(first, Exception):
            try:
                raise first
            finally:
                del first  # else it refers to itself, by this frame
        leaves, copies, event = first
        self._device.hand_over(copies, event)
        return self._builder.finish(leaves)

    @property
    def failure(self) -> RingfeedError | None:
        """What ended the workers, and the epoch before its time."""
        return self._batches.failure

    def _fetch(self, *, ready: bool) -> None:
        """Take a batch and begin to copy it; an error takes its place in the order."""
        self._slots.wait(self._most if ready else 0)
        try:
            found = next(self._batches)
        except Exception as error:  # noqa: BLE001 - the end, and all that a dataset raises
            found = error.with_traceback(None)  # which refers to the lease
        progress = self._batches.progress
        self._queue.append((found, progress.finished_batches, progress.is_over))

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give back the slots that the copies read; at exit the engine has done so.

        The garbage collector may have called: what is waited for is the device, which needs no
        thread of ours, or lock.
        """
        if not is_exiting():
            self._slots.wait()


class _CopyAhead:
    """Begins to copy a batch; its slot is held until the copy has passed."""

    def __init__(self, slots: DeviceSlots, device: Any, builder: TensorBuilder) -> None:
        self._slots = slots
        self._device = device
        self._builder = builder
        self.is_computing = device.is_computing
        """As that of a `BatchBuilder`."""

    def __call__(self, lease: Lease, rows: int) -> Copied:
        leaves, moved = self._builder.leaves(lease, rows), self._builder.moved
        copies, event = self._device.copy([leaves[number] for number in moved])
        self._slots.add(lease, event)
        for number, copy in zip(moved, copies, strict=True):
            leaves[number] = copy
        return leaves, copies, event
