# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""A loader looked at from outside, through the file of its control block; nothing is written or woken."""

cimport cython
from libc.errno cimport EPROTO
from libc.stdint cimport uint32_t

from ringfeed.ring cimport _cring as c

import os

cdef tuple STATES = ("free", "filling", "draining", "held", "parked")


@cython.final
cdef class Watch:
    """A control block, mapped for reading for as long as this lives; `fd` may be closed."""

    cdef c.rf_watch watch

    def __cinit__(self, int fd):
        cdef int why = c.rf_watch_open(&self.watch, fd)
        if why == EPROTO:
            raise ValueError("this is no loader of this version of ringfeed: seals, magic, ABI or sizes differ")
        if why:
            raise OSError(why, os.strerror(why))

    def __dealloc__(self):
        if self.watch.control != NULL:
            c.rf_watch_close(&self.watch)

    @property
    def geometry(self):
        """(slots, slot_size, bytes of a slot's fields, rows, workers): at most so many workers, and rows a slot."""
        geometry = self.watch.geometry
        return geometry.slots, geometry.slot_size, geometry.failures_at, geometry.rows, geometry.workers

    def slots(self):
        """Return, for each slot: (a word, batch, epoch, rows, tickets, of these claimed, over; held_ns).

        The word is free, filling, ready, held, draining or parked; held_ns is when its batch was taken.
        """
        cdef c.rf_slot_report slot
        cdef uint32_t number
        found = []
        for number in range(self.watch.geometry.slots):
            slot = c.rf_watch_slot(&self.watch, number)
            ready = slot.state == c.RF_SLOT_BOUND and c.rf_cells_are_final(slot.cells)
            found.append(("ready" if ready else STATES[<int>slot.state], slot.batch, slot.epoch, slot.rows,
                          slot.tickets, slot.cells.claimed, slot.cells.final, slot.held_ns))
        return found

    def workers(self):
        """Return, for each id of a worker: (pid, the index it is in or None, since_ns, busy_ns, wait_ns, samples,
        tickets, timed, read_ns, write_ns, leave).

        A pid of 0 is a thread, or no worker; since_ns is when it claimed its ticket, 0 where it has none.
        """
        cdef c.rf_worker_report worker
        cdef uint32_t number
        found = []
        for number in range(self.watch.geometry.ids):
            worker = c.rf_watch_worker(&self.watch, number)
            found.append((worker.pid, worker.index if worker.in_row else None, worker.since_ns, worker.busy_ns,
                          worker.wait_ns, worker.samples, worker.tickets, worker.timed, worker.read_ns,
                          worker.write_ns, bool(worker.leave)))
        return found

    def consumer(self):
        """Return (batches, samples, stall_ns, wait_ns, open slots, whether the ring has ended).

        wait_ns is when the wait began that is not in stall_ns yet; 0 where there is none.
        """
        cdef c.rf_consumer_report consumer = c.rf_read_consumer(self.watch.control)
        return (consumer.batches, consumer.samples, consumer.stall_ns, consumer.wait_ns, consumer.open_slots,
                bool(consumer.stopped))
