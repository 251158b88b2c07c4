"""What a store is made for, and how large its parts are."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ringfeed.reading.store import Store
    from ringfeed.system._system import Descriptor

AHEAD = 3  # regions beside those of the slots: two that are cut by a batch's borders, and one to read ahead
REGION = 2**30  # bytes
WANTED = 16  # words ahead of those of the workers
ENTRY = 6  # words of an entry
_PAGE = mmap.PAGESIZE


class Run(NamedTuple):
    """What the consumer asks the reader for: a run, by its number, of an epoch, from an element on."""

    number: int
    epoch: int
    start: int


class StoreSizes(NamedTuple):
    """Of a store for batches of ``rows`` elements, in so many slots, which so many workers fill."""

    slots: int
    rows: int
    workers: int

    @property
    def regions(self) -> int:
        """How many regions there are."""
        return self.slots + AHEAD

    @property
    def entries(self) -> int:
        """How many elements there may be."""
        return self.regions * self.rows

    @property
    def words(self) -> int:
        """Bytes ahead of the regions."""
        return -(-8 * (WANTED + self.workers + ENTRY * self.entries) // _PAGE) * _PAGE

    @property
    def total(self) -> int:
        """Bytes of the file, of which most are never there."""
        return self.words + self.regions * REGION

    def open(self, memfd: Descriptor, at: int) -> Store:
        """Map the store, in the consumer."""
        from ringfeed.reading.store import Store  # noqa: PLC0415 - which imports this module

        return Store(memfd, at, self)
