"""The shared memory of one loader: two sealed memfds without a name, so that nothing can be left behind."""

from __future__ import annotations

import errno
import os
import resource
from typing import NamedTuple

from ringfeed._units import show_bytes
from ringfeed.errors import ClosedError, PlanError
from ringfeed.ring import _ring
from ringfeed.system.machine import check_futex, show_limit
from ringfeed.system.memory import allocate, is_sealed, keep_standard_descriptors, reserve

MIN_SLOTS = 2  # one to fill while one is in use


def worker_ids(workers: int) -> int:
    """How many ids there are for workers: one each, and one more each for a worker in quarantine meanwhile."""
    return (
        min(2 * workers, _ring.MAX_IDS) or 1
    )  # without workers the consumer takes the place of one


def open_ring(
    control_fd: int, slots_fd: int, sizes: tuple[int, int], *, inherit: bool = False
) -> _ring.Ring:
    """Map a segment into this process, and into its forked children if they ``inherit``.

    Raises ValueError for what is no segment of this version, PlanError where there is no room for
    it.
    """
    for fd in (control_fd, slots_fd):
        if not is_sealed(fd):
            message = (
                "this is no segment of ringfeed: its size is not sealed, so that reading it could "
                "be a SIGBUS"
            )
            raise ValueError(message)
    try:
        return _ring.Ring(control_fd, slots_fd, *sizes, inherit=inherit)
    except OSError as error:
        raise PlanError(_no_map(sum(sizes), error.strerror)) from error


def _no_map(size: int, why: str | None) -> str:
    return (
        f"cannot map {show_bytes(size)} of shared memory: {why}; RLIMIT_AS (ulimit -v) is "
        f"{show_limit(resource.RLIMIT_AS)}; raise it, use fewer slots, or memory="
    )


class Sizes(NamedTuple):
    """What a segment is made for: numbers, and sizes and offsets within a slot in bytes; see struct rf_geometry."""

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
    """The control block and the slots of these sizes. Mappings outlive ``close``, its descriptors do not."""

    def __init__(self, sizes: Sizes, spin_ns: int = 0, open_slots: int | None = None) -> None:
        """Reserve and format everything, or raise PlanError and leave nothing.

        ``spin_ns``: how long a waiter looks again before it sleeps, while batches come quicker than
            that.
        ``open_slots``: how many to begin with, None for all; the others are reserved by
            `reserve_slot`.
        """
        check_futex()
        keep_standard_descriptors()
        self.control_size = _ring.control_size(sizes.slots, sizes.cells, sizes.ids)
        self.slots_size = sizes.slots * sizes.slot_size
        self._control = reserve("ringfeed-control", self.control_size)
        try:
            self._format(sizes, spin_ns)
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

    def _format(self, sizes: Sizes, spin_ns: int) -> None:
        try:
            _ring.format_control(self.control_fd, self.control_size, *sizes, spin_ns)
        except MemoryError as error:
            raise PlanError(_no_map(self.control_size, os.strerror(errno.ENOMEM))) from error

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the control block and of all slots."""
        return self.control_size, self.slots_size

    def reserve_slot(self, slot: int) -> None:
        """Have the kernel set a slot's memory aside, or raise PlanError; ClosedError once it is closed."""
        if self.slots_fd < 0:
            message = "the loader was closed while a slot was to be opened"
            raise ClosedError(message)
        if slot not in self.reserved:
            allocate(self.slots_fd, slot * self.slot_size, self.slot_size)
            self.reserved.add(slot)

    def give_back(self, ring: _ring.Ring, slot: int) -> None:
        """Return a parked slot's memory to the kernel."""
        self.reserved.discard(
            slot
        )  # first: what is interrupted in between is reserved again before it is used
        ring.give_back(slot)

    def open(self) -> _ring.Ring:
        """Return a mapping of the segment for this process, which its forked children inherit."""
        return open_ring(self.control_fd, self.slots_fd, self.sizes, inherit=True)

    def close(self) -> None:
        """Close the descriptors; once."""
        self._control.close()
        self._slots.close()
