"""The slots of one segment, registered for copies to a device: each once, and undone once, whatever happens.

A copy that reads slots so is in the loader's `PendingCopies`, which are waited for before registration is undone.
It is undone when the ring ends, not when the last view dies: a view stays valid, as memory that is not registered.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Protocol

from ringfeed._process import Forks
from ringfeed._units import show_bytes
from ringfeed.errors import PlanError
from ringfeed.frameworks.cuda import GONE, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.ring._ring import Ring


class Registrar(Protocol):
    """Registers memory with a device's driver. What it refuses, it refuses with `Refusal`."""

    name: str

    def open(self) -> None:
        """Get ready to register."""

    def close(self) -> None:
        """Be done; all that was registered no longer is."""

    def register(self, address: int, size: int) -> None:
        """Register memory."""

    def unregister(self, address: int) -> None:
        """Undo `register`."""


class Pins:
    """Every slot, registered. Belongs to the process that made it: a forked child of it has nothing to undo."""

    def __init__(self, registrar: Registrar, ring: Ring, slot_size: int) -> None:
        """Register each slot, or raise PlanError and leave none registered."""
        self._ring = ring  # keeps the slots mapped for as long as they are registered
        self._slot_size = slot_size
        self._forks = Forks.count
        self._open = False
        self._registered: list[int] = []  # slots
        self._register(registrar)

    def move_to(self, registrar: Registrar) -> None:
        """Have the slots registered by another, or raise PlanError and leave none registered. No copy is in flight."""
        if registrar.name != self._registrar.name or not self._registered:
            self.release()
            self._register(registrar)

    def release(self) -> None:
        """Undo what is registered, which is nothing the second time. No copy is in flight."""
        if self._forks != Forks.count:
            return
        refused = []
        while self._registered:
            slot = self._registered.pop()
            what = f"slot {slot} ({show_bytes(self._slot_size)})"
            refused += self._undone(what, self._registrar.unregister, self._address(slot))
        if self._open:
            self._open = False
            refused += self._undone("the context of the slots", self._registrar.close)
        for message in refused:
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _address(self, slot: int) -> int:
        return self._ring.address + slot * self._slot_size

    def _register(self, registrar: Registrar) -> None:
        self._registrar = registrar
        try:
            registrar.open()
            self._open = True
            for slot in range(self._ring.slots):
                registrar.register(self._address(slot), self._slot_size)
                self._registered.append(slot)
        except BaseException as error:
            done = len(self._registered)
            self.release()
            if not isinstance(error, Refusal):
                raise
            raise PlanError(self._not_registered(done, error)) from None

    def _not_registered(self, slot: int, refusal: Refusal) -> str:
        where = f"slot {slot} of {self._ring.slots} ({show_bytes(self._slot_size)} each)"
        return (
            f"pin=True cannot register {where} with {self._registrar.name}: {refusal}; "
            f"{refusal.remedy or 'see the answer'}, or leave pin out"
        )

    def _undone(self, what: str, undo: Callable[..., None], *arguments: int) -> list[str]:
        """Undo something; a failure is a warning, since the caller that ends a loader cannot do anything about it."""
        try:
            undo(*arguments)
        except Refusal as refusal:
            if refusal.code not in GONE:
                return [f"{self._registrar.name} does not give {what} back before this process ends: {refusal}"]
        return []
