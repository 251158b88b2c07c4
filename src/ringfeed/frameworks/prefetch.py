"""Batches on another device, copied ahead of the step that wants them; no framework is imported here.

    step k is computed              ──────────────────────────
    batch k + 1 is copied           ───────────  its slot comes back at the `next()` after this
    workers fill k + 2, k + 3, …    ──────────────────────────

A batch is copied one ahead, and only if it is ready: the program never waits for one that it has not asked for yet.
It holds its slot until the copy's event has passed. Before the program waits for the workers, it waits for the copies,
which are short, and the last slot that is free is left to the workers: two slots are enough.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ringfeed.frameworks.epochs import Epochs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.pending_copies import Event, PendingCopies
    from ringfeed.frameworks.pinned import Registrar
    from ringfeed.ring._ring import Lease

    Finish: TypeAlias = Callable[[list[Any]], list[Any]]

AHEAD = 1  # more would take memory of the device; the ring already evens out what the workers do


class Device(Protocol):
    """Copies tensors to where a framework computes."""

    @property
    def registrar(self) -> Registrar | None:
        """The registrar of the slots in place of the CUDA driver, with ``pin=True``."""

    def copy(self, tensors: list[Any]) -> tuple[list[Any], Event]:
        """Begin to copy; returns what will be the copies, and when they will be. If it raises, none is under way."""

    def hand_over(self, copies: list[Any], event: Any, /) -> None:
        """Have all that the program does from now on in this thread come after the copy."""


class DeviceEpochs(Epochs):
    """Every ``iter()`` is the loader's next epoch, on a device; as long as the loader.

    ``leaves(lease, rows)`` makes the tensors over a slot that the device copies, and ``finish`` of the copies, when
    the step asks for them, what it is given.
    """

    def __init__(
        self, stream: BatchStream, device: Device, leaves: Callable[[Lease, int], list[Any]], finish: Finish = list
    ) -> None:
        self._stream = stream
        self._device = device
        self._leaves = leaves
        self._finish = finish

    def __iter__(self) -> DevicePrefetcher:
        """Begin the loader's next epoch; an older iterator raises SupersededError at its next ``next()``."""
        return DevicePrefetcher(self._stream, self._device, self._leaves, self._finish)


class DevicePrefetcher:
    """One epoch. Dropping it before the end breaks the epoch off, when its copies have passed."""

    def __init__(
        self, stream: BatchStream, device: Device, leaves: Callable[[Lease, int], list[Any]], finish: Finish
    ) -> None:
        info = stream.info
        self._pending = stream.pending
        self._device = device
        self._finish = finish
        self._most = info.slots - 2  # copies in flight when one more begins
        self._unflatten = info.spec.unflatten
        self._queue: deque[tuple[list[Any], Event] | Exception] = deque()
        # Nothing here may refer to this iterator: it must die, and its epoch with it, when the program drops it.
        self._batches = stream.epoch(partial(_copied, self._pending, device, leaves), wait_for_slots=True)
        if device.registrar is not None:
            stream.register_slots(device.registrar)

    def __iter__(self) -> DevicePrefetcher:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, in the structure of a sample; its memory is the device's own."""
        self._pending.give_back_passed()
        if not self._queue:
            self._fetch(ready=self._batches.ready())
        while len(self._queue) <= AHEAD and self._batches.ready():  # which raises if this iterator has had its time
            self._fetch(ready=True)
        first = self._queue.popleft()
        if isinstance(first, Exception):
            try:
                raise first
            finally:
                del first  # else it refers to itself, by this frame
        self._device.hand_over(*first)
        return self._unflatten(self._finish(first[0]))

    def _fetch(self, *, ready: bool) -> None:
        """Take a batch and begin to copy it; an error takes its place in the order."""
        self._pending.wait(self._most if ready else 0)
        try:
            self._queue.append(next(self._batches))
        except Exception as error:  # noqa: BLE001 - the end of the epoch, too, and all that a dataset raises
            self._queue.append(error.with_traceback(None))  # which refers to the lease

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give back the slots that the copies read; the end of the engine has done so at the interpreter's exit."""
        if not is_exiting():
            self._pending.wait()


def _copied(
    pending: PendingCopies, device: Device, leaves: Callable[[Lease, int], list[Any]], lease: Lease, rows: int
) -> tuple[list[Any], Event]:
    """Begin to copy a batch; its slot is held until the copy has passed."""
    copies, event = device.copy(leaves(lease, rows))
    pending.add(lease, event)
    return copies, event
