# cython: language_level=3, boundscheck=False, wraparound=False
"""Takes a batch that is there in one call; the engine resolves every other answer of the ring.

    __next__ ──▶ rf_next() ── a lease ──▶ views, or what the builder makes
                  │    ▲
        any other │    │ planned, waited, a batch settled
           answer ▼    │
   runner.resolve(), engine.resolve()
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field, Fields
from ringfeed.ring._ring cimport Lease, Ring

import sys
from copy import copy

from ringfeed._failure import users_frames
from ringfeed._process import Exit
from ringfeed.errors import ClosedError, RingfeedError
from ringfeed.spec.array import copy_of

# Module globals may be gone at the exit.
cdef object is_exiting = sys.is_finalizing


@cython.final
cdef class Intake:
    """Takes an engine's batches for its iterators: from the ring, or one that was settled.

    A batch is settled where rows of it have failed, or where it might take the last slot. It is
    kept here until it is handed out, also where Ctrl-C comes meanwhile. Iterators of several
    threads take without a lock: the hand-over is one step for all of them, also where Python has no
    GIL.
    """

    cdef Ring ring
    cdef Fields fields
    cdef object unflatten
    cdef uint32_t most_rows
    cdef c.rf_terms terms
    cdef public int64_t own_wait_ns
    """How long an iterator waits for a batch before it asks the engine.

    Read without a lock: an older value makes one wait longer or shorter.
    """
    cdef readonly Lease kept
    """The batch that the engine has taken and not handed out."""
    cdef readonly object kept_rows
    """Its rows, once they are known to be good; else None."""
    cdef readonly bint settled
    cdef public object error
    """What an iterator raises once no batch is kept; None when it was raised.

    `next` only asks whether there is one; `error_of` asks again, in the critical section.
    """
    cdef public int64_t error_epoch_id
    """The epoch id of the iterators that raise it."""
    cdef bint private
    cdef int64_t kept_epoch_id
    cdef int64_t error_place

    def __cinit__(self, Ring ring not None, Fields fields not None, spec, uint32_t rows):
        """Take batches of at most `rows` rows, as the spec has them."""
        self.ring = ring
        self.fields = fields
        self.unflatten = spec.unflatten
        self.most_rows = rows
        self.terms.room = c.RF_A_SLOT

    @cython.critical_section
    def set_lets_go(self, bint lets_go):
        """Count the one slot that a caller holds as free: it drops its batch for the next."""
        self.terms.room = c.RF_OWN_ROOM if lets_go else c.RF_A_SLOT

    def let_go(self):
        """Drop the reference to the ring, since iterators live longer.

        Nothing is taken afterwards.
        """
        if self.ring is not None:
            self.discard()
        with cython.critical_section(self):
            self.ring = None

    # ---- by the engine ----

    @cython.critical_section
    def take(self, int64_t epoch_id):
        """Take the head batch and keep it, for callers with this epoch id; whether it was ready.

        None is taken while a batch is kept: another thread may have put one back just now.
        """
        cdef Lease lease = None
        if self.ring is not None and self.kept is None:
            lease = self.ring.take()
        if lease is None:
            return False
        self.kept_epoch_id = epoch_id
        self.kept_rows = None
        self.settled = False
        self.kept = lease
        return True

    # The engine names the batch that is kept by its number: a signal handler, or another thread,
    # have taken it meanwhile. Each of these is one step for Python.

    cdef bint is_kept(self, uint64_t batch) noexcept:
        return self.kept is not None and self.kept.taken.batch == batch

    @cython.critical_section
    def keep_rows(self, uint64_t batch, uint32_t rows):
        """Know that all `rows` rows of the batch are good."""
        if self.is_kept(batch) and self.kept_rows is None:
            self.kept_rows = rows

    def close_gaps(self, uint64_t batch, uint32_t rows, good, stats, loss):
        """Keep the `good` rows, moved together, or drop a batch without any.

        Note the `Loss` of others.
        """
        if not self.is_kept(batch) or self.kept_rows is not None:
            return
        if len(good):
            self.fields.finish(self.kept, len(good), good)
            for number, leaf in enumerate(self.fields.views(self.kept, rows)):
                if self.fields.at(number).form is None:
                    leaf[:len(good)] = leaf[good]
            self.keep_rows(batch, len(good))
            self.ring.note_undelivered(0, self.kept.taken.rows - len(good))
        stats.none_batches += loss.is_none
        stats.skipped += loss.skipped
        error = loss.error
        if error is not None:
            with cython.critical_section(self):
                self.error = error
                self.error_epoch_id = self.kept_epoch_id
                self.error_place = self.kept.taken.place + 1
        if not len(good):
            self.discard()

    @cython.critical_section
    def settle(self, uint64_t batch, bint private):
        """Let the next call hand the batch out, in its slot or as a private copy."""
        if self.is_kept(batch):
            self.private = private
            self.settled = True

    @cython.critical_section
    def discard(self):
        """Deliver nothing of the batch that is kept, if there is one."""
        if self.kept is not None:
            rows = self.kept.taken.rows if self.kept_rows is None else self.kept_rows
            self.ring.note_undelivered(1, rows)
            self.kept = self.kept_rows = None

    # ---- by iterators ----

    cdef Lease next(
        self, int64_t epoch_id, object lock, c.rf_answer *answer, uint32_t *rows, bint *private
    ):
        """Return the lease of the next batch, if no decision is due.

        Returns None with the answer otherwise.
        """
        cdef Ring ring  # held by this call, too: another thread may let go of it during the wait
        cdef Lease lease
        cdef c.rf_terms terms  # of this call: another thread's may come in
        private[0] = False
        with cython.critical_section(self):
            ring, terms = self.ring, self.terms
            if self.kept is not None and epoch_id == self.kept_epoch_id:
                answer[0] = c.RF_GAPS
                if not self.settled:
                    return None
                private[0] = self.private
                rows[0] = self.kept_rows
                lease = self.kept
                self.kept = self.kept_rows = None
                return lease
        answer[0] = c.RF_STOPPED if ring is None else c.RF_DUE
        if ring is None or self.error is not None:
            return None
        lease = Lease.__new__(Lease)
        terms.epoch_id = epoch_id
        answer[0] = ring.next(&terms, lease)
        cdef bint may_wait = answer[0] == c.RF_PENDING and self.own_wait_ns and lock is not None
        if may_wait and self.wait(ring, epoch_id, lock):
            if self.kept is not None:
                return None
            answer[0] = ring.next(&terms, lease)
        rows[0] = min(lease.taken.rows, self.most_rows)
        return lease if answer[0] == c.RF_TAKEABLE else None

    cdef object error_of(self, int64_t epoch_id):
        """Return the error that ends or interrupts this epoch, if no batch comes before it."""
        with cython.critical_section(self):
            return self.error if self.kept is None and self.error_epoch_id == epoch_id else None

    cdef int64_t forget(self, error):
        """Forget the error, which is raised now; return its place, or -1 where it is not kept."""
        with cython.critical_section(self):
            if error is not self.error:
                return -1
            self.error = None
            return self.error_place

    cdef void put_back(self, Lease lease, uint32_t rows, bint private, int64_t epoch_id) noexcept:
        """Keep a batch that was not handed out, unless another thread's is kept."""
        with cython.critical_section(self):
            if self.kept is None:
                self.kept_epoch_id = epoch_id
                self.kept_rows = rows
                self.private = private
                self.settled = True
                self.kept = lease

    cdef bint wait(self, Ring ring, int64_t epoch_id, object lock) except -1:
        """Wait for the head batch with the loader's lock.

        False where another thread has the lock.
        """
        if not lock.acquire(False):
            return False
        try:
            ring.wait_head(self.own_wait_ns, epoch_id)
        finally:
            lock.release()
        return True

    cdef object views(self, Lease lease, uint32_t rows, bint private):
        """Return the batch in the structure of a sample, as arrays over the slot, or copies."""
        self.fields.finish(lease, rows, None)
        leaves = [(<Field>field).wrap(lease.base(), 0, rows, lease) for field in self.fields.fields]
        if private:
            leaves = [copy_of(leaf) for leaf in leaves]
        if self.fields.forms:
            besides = self.fields.besides(lease, rows)
            for number, form in self.fields.forms:
                leaves[number] = form.join(leaves[number], besides.get(number))
        return self.unflatten(leaves)


@cython.final
@cython.auto_pickle(False)
cdef class Progress:
    """How far the user's code has come in one epoch."""

    cdef public int64_t finished_batches
    """Planned batches that are done with: handed out, raised or empty.

    -1: only the caller knows.
    """
    cdef public int64_t planned_before
    """How many batches were planned before this epoch."""
    cdef public bint is_over


@cython.final
@cython.auto_pickle(False)
cdef class BatchIterator:
    """Iterates over one epoch's batches. Dropping it before the end breaks the epoch off.

    It takes a ready batch in one call; its runner resolves every other answer of the ring.
    """

    cdef object __weakref__
    cdef Intake intake
    cdef public Progress progress
    """Kept up to date here, unless the caller does so: see `count_alone`."""
    cdef readonly int64_t epoch_id
    cdef readonly object failure
    """What ended the workers, and the epoch before its time."""
    cdef object runner
    cdef object build
    cdef object lock
    cdef object keeps
    cdef bint copy
    cdef bint is_over  # a thread that reads it late asks the runner, which says so, too

    def __init__(self, runner, Intake intake not None, Progress progress not None, build, keeps):
        """Iterate over the runner's newest epoch: views, copies, or what build(lease, rows) makes.

        `keeps`: the loader, which lives as long as its iterators.
        """
        self.epoch_id = runner.epoch_id
        self.copy = runner.options.copy
        # Without a lock each wait is the engine's.
        self.lock = None if getattr(build, "is_computing", None) else runner.lock
        self.build, self.keeps, self.progress = build, keeps, progress
        self.runner = runner
        self.intake = intake

    def __iter__(self):
        return self

    def __del__(self):
        """Break the epoch off unless it is over."""
        if self.intake is not None and not self.is_over and not is_exiting():
            self.runner.break_off(self.epoch_id)

    def ready(self):
        """Whether `next()` would not wait; raises SupersededError for an older iterator."""
        try:
            return not self.is_over and self.runner.ready(self.epoch_id)
        except ClosedError:
            Exit.park()
            raise

    def __next__(self):
        cdef c.rf_answer answer
        cdef uint32_t rows = 0
        cdef bint private = False
        if self.intake is None:
            raise TypeError("BatchIterator.__init__() has not been called")
        cdef Lease lease = self.intake.next(self.epoch_id, self.lock, &answer, &rows, &private)
        while lease is None:
            if self.is_over:
                raise StopIteration
            kept = error = self.intake.error_of(self.epoch_id)
            if kept is None:
                try:
                    self.runner.resolve(self.epoch_id, answer, self.build)
                except BaseException as raised:
                    error = raised
            if error is not None:
                shown = users_frames(error, error.__traceback__)
                # Of several threads that find the same error, one raises it.
                if self.note_end(error) or kept is None:
                    raise error.with_traceback(shown)
            lease = self.intake.next(self.epoch_id, self.lock, &answer, &rows, &private)
        try:
            batch = self.made(lease, rows, private)
        except Exception:
            raise
        except BaseException:  # Ctrl-C in Python code: the next call hands it out
            self.intake.put_back(lease, rows, private, self.epoch_id)
            raise
        # Last: what Ctrl-C has kept from the user's code is not handed out.
        self.note(lease.taken.place + 1)
        return batch

    cdef object made(self, Lease lease, uint32_t rows, bint private):
        """Return the batch as the user's code gets it."""
        if self.build is None:
            return self.intake.views(lease, rows, private or self.copy)
        return self.build.private(lease, rows) if private else self.build(lease, rows)

    cdef void note(self, int64_t planned) noexcept:
        """Note how many batches of the plan are done with; another thread may be further."""
        cdef Progress progress = self.progress
        with cython.critical_section(progress):
            progress.finished_batches = max(
                progress.finished_batches, planned - progress.planned_before
            )

    cdef bint note_end(self, error) except -1:
        """Note what `__next__` raises: an error of a batch, or one that ends the epoch.

        Returns whether it was kept until now.
        """
        workers_failed = self.runner.engine is None
        if isinstance(error, StopIteration):
            self.is_over = True
            self.progress.is_over = not workers_failed
        elif isinstance(error, ClosedError):
            Exit.park()
        elif isinstance(error, RingfeedError) and workers_failed:
            # Without a traceback, which would keep the loader.
            failure = copy(error)
            with cython.critical_section(self):
                self.failure = failure
        # Last: after Ctrl-C in the steps above, the next call raises it.
        cdef int64_t place = self.intake.forget(error)
        if place < 0:
            return False
        self.note(place)
        return True

    def count_alone(self):
        """Return the progress; the caller keeps it up to date from now on, as it keeps batches."""
        told = self.progress
        self.progress = Progress()
        self.progress.planned_before = told.planned_before
        return told
