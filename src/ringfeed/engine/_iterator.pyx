# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Takes a batch that is there in one call; what needs a judgement is left to the engine.

The engine lends the ring for some batches of one turn and has it back whenever it is asked for anything. Until then a
take touches nothing but the ring, in one step under the GIL.
"""

cimport cython
from cpython.list cimport PyList_AsTuple
from libc.stdint cimport int64_t, uint32_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Fields
from ringfeed.ring._ring cimport Lease, Ring

from ringfeed.ring.failure import users_frames


@cython.final
cdef class Taker:
    """The hand that takes what is lent; one for a ring. Any thread may recall it, at once."""

    cdef Ring ring
    cdef Fields fields
    cdef object unflatten
    cdef int flat  # as in `Spec.structure`: 1 a bare leaf, 2 a plain tuple of leaves, 0 anything else
    cdef uint32_t rows
    cdef uint32_t left     # batches that may be taken
    cdef readonly uint32_t recalls  # tells a caller that waited, or would lend, of recalls in between
    cdef int64_t turn
    cdef int64_t patience_ns
    cdef int64_t until_ns  # 0: as long as it takes
    cdef bint lets_go      # the caller drops a batch for the next
    cdef int64_t waited_ns

    def __cinit__(self, Ring ring not None, Fields fields not None, spec, uint32_t rows):
        """Take batches of at most `rows` rows, as the spec has them."""
        structure = spec.structure
        self.ring = ring
        self.fields = fields
        self.unflatten = spec.unflatten
        self.rows = rows
        if structure[0] == "leaf":
            self.flat = 1
        elif structure[0] == "tuple" and structure[1] is None and all(child[0] == "leaf" for child in structure[2]):
            self.flat = 2

    def lend(self, int64_t turn, uint32_t batches, int64_t patience_ns, uint32_t recalls, int64_t until_ns=0,
             bint lets_go=True):
        """Let so many batches of this turn be taken, each waited for up to `patience_ns`; none from `until_ns` on.

        Nothing is lent where the ring has been recalled more often than `recalls` times. None is taken that would leave
        no slot to be filled; with `lets_go` the caller's one held slot counts as free, since it is dropped at once.
        """
        if recalls != self.recalls:
            return
        self.turn = turn
        self.patience_ns = patience_ns
        self.until_ns = until_ns
        self.lets_go = lets_go
        self.left = 0 if self.ring is None else batches  # stopping an engine does not wait for a caller inside

    def recall(self):
        """Have the ring back; returns the ns that the last caller has waited in vain."""
        cdef int64_t waited_ns = self.waited_ns
        self.recalls += 1
        self.left = 0
        self.waited_ns = 0
        return waited_ns

    def let_go(self):
        """Keep the ring no longer: iterators outlive it. Nothing is lent afterwards."""
        self.recall()
        self.ring = None

    cdef bint take(self, int64_t turn, Lease lease, lock) except -1:
        """Take the next batch into a fresh lease, if that is lent to this turn and needs no judgement."""
        cdef c.rf_answer answer
        if not self.left or turn != self.turn:
            return False
        cdef Ring ring = self.ring  # held by this call, too: another thread may let go of it during the wait
        if self.until_ns and ring.is_past(self.until_ns):
            return False
        if not ring.leaves_room(self.lets_go):
            return False
        answer = ring.take_ready(lease)
        if answer == c.RF_PENDING and self.wait(ring, lock):
            answer = ring.take_ready(lease)
        if answer != c.RF_TAKEABLE:
            return False
        self.left -= 1
        return True

    cdef bint wait(self, Ring ring, lock) except -1:
        """Wait for the head batch, with the loader's lock; whether it may be taken now."""
        cdef uint32_t left = self.left, recalls = self.recalls
        cdef int64_t stall_ns = 0
        cdef bint ready = False
        if not lock.acquire(False):
            return False  # another thread takes
        self.left = 0  # no taker comes in meanwhile; the loader, or a signal handler, recalls
        try:
            ready = ring.wait_head(self.patience_ns, &stall_ns) == c.RF_TAKEABLE
        finally:
            if recalls == self.recalls:
                self.left = left
                self.waited_ns = 0 if ready else self.waited_ns + stall_ns
            lock.release()
        return ready and recalls == self.recalls

    cdef object views(self, Lease lease, uint32_t rows):
        """Return the batch in the structure of a sample, as arrays over the slot."""
        cdef Py_ssize_t number
        if self.flat == 1:
            return self.fields.wrap(0, lease.base(), 0, rows, lease)
        leaves = [self.fields.wrap(number, lease.base(), 0, rows, lease) for number in range(self.fields.count)]
        return PyList_AsTuple(leaves) if self.flat == 2 else self.unflatten(leaves)


cdef class Batches:
    """The iterator over what a taker may take; a subclass says what comes `otherwise`."""

    cdef Taker taker
    cdef readonly int64_t turn
    cdef object form
    cdef object lock

    def __init__(self, Taker taker not None, int64_t turn, form, lock):
        """Iterate over the batches of this turn, or what form(lease, rows) makes of them."""
        self.taker = taker
        self.turn = turn
        self.form = form
        self.lock = lock

    def __iter__(self):
        return self

    def __next__(self):
        cdef Lease lease = Lease.__new__(Lease)
        cdef uint32_t rows
        if self.taker is None:
            raise TypeError("Batches.__init__() has not been called")
        if not self.taker.take(self.turn, lease, self.lock):
            try:
                return self.otherwise(self.form)
            except BaseException as error:
                raise error.with_traceback(users_frames(error, error.__traceback__))
        rows = min(lease.taken.rows, self.taker.rows)
        return self.taker.views(lease, rows) if self.form is None else self.form(lease, rows)
