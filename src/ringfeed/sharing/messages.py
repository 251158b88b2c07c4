"""The messages of the host to one training, one after the other, and the training's hold on each slot it was given.

A message is done with when its batch is about to be returned. Until then all of it is in `Inbox.opened`: after Ctrl-C
the next ``next()`` goes on with it. What Ctrl-C has lost before it was stored there, the host sends again.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from ringfeed.sharing.mapping import Mapping
from ringfeed.sharing.names import unpacked_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.sharing.connection import Connection


class SlotLease:
    """A training's hold on a slot: its arrays refer to it, and the host hears of it when the last of them is gone."""

    _is_armed = False

    def __init__(self, connection: Connection, mapping: Mapping, slot: int, number: int) -> None:
        """Hold the slot of batch ``number``, once it is armed: until then Ctrl-C may drop this and make another."""
        self.address = mapping.lend(slot, number)
        self.number = number
        self._connection, self._mapping, self._slot = connection, mapping, slot

    def arm(self) -> None:
        """Have the slot be given back when this is gone."""
        self._is_armed = True

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give the slot back. No lock is taken: this runs wherever the garbage collector does."""
        if self._is_armed and self._connection.is_ours and not is_exiting():
            self._mapping.give_back(self._slot, self.number)
            self._connection.tell("free", self.number)


class Message:
    """One message. ``state``: that of the training, once it is done with."""

    def __init__(self, serial: int, kind: str, epoch_id: int, content: Any, state: dict[str, Any]) -> None:
        """Nothing of it was done."""
        self.serial, self.kind, self.epoch_id, self.content, self.state = serial, kind, epoch_id, content, state
        self.lease: SlotLease | None = None


class Inbox:
    """Messages of the host."""

    def __init__(self, connection: Connection, slot_size: int, state: dict[str, Any]) -> None:
        """Nothing has come yet; ``state``: that of the loader."""
        self._connection = connection
        self._slot_size = slot_size
        self._mapping: Mapping | None = None
        self._segment = 0  # whose slots are mapped
        self._leases: weakref.WeakSet[SlotLease] = weakref.WeakSet()
        self.done = self._opened = Message(0, "welcome", 0, None, state)
        """The last one that is done with."""

    def open(self) -> Message:
        """Return the next message, waiting for it as long as the host may take."""
        found = self._receive(wait=False)
        while found is None:
            self._connection.tell("want", self.done.serial, [lease.number for lease in self._leases])
            found = self._receive(wait=True)
        return found

    def _receive(self, *, wait: bool) -> Message | None:
        while self._opened is self.done:
            heard = self._connection.hear(wait=wait)
            if heard is None:
                return None
            (serial, kind, epoch_id, content), fds = heard
            if serial <= self.done.serial:
                continue  # it was sent again, and had come after all
            if fds and content["segment"] != self._segment:
                self._mapping = Mapping(fds[0].fileno(), self._slot_size)
                self._segment = content["segment"]
            state = unpacked_state(content["state"]) if "state" in content else self.done.state
            self._opened = Message(serial, kind, epoch_id, content, state)
        return self._opened

    def lease(self, message: Message) -> SlotLease:
        """Return the lease of a batch, the same each time."""
        if message.lease is None:
            assert self._mapping is not None
            message.lease = SlotLease(
                self._connection, self._mapping, message.content["slot"], message.content["number"]
            )
            self._leases.add(message.lease)
        message.lease.arm()
        return message.lease

    def finish(self, message: Message) -> None:
        """Be done with a message: Ctrl-C comes before the last line of this, or after all of it."""
        self._connection.tell("took", message.serial)
        self.done, message.lease = message, None
