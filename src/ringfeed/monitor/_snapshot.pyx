# cython: language_level=3, boundscheck=False, wraparound=False
"""Reads the control block of any loader; nothing is written or woken."""

cimport cython
from libc.errno cimport EPROTO
from libc.stdint cimport uint32_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Ring

import os

import numpy as np

from ringfeed.monitor.snapshot import Consumer, Geometry, Slot, Snapshot, Worker


cdef extern from "snapshot.h" nogil:
    struct rf_watch:
        const c.rf_control *control
        c.rf_geometry geometry

    int rf_watch_open(rf_watch *watch, int fd)
    void rf_watch_close(rf_watch *watch)
    c.rf_slot_report rf_watch_slot(const rf_watch *watch, uint32_t slot)
    c.rf_worker_report rf_watch_worker(const rf_watch *watch, uint32_t worker)
    c.rf_consumer_report rf_watch_consumer(const rf_watch *watch)
    void rf_watch_waits(const rf_watch *watch, c.rf_waits *waits)


WAIT_BUCKETS = (c.RF_WAIT_SHORTEST, c.RF_WAIT_PARTS, c.RF_WAIT_BUCKETS)
"""The power of two at which the buckets of waits begin, the buckets of each power, and of all."""

cdef tuple STATES = ("free", "filling", "draining", "held", "parked")


cdef object state_of(c.rf_slot_report slot):
    """Return the word for a slot."""
    if slot.state == c.RF_SLOT_BOUND and c.rf_cells_are_final(slot.cells):
        return "ready"
    return STATES[<int>slot.state]


@cython.final
cdef class Observer:
    """Reads the control block of a ring of this process, or of any loader through a descriptor.

    The descriptor may be closed afterwards.
    Of this process's own ring, the states of slots and the counts are what the consumer keeps
    itself: no worker can write over them.
    """

    cdef rf_watch watch
    cdef Ring ring
    cdef object __weakref__

    def __cinit__(self, source):
        cdef int why
        if isinstance(source, Ring):
            self.ring = source
            self.watch.geometry = self.ring.ring.geometry
            return
        why = rf_watch_open(&self.watch, source)
        if why == EPROTO:
            raise ValueError(
                "this is no loader of this version of ringfeed: seals, magic, ABI or sizes differ"
            )
        if why:
            raise OSError(why, os.strerror(why))

    def __dealloc__(self):
        if self.watch.control != NULL:
            rf_watch_close(&self.watch)

    cdef c.rf_slot_report slot_report(self, uint32_t number):
        if self.ring is None:
            return rf_watch_slot(&self.watch, number)
        return self.ring.slot_report(number)

    cdef c.rf_worker_report worker_report(self, uint32_t number):
        if self.ring is None:
            return rf_watch_worker(&self.watch, number)
        return self.ring.worker_report(number)

    @property
    def geometry(self):
        """What never changes."""
        found = self.watch.geometry
        return Geometry(found.slots, found.slot_size, found.failures_at, found.rows, found.workers)

    def snapshot(self, bint waits=False):
        """Read all of it, and the waits only if they are wanted."""
        return Snapshot(c.rf_now_ns(), self.slots(), self.workers(), self.consumer(),
                        self.waits() if waits else None)

    def slots(self):
        """Read each slot."""
        cdef c.rf_slot_report slot
        cdef uint32_t number
        found = []
        for number in range(self.watch.geometry.slots):
            slot = self.slot_report(number)
            found.append(Slot(state_of(slot), slot.batch, slot.epoch, slot.rows, slot.tickets,
                              slot.cells.claimed, slot.cells.final, slot.held_ns))
        return tuple(found)

    def workers(self):
        """Read the line of each id."""
        return tuple([self.worker(number) for number in range(self.watch.geometry.ids)])

    def worker(self, uint32_t number):
        """Read the line of one id."""
        if number >= self.watch.geometry.ids:
            raise ValueError(f"worker {number} of {self.watch.geometry.ids}")
        cdef c.rf_worker_report worker = self.worker_report(number)
        inside = worker.index if worker.in_row else None
        return Worker(worker.pid, inside, worker.since_ns, worker.busy_ns, worker.wait_ns,
                      worker.samples, worker.tickets, worker.timed, worker.read_ns,
                      worker.write_ns, bool(worker.leave))

    cdef c.rf_consumer_report consumer_report(self):
        if self.ring is None:
            return rf_watch_consumer(&self.watch)
        return self.ring.consumer_report()

    def consumer(self):
        """Read what the consumer has done."""
        cdef c.rf_consumer_report consumer = self.consumer_report()
        return Consumer(consumer.batches, consumer.samples, consumer.stall_ns, consumer.wait_ns,
                        consumer.open_slots, bool(consumer.stopped))

    def rank(self):
        """Return the rank of the consumer and the world size; (0, 0) where it has not said."""
        cdef c.rf_consumer_report consumer = self.consumer_report()
        return consumer.rank, consumer.world_size

    def waits(self):
        """Return how many batches were ready, and how many are in each bucket of waits, as int64.

        The first batch, which waits for the start, is in none.
        """
        cdef bytearray memory = bytearray(sizeof(c.rf_waits))
        cdef c.rf_waits *waits = <c.rf_waits *><char *>memory
        if self.ring is None:
            rf_watch_waits(&self.watch, waits)
        else:
            self.ring.read_waits(waits)
        return np.frombuffer(memory, np.int64)

    def states(self):
        """Return a word for each slot, as `Slot.state`."""
        return [slot.state for slot in self.slots()]

    def held_since_ns(self):
        """Return when the batches were taken that views hold, the oldest first."""
        return sorted([slot.held_ns for slot in self.slots() if slot.state == "held"])
