"""The shared memory of one loader: two sealed memfds without a name.

So nothing can be left behind.
"""

from __future__ import annotations

from typing import NamedTuple

from ringfeed.errors import ClosedError
from ringfeed.ring import _ring
from ringfeed.ring.mapping import open_ring
from ringfeed.system.machine import check_futex
from ringfeed.system.memory import allocate, keep_standard_descriptors, reserve

MIN_SLOTS = 2  # one to fill while one is in use


def worker_ids(workers: int) -> int:
    """How many ids there are for workers.

    Each worker has one, and one more for a worker in quarantine meanwhile.
    """
    # Without workers the consumer takes the place of one.
    return min(2 * workers, _ring.MAX_IDS) or 1


class Sizes(NamedTuple):
    """What a segment is made for: numbers, and sizes and offsets within a slot in bytes.

    See struct rf_geometry.
    """

    slots: int
    cells: int
    workers: int
    rows: int
    ids: int
    slot_size: int
    indices_at: int
    marks_at: int
    failures_at: int


class Segment:
    """The control block and the slots of these sizes.

    Mappings outlive ``close``, its descriptors do not.
    """

    def __init__(self, sizes: Sizes, spin_ns: int = 0, open_slots: int | None = None) -> None:
        """Reserve everything, or raise PlanError and leave nothing.

        ``spin_ns``: how long a waiter looks again before it sleeps, while batches come quicker than
            that.
        ``open_slots``: how many to begin with, None for all; the others are reserved by
            `reserve_slot`.
        """
        check_futex()
        keep_standard_descriptors()
        self.control_size = _ring.control_size(sizes.slots, sizes.cells, sizes.ids)
        self.slots_size = sizes.slots * sizes.slot_size
        self._geometry = {**sizes._asdict(), "spin_ns": spin_ns}
        self._control = reserve("ringfeed-control", self.control_size)
        try:
            self.slot_size = sizes.slot_size
            self.reserved = set(range(sizes.slots if open_slots is None else open_slots))
            at_first = None if open_slots is None else open_slots * sizes.slot_size
            self._slots = reserve("ringfeed-slots", self.slots_size, at_first)
        except BaseException:
            self._control.close()
            raise

    @property
    def control_fd(self) -> int:
        """The descriptor of the control block; -1 once it is closed."""
        return self._control.fileno()

    @property
    def slots_fd(self) -> int:
        """The descriptor of the slots; -1 once it is closed."""
        return self._slots.fileno()

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the control block and of all slots."""
        return self.control_size, self.slots_size

    def reserve_slot(self, slot: int) -> None:
        """Have the kernel set a slot's memory aside, or raise PlanError.

        ClosedError once it is closed.
        """
        if self.slots_fd < 0:
            raise ClosedError("the loader was closed while a slot was to be opened")
        if slot not in self.reserved:
            allocate(self.slots_fd, slot * self.slot_size, self.slot_size)
            self.reserved.add(slot)

    def give_back(self, ring: _ring.Ring, slot: int) -> None:
        """Return a parked slot's memory to the kernel."""
        # First: what is interrupted in between is reserved again before it is used.
        self.reserved.discard(slot)
        ring.give_back(slot)

    def open(self) -> _ring.Ring:
        """Format it, and map it into this process and into the children that it forks."""
        return open_ring(self.control_fd, self.slots_fd, self.sizes, self._geometry)

    def close(self) -> None:
        """Close the descriptors; once."""
        self._control.close()
        self._slots.close()
