"""The slots of the host's ring, mapped privately: what a training writes, it alone sees.

A page that the training writes to becomes a copy of its own, and no longer shows what workers write
later. So these pages are thrown away when the training lets go of the slot, or at the latest when
it is lent the slot again: /proc/self/pagemap says which there are
(Documentation/admin-guide/mm/pagemap.rst of the kernel). Where it cannot be read, all pages of the
slot are mapped anew.

A page that was not written to shows what workers write. The host does not wait for arrays of a
child that the training forks. So ahead of a fork all pages of slots that are lent become the
training's own: the child gets them as they are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.sharing.door import Connection

_ENTRY = 8  # bytes of pagemap for a page
_FLAGS = 61  # bit 61: a page of the file; bit 62: swapped out; bit 63: present
_OWN, _SWAPPED = 4, 2  # of these three bits: present, and not of the file; swapped out
_POPULATE_WRITE = (
    23  # of madvise(2), as if a byte of each page was written; which Python's mmap does not name
)


class Mapping:
    """All slots, mapped for one training; the mapping stays as long as its leases do."""

    def __init__(self, fd: int, slot_size: int) -> None:
        """Map the file."""
        size = os.fstat(fd).st_size
        self._memory = mmap.mmap(
            fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._start = ctypes.c_char.from_buffer(self._memory)
        self._base = ctypes.addressof(self._start)
        self._slot_size = slot_size
        self._users: dict[
            int, int
        ] = {}  # by slot: the batch that was lent it last, 0 once its pages are thrown away
        self._pagemap: Descriptor | None = None
        with suppress(OSError):
            self._pagemap = Descriptor(os.open, "/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        _mappings.add(self)

    def lend(self, slot: int, number: int) -> int:
        """Return where a slot begins, which shows the batch of this number."""
        if (
            self._users.get(slot) != 0
        ):  # its last user was kept from saying that it is done, perhaps
            self._forget_writes(slot)
        self._users[slot] = number
        return self._address(slot)

    def give_back(self, slot: int, number: int) -> None:
        """Have a slot show what the workers write again, unless it is another batch's already."""
        if self._users.get(slot) == number:
            self._forget_writes(slot)
            self._users[slot] = 0

    def keep_for_child(self) -> None:
        """Have what is lent be no longer what workers write later."""
        for slot in [slot for slot, number in self._users.items() if number]:
            start, size = slot * self._slot_size, self._slot_size
            try:
                self._memory.madvise(_POPULATE_WRITE, start, size)
            except OSError:  # Linux before 5.14
                pages = np.frombuffer(self._memory, np.uint8, size, start)[:: mmap.PAGESIZE]
                pages |= 0

    def _address(self, slot: int) -> int:
        return self._base + slot * self._slot_size

    def _forget_writes(self, slot: int) -> None:
        if self._was_written(slot):
            self._memory.madvise(mmap.MADV_DONTNEED, slot * self._slot_size, self._slot_size)

    def _was_written(self, slot: int) -> bool:
        pages = self._slot_size // mmap.PAGESIZE
        if self._pagemap is None:
            return True
        try:
            entries = os.pread(
                self._pagemap.fileno(),
                pages * _ENTRY,
                self._address(slot) // mmap.PAGESIZE * _ENTRY,
            )
        except OSError:
            return True
        flags = np.frombuffer(entries, np.uint64) >> np.uint64(_FLAGS)
        return len(flags) < pages or bool(
            ((flags == _OWN) | (flags & np.uint64(_SWAPPED) > 0)).any()
        )


class SlotLease:
    """A training's hold on a slot; the host is told when the last array over the slot is gone."""

    _is_armed = False

    def __init__(self, connection: Connection, mapping: Mapping, slot: int, number: int) -> None:
        """Hold the slot of batch ``number`` once armed; Ctrl-C may make another before."""
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


_mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()


def _before_fork() -> None:
    for mapping in [*_mappings]:
        mapping.keep_for_child()


os.register_at_fork(before=_before_fork)
