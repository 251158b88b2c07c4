"""What devices have to do with a loader's slots: each copy keeps its slot until it has passed."""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed._callers import callers_depth
from ringfeed._process import Forks

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import torch

    from ringfeed.frameworks.jax import JaxEvent
    from ringfeed.frameworks.pinned import Pins, Registrar
    from ringfeed.ring._ring import Lease, Ring

    Event: TypeAlias = "torch.cuda.Event | JaxEvent"
    """The moment after which a copy no longer reads its slot: what either call of it raises ends the copy, too."""


class _Copy:
    """One copy; over, it has no lease, so that the traceback of an error about it holds no slot."""

    def __init__(self, lease: Lease, event: Event) -> None:
        self.lease: Lease | None = lease
        self.event = event


class PendingCopies:
    """All copies of one loader in flight, in their order. Safe from any thread, and from a destructor: it has no lock.

    A waiter leaves the copy in place until it has passed, so that no other thread takes it for
    passed meanwhile.
    """

    def __init__(self) -> None:
        self._copies: deque[_Copy] = deque()
        self._forks = Forks.count

    def __len__(self) -> int:
        """Return how many copies may still read their slots."""
        return len(self._copies)

    def add(self, lease: Lease, event: Event) -> None:
        """Hold the slot until the event has passed."""
        self._copies.append(_Copy(lease, event))

    def give_back_passed(self) -> None:
        """Give back the slots whose copies have passed, without waiting."""
        while (copy := self._oldest()) and self._is_over(copy, wait=False):
            pass

    def wait(self, most: int = 0) -> None:
        """Wait until at most ``most`` copies are in flight, and give the other slots back.

        Every one of them is given back even if the device fails; then the first of its errors is
        raised.
        """
        first: Exception | None = None
        while len(self._copies) > most and (copy := self._oldest()):
            try:
                self._is_over(copy, wait=True)
            except Exception as error:  # noqa: BLE001 - whatever a framework raises
                first = first or error
        if first is not None:
            raise first

    def _oldest(self) -> _Copy | None:
        if self._forks != Forks.count:
            return None  # a forked child: slots and events are its parent's
        try:
            return self._copies[0]
        except IndexError:
            return None

    def _is_over(self, copy: _Copy, *, wait: bool) -> bool:
        """Whether the copy has passed or failed, so that its slot is given back; the error of one that failed."""
        try:
            if wait:
                copy.event.synchronize()
            elif not copy.event.query():
                return False
        except Exception:
            self._forget(copy)
            raise
        self._forget(copy)
        return True

    def _forget(self, copy: _Copy) -> None:
        copy.lease = None
        with suppress(ValueError):  # by another thread, which waited for the same copy
            self._copies.remove(copy)


class DeviceSlots:
    """The copies that read a loader's slots, and the registration of these for them."""

    def __init__(self, slot_size: int, *, are_all_open: bool) -> None:
        """Register slots of this size, unless some of them have no memory yet."""
        self.pending = PendingCopies()
        self.pins: Pins | None = None  # of the ring that runs
        self._ring: Ring | None = None
        self._slot_size = slot_size
        self._registers = are_all_open

    def prepare(self, engine: Any) -> None:
        """At the engine's end, undo what was registered, when the copies that read the slots have passed."""
        self._ring = engine.ring
        engine.on_stop += [self.pending.wait, self._release]

    def _release(self) -> None:
        pins, self.pins, self._ring = self.pins, None, None
        if pins is not None:
            pins.release()

    def register(self, make_registrar: Callable[[], Registrar]) -> None:
        """Register the slots of the ring that runs, once; a refusal is a warning, and copies go on without it."""
        from ringfeed.frameworks.pinned import Pins, Refusal  # noqa: PLC0415 - for copies to a GPU alone

        if self._ring is None or self.pins is not None or not self._registers:
            return
        try:
            self.pins = Pins(make_registrar(), self._ring, self._slot_size)
        except Refusal as refusal:
            self._registers = False
            message = (
                f"copies of the slots to the GPU go through a buffer of the driver's: {refusal}"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=callers_depth())
