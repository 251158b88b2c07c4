# cython: language_level=3, boundscheck=False, wraparound=False
"""The ring and the lease, held for Python: lifetimes, the GIL and signals.

Every decision is made elsewhere.

Nothing here imports NumPy, so that a worker can start its guard before the slow imports.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EPROTO
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from ringfeed.ring cimport _cring as c

import os

ABI = c.RF_ABI
FIELD_ALIGN = c.RF_FIELD_ALIGN
CONTROL_MAX = c.RF_CONTROL_MAX
MAX_WORKERS = c.RF_MAX_WORKERS
MAX_IDS = c.RF_MAX_IDS
MAX_CELLS = c.RF_MAX_CELLS
FAILURE_SIZE = c.RF_FAILURE_SIZE

TAKEABLE = c.RF_TAKEABLE
DRY = c.RF_DRY
HELD = c.RF_HELD
PENDING = c.RF_PENDING
STOPPED = c.RF_STOPPED
ALARMED = c.RF_ALARMED
DAMAGED = c.RF_DAMAGED
STALE = c.RF_STALE
PLAN = c.RF_PLAN
DUE = c.RF_DUE
GAPS = c.RF_GAPS
CROWDED = c.RF_CROWDED

ROW_RAISED = c.RF_ROW_RAISED
ROW_KILLED = c.RF_ROW_KILLED
STAGES = {c.RF_IN_COLLATE_FN: "collate_fn", c.RF_IN_BATCH_TRANSFORM: "batch_transform"}

# However long a wait is, it comes up this often: a signal that arrives just before the sleep is
# seen then. Python without the GIL counts an object's references in the thread that made it: what
# another thread drops, and its slot, is not free before that thread next runs Python.
cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define COUNTS_BY_THREAD 1
    #else
    #define COUNTS_BY_THREAD 0
    #endif
    """
    const bint COUNTS_BY_THREAD

cdef int64_t SLICE_NS = 2_000_000 if COUNTS_BY_THREAD else 100_000_000
# Compiled by Python: its first step is what such a wait is interrupted for.
cdef object run_python = eval("lambda: None")


cdef int come_up() except -1:
    """Do between two slices of a wait what Python has to do in this thread."""
    PyErr_CheckSignals()
    if COUNTS_BY_THREAD:
        run_python()
    return 0


# As in enum rf_damage.
cdef tuple DAMAGES = ("", "header", "record", "cell", "indices", "failure")

feed_calls = &c.rf_feed_calls_here

cdef bint noted = False


def note_takes(bint on):
    """Have each iterator of this process ask its engine for every batch.

    The engine notes where the batch was taken.
    """
    global noted
    noted = on


def control_size(uint32_t slots, uint32_t cells, uint32_t ids):
    """Return the bytes of a control block with lines for so many worker ids."""
    return c.rf_control_size(slots, cells, ids)


def window_size(uint32_t capacity, uint32_t rows):
    """Return the bytes of a consumer's indices, for `capacity` planned batches of `rows`."""
    return c.rf_window_size(capacity, rows)


def now_ns():
    """Return CLOCK_MONOTONIC in nanoseconds, the clock of all times in the segment."""
    return c.rf_now_ns()


cdef int check_id(c.rf_ring *ring, uint32_t worker) except -1:
    if worker >= ring.geometry.ids:
        raise ValueError(f"worker {worker} of {ring.geometry.ids}")
    return 0


@cython.final
cdef class Ring:
    """One process's hold on a segment.

    Views, leases and worker ends keep it mapped, also after `close`.

    `fresh`: the fields of struct rf_geometry, for a segment that is made here.
    """

    def __cinit__(
        self,
        int control_fd,
        int slots_fd,
        uint64_t control_size,
        uint64_t slots_size,
        fresh=None,
    ):
        cdef c.rf_geometry geometry
        cdef const c.rf_geometry *made = NULL
        cdef int why = 0
        if fresh is not None:
            geometry = fresh
            made = &geometry
        self.ring = c.rf_open(control_fd, slots_fd, control_size, slots_size, made, &why)
        if self.ring != NULL:
            return
        if why == EPROTO:
            raise ValueError(
                "this is no segment of this version of ringfeed: magic, ABI or sizes differ"
            )
        raise OSError(why, os.strerror(why))

    def __dealloc__(self):
        if self.ring != NULL:
            c.rf_unreference(self.ring)

    def become_consumer(self, uint32_t capacity, uint32_t max_attempts):
        """Plan, bind, take and reap from this process.

        At most `capacity` batches are planned ahead.
        """
        if c.rf_become_consumer(self.ring, capacity, max_attempts):
            raise MemoryError(f"cannot plan {capacity} batches ahead")

    @property
    def slots(self):
        """The number of slots."""
        return self.ring.geometry.slots

    @property
    def address(self):
        """Where the first slot starts, in this process; the others follow without a gap."""
        return <uintptr_t>c.rf_slot_base(self.ring, 0)

    @property
    def ids(self):
        """How many ids workers may have, those of quarantined ones included."""
        return self.ring.geometry.ids

    # ---- planning ----

    @property
    def room(self):
        """How many more batches can be planned."""
        return c.rf_plan_room(self.ring)

    @property
    def planned(self):
        """How many batches are planned or bound, and not taken."""
        return c.rf_planned(self.ring)

    @property
    def left(self):
        """How many of them come ahead of the border."""
        return c.rf_left(self.ring)

    @property
    def plan_taken(self):
        """How many batches were ever planned, and are taken or cancelled."""
        return c.rf_plan_taken(self.ring)

    def plan(
        self,
        const int64_t[::1] indices,
        uint32_t rows,
        uint64_t epoch,
        uint32_t version,
        uint32_t stream=0,
    ):
        """Plan batches of `rows` indices each, and bind what can be bound.

        The last batch may be shorter.

        Of a `stream`, only the worker of that stream claims them.
        """
        if stream > c.RF_MAX_WORKERS:
            raise ValueError(f"stream {stream}, at most {c.RF_MAX_WORKERS}")
        c.rf_set_stream(self.ring, stream)
        cdef Py_ssize_t first = 0, count = indices.shape[0]
        cdef uint32_t some
        while first < count:
            some = rows if count - first >= rows else <uint32_t>(count - first)
            if not c.rf_plan(self.ring, &indices[first], some, epoch, version):
                raise ValueError(f"no room to plan a batch of {some} rows")
            first += some
        c.rf_bind(self.ring)

    def plan_kept(self, list kept, list parts, uint32_t rows, uint64_t epoch, uint32_t version):
        """Plan parts, each its indices and its stream.

        Where `kept`, of which they were made, is empty, do nothing; else clear it.

        One step for Python: Ctrl-C comes before it, or after it.
        """
        if kept:
            for indices, stream in parts:
                self.plan(indices, rows, epoch, version, stream)
            kept.clear()

    # ---- taking ----

    def begin(self, int64_t epoch_id):
        """Let only callers with this epoch id take batches, until they are cancelled.

        No border is set.
        """
        c.rf_begin(self.ring, epoch_id)

    def set_border(self):
        """Let callers of this epoch come as far as what is planned now.

        What follows is the next epoch's.
        """
        c.rf_set_border(self.ring)

    def set_low_water(self, uint32_t batches):
        """Answer PLAN while no more batches than these are planned; 0: no more are to come."""
        c.rf_set_low_water(self.ring, batches)

    def set_due(self, int64_t due_ns):
        """Answer DUE from that time on, once a batch has been taken since.

        0: never; below 0: at once.
        """
        c.rf_set_due(self.ring, due_ns)

    @property
    def waited_ns(self):
        """How long the next batch has been waited for in vain."""
        return c.rf_waited_ns(self.ring)

    @waited_ns.setter
    def waited_ns(self, int64_t waited_ns):
        c.rf_set_waited(self.ring, waited_ns)

    @property
    def head_stream(self):
        """The stream of the batch to be taken next.

        0 where any worker may fill it, or it has no slot.
        """
        return c.rf_head_stream(self.ring)

    def look(self):
        """Answer at once what `wait` would wait for."""
        return c.rf_look(self.ring)

    def wait(self, int64_t timeout_ns, bint held=False, int64_t epoch_id=0):
        """Wait without the GIL while `look` answers PENDING or HELD, up to `timeout_ns`.

        Signals are answered.

        ``held``: only where it is HELD, since what is PENDING may be the caller's own to fill.
        """
        cdef c.rf_answer first = c.rf_look(self.ring)
        if first != c.RF_HELD and (held or first != c.RF_PENDING):
            return first
        return self.wait_past(first, timeout_ns, epoch_id)

    cdef c.rf_answer wait_past(
        self, c.rf_answer first, int64_t timeout_ns, int64_t epoch_id
    ) except *:
        """Wait as long as a look answers as the first did, in any case until this epoch is over."""
        cdef c.rf_answer answer = first
        cdef int64_t now = c.rf_now_ns()
        cdef int64_t deadline = now + timeout_ns
        while answer == first and now < deadline:
            with nogil:
                if first == c.RF_HELD:
                    answer = c.rf_wait_slot(self.ring, min(deadline, now + SLICE_NS))
                else:
                    answer = c.rf_wait_head(self.ring, epoch_id, min(deadline, now + SLICE_NS))
            if answer == c.RF_PENDING:
                c.rf_check(self.ring)
            come_up()
            now = c.rf_now_ns()
        return answer

    cdef int wait_head(self, int64_t timeout_ns, int64_t epoch_id) except -1:
        """Wait for the head batch, which was PENDING, and count how long."""
        cdef int64_t began = c.rf_now_ns()
        try:
            self.wait_past(c.RF_PENDING, timeout_ns, epoch_id)
        finally:
            c.rf_note_stall(self.ring, c.rf_now_ns() - began)
        return 0

    cdef c.rf_answer next(self, const c.rf_terms *terms, Lease lease) noexcept:
        """Take the head batch into a fresh lease, if that needs no decision: see rf_next()."""
        cdef c.rf_answer answer = c.RF_DUE if noted else c.rf_next(self.ring, terms, &lease.taken)
        if answer == c.RF_TAKEABLE:
            c.rf_reference(self.ring)
            lease.ring = self.ring
        return answer

    cpdef Lease take(self):
        """Take the head batch, whatever its rows are like; None where it is not ready."""
        cdef Lease lease = Lease.__new__(Lease)
        if c.rf_take(self.ring, &lease.taken) != c.RF_TAKEABLE:
            return None
        c.rf_reference(self.ring)
        lease.ring = self.ring
        return lease

    def damage(self):
        """Say what was overwritten: (what, batch, first row, rows, their indices).

        None if nothing was.

        ``what`` is header, record, cell, indices or failure; the indices are empty where they are
        not known.
        """
        c.rf_check(self.ring)
        cdef c.rf_damage_report report = c.rf_damage_of(self.ring)
        cdef const int64_t *indices = c.rf_slot_indices(self.ring, report.slot)
        cdef uint32_t row
        if report.what == c.RF_INTACT:
            return None
        return DAMAGES[<int>report.what], report.batch, report.first_row, report.rows, [
            indices[report.first_row + row] for row in range(report.rows if report.indices else 0)
        ]

    # ---- more or less of it, while it runs ----

    @property
    def open_slots(self):
        """How many slots are open; the others are parked, or on their way there."""
        return c.rf_open_slots(self.ring)

    def set_open(self, uint32_t slots):
        """Open the lowest `slots` slots, whose memory must be reserved, and park the others."""
        with nogil:
            c.rf_set_open(self.ring, slots)

    def give_back(self, uint32_t slot):
        """Return a parked slot's memory to the kernel."""
        cdef int error
        is_slot = slot < self.ring.geometry.slots
        if not is_slot or c.rf_slot_state_of(self.ring, slot) != c.RF_SLOT_PARKED:
            raise ValueError(f"slot {slot} is not parked")
        with nogil:
            error = c.rf_give_back(self.ring, slot)
        if error:
            raise OSError(error, os.strerror(error))

    def set_worker_count(self, uint32_t workers):
        """Reckon with so many workers from now on."""
        c.rf_set_worker_count(self.ring, workers)

    def set_pace(self, int64_t ticket_ns=0, uint32_t ticket_rows=0, uint32_t more=0):
        """Cut batches into tickets of so much work, and of at most so many rows.

        `ticket_ns` 0: as for workers of this machine.

        `more`: tickets that are worked on at a time beyond one a worker.
        """
        with nogil:
            c.rf_set_pace(self.ring, ticket_ns, ticket_rows, more)

    def retire(self, uint32_t worker):
        """Have a worker leave when it has published what it is at."""
        check_id(self.ring, worker)
        c.rf_retire(self.ring, worker)

    # ---- ends ----

    def cancel(self):
        """Break the epoch off: nothing planned or bound is delivered any more."""
        with nogil:
            c.rf_cancel(self.ring)

    def requeue(self):
        """Fence: bind anew, in other slots, all that is bound and not taken.

        The old slots drain.
        """
        with nogil:
            c.rf_requeue(self.ring)

    def stop(self):
        """Answer STOPPED to all waiters, for ever."""
        c.rf_stop(self.ring)

    def alarm(self):
        """Make `wait` answer ALARMED from now on."""
        c.rf_alarm(self.ring)

    def reap(self, uint32_t worker, bint blame=True):
        """Take back what a proven-dead worker had claimed.

        Returns (claims, index, deaths, epoch, batch, row, given_up, stage).

        `stage`: the name of the user's function that had all rows of the batch, "" for a row of its
            own.
        """
        cdef c.rf_reaped reaped
        check_id(self.ring, worker)
        with nogil:
            reaped = c.rf_reap(self.ring, worker, blame)
        return (reaped.claims, reaped.index, reaped.deaths, reaped.epoch, reaped.batch, reaped.row,
                reaped.given_up, STAGES.get(reaped.stage, ""))

    # ---- looking on: see monitor/_snapshot.pyx ----

    cdef c.rf_slot_report slot_report(self, uint32_t slot) noexcept:
        return c.rf_report_slot(self.ring, slot)

    cdef c.rf_worker_report worker_report(self, uint32_t worker) noexcept:
        return c.rf_report_worker(self.ring, worker)

    cdef c.rf_consumer_report consumer_report(self) noexcept:
        return c.rf_report_consumer(self.ring)

    cdef void read_waits(self, c.rf_waits *waits) noexcept:
        c.rf_report_waits(self.ring, waits)

    def note_pid(self, uint32_t worker, uint32_t pid):
        """Tell observers which process a worker is."""
        check_id(self.ring, worker)
        c.rf_note_pid(self.ring, worker, pid)

    def note_rank(self, uint32_t rank, uint32_t world_size):
        """Tell observers the rank of the consumer."""
        c.rf_note_rank(self.ring, rank, world_size)

    def note_stall(self, int64_t stall_ns):
        """Count how long the consumer has waited."""
        c.rf_note_stall(self.ring, stall_ns)

    def note_undelivered(self, uint32_t batches, uint32_t samples):
        """Count what was taken, and is not delivered."""
        c.rf_note_undelivered(self.ring, batches, samples)


include "_lease.pxi"
include "_worker_end.pxi"
