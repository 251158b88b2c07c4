"""Batches on another device, copied ahead of the step that wants them; the slots that copies read.

No framework is imported here.

    step k is computed              ──────────────────────────
    batch k + 1 is copied           ───────────  its slot comes back at the `next()` after this
    workers fill k + 2, k + 3, …    ──────────────────────────

A batch is copied one ahead, and only if it is ready: the program never waits for one that it has
not asked for yet. It holds its slot until the copy's event has passed. Before the program waits for
the workers, it waits for the copies, which are short, and the last slot that is free is left to the
workers: two slots are enough.

A GPU copies registered memory by itself, at the speed of the bus and beside the program. Memory
that is not registered goes through a buffer of the driver's, by the hand of the calling thread.
Registration belongs to a process, so only the consumer registers. It is undone when the ring ends,
after the last copy, and not when the last view dies: a view stays valid, as memory that is not
registered.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed._callers import callers_depth
from ringfeed._process import Forks
from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ringfeed.errors import RingfeedError
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.batch import TensorBuilder
    from ringfeed.frameworks.jax import JaxDevice, JaxEvent
    from ringfeed.frameworks.torch import CudaDevice
    from ringfeed.ring._ring import Lease, Ring

    Device: TypeAlias = "CudaDevice | JaxDevice"
    Copied: TypeAlias = "tuple[list[Any], list[Any], Event]"
    """The leaves of a batch, those of them that are copies, and the end of the copies."""
    Event: TypeAlias = "torch.cuda.Event | JaxEvent"
    """The moment after which a copy no longer reads its slot. An event that raises ends it, too."""
    Registrar: TypeAlias = "tuple[Callable[[int, int], object], Callable[[int], object]]"
    """Registers (address, size) with a driver; undoes it by the address. Raises RuntimeError."""
    Copy: TypeAlias = "tuple[Lease, Event]"

AHEAD = 1  # more would take memory of the device; the ring already evens out what the workers do


class DeviceSlots:
    """The copies that read a loader's slots, in their order, and the registration of the slots.

    Copies are safe from any thread, and from a destructor: there is no lock. A waiter leaves its
    copy in place until that has passed, so that no other thread takes it for passed meanwhile.
    """

    def __init__(self, slot_size: int, *, registers: bool) -> None:
        """Take slots of this size; they are never registered unless ``registers``."""
        self._copies: deque[Copy] = deque()
        self._slot_size = slot_size
        self._registers = registers
        self._ring: Ring | None = None  # that runs
        self._registered: list[int] = []  # addresses
        self._unregister: Callable[[int], object] | None = None  # of the device that registered
        self._forks = Forks.count

    # ---- copies ----

    def __len__(self) -> int:
        """Return how many copies may still read their slots."""
        return len(self._copies)

    def add(self, lease: Lease, event: Event) -> None:
        """Hold the slot until the event has passed."""
        self._copies.append((lease, event))

    def give_back_passed(self) -> None:
        """Give back the slots whose copies have passed, without waiting."""
        self._give_back(0, waits=False)

    def wait(self, most: int = 0) -> None:
        """Wait until at most ``most`` copies are in flight, and give the other slots back."""
        self._give_back(most, waits=True)

    def _give_back(self, most: int, *, waits: bool) -> None:
        """Give slots back, up to a copy that has not passed, though the device fails.

        The first of its errors is raised at the end.
        """
        first: Exception | None = None
        while len(self._copies) > most and (copy := self._oldest()) is not None:
            try:
                if waits:
                    copy[1].synchronize()
                elif not copy[1].query():
                    break
            except Exception as error:  # noqa: BLE001 - whatever a framework raises
                first = first or error
            with suppress(ValueError):  # by another thread, which waited for the same copy
                self._copies.remove(copy)
        copy = None  # the traceback of an error must hold no slot
        if first is not None:
            raise first

    def _oldest(self) -> Copy | None:
        if self._forks != Forks.count:
            return None  # a forked child: slots and events are its parent's
        try:
            return self._copies[0]
        except IndexError:
            return None

    # ---- registration ----

    def prepare(self, engine: Any) -> None:
        """Take the slots of an engine that starts, and undo at its end what is registered."""
        self._ring = engine.ring
        engine.on_stop += [self.wait, self._release]

    def register(self, registrar: Registrar) -> None:
        """Register the slots of the ring that runs, once; a warning says where that fails."""
        if self._ring is None or self._unregister is not None or not self._registers:
            return
        register, self._unregister = registrar
        try:
            for slot in range(self._ring.slots):
                address = self._ring.address + slot * self._slot_size
                register(address, self._slot_size)
                self._registered.append(address)
        except RuntimeError as error:
            self._registers = False
            message = (
                "copies of the slots to the GPU go through a buffer of the driver's: it does not "
                f"register slot {len(self._registered)} of {self._ring.slots} "
                f"({show_bytes(self._slot_size)} each): {error}; use fewer or smaller slots, or "
                "allow this process to lock memory (ulimit -l, or the settings of its container)"
            )
            self._undo()
            warnings.warn(message, RuntimeWarning, stacklevel=callers_depth())
        except BaseException:
            self._undo()
            raise

    def _release(self) -> None:
        self._undo()
        self._ring = None

    def _undo(self) -> None:
        """Unregister every slot; a failure is a warning, since no caller can mend it."""
        unregister, self._unregister = self._unregister, None
        registered, self._registered = self._registered, []
        if unregister is None or self._forks != Forks.count:
            return  # a forked child has registered nothing
        refused: Exception | None = None
        for address in registered:
            try:
                unregister(address)
            except RuntimeError as error:
                refused = error
        if refused is not None:
            warnings.warn(
                f"a slot ({show_bytes(self._slot_size)}) stays registered until this process ends: "
                f"{refused}",
                RuntimeWarning,
                stacklevel=2,
            )


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
