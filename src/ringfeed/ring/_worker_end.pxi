# The worker's end of the ring. Part of _ring.pyx.


@cython.final
cdef class WorkerEnd:
    """The worker's end of the ring: claims one ticket at a time.

    One thread uses it; see also `another`.

    `yields`: it claims only tickets beyond the workers that sleep.
    """

    cdef Ring owner
    cdef c.rf_cursor cursor
    cdef c.rf_claim current
    cdef uint32_t worker

    def __cinit__(self, Ring owner not None, uint32_t worker, uint32_t stream=0, bint yields=False):
        check_id(owner.ring, worker)
        self.owner = owner
        self.worker = worker
        self.cursor.stream = stream
        # Both are known before the first claim, and never change.
        self.current.control = owner.ring.control
        self.current.line = &owner.ring.workers[worker]
        if yields:
            c.rf_set_yielding(owner.ring, worker, &self.cursor)

    @property
    def number(self):
        """The worker's id."""
        return self.worker

    def another(self):
        """Return one more end of this worker, for another claim.

        One thread claims, for all of them.
        """
        return WorkerEnd(self.owner, self.worker, self.cursor.stream)

    def claim(self, int64_t timeout_ns):
        """Claim the next ticket: TAKEABLE, PENDING after `timeout_ns` or a signal, or STOPPED."""
        cdef c.rf_ring *ring = self.owner.ring
        cdef c.rf_answer answer
        if timeout_ns <= 0:
            if c.rf_claim_next(ring, self.worker, &self.cursor, &self.current):
                return c.RF_TAKEABLE
            return c.RF_PENDING
        with nogil:
            answer = c.rf_claim_wait(
                ring, self.worker, &self.cursor, &self.current, c.rf_now_ns() + timeout_ns
            )
        return answer

    def serve(self, read, context, fail, uint32_t version, int64_t idle_ns, bint claimed=False):
        """Claim, read and publish until the ring stops; True where a ticket is of another version.

        That one is claimed, and still to be filled: that is what ``claimed`` says to the next call.
        read() fills the claim and returns whether it was not cancelled; fail(error) is told what it
        raises.
        """
        cdef c.rf_ring *ring = self.owner.ring
        cdef c.rf_answer answer
        cdef bint filled
        while True:
            if not claimed:
                with nogil:
                    answer = c.rf_claim_wait(
                        ring, self.worker, &self.cursor, &self.current, c.rf_now_ns() + idle_ns
                    )
                if answer == c.RF_STOPPED:
                    return False
                PyErr_CheckSignals()
                if answer != c.RF_TAKEABLE:
                    continue
                if self.current.version != version:
                    return True
            claimed = filled = False
            context.epoch = self.current.epoch
            try:
                filled = read()
            except BaseException as error:
                # From a signal's handler, say; the consumer waits for these rows.
                fail(error)
                filled = True
            c.rf_publish(ring, &self.current, not filled)

    def publish(self, bint cancelled=False, int64_t work_ns=0):
        """Hand the claimed rows over.

        `work_ns`: how long they took elsewhere; 0: since the claim, here.
        """
        self.current.work_ns = work_ns
        c.rf_publish(self.owner.ring, &self.current, cancelled)

    @property
    def breaks(self):
        """What each break, each fence and the stop change.

        It is read before a look at what this worker holds.
        """
        return c.rf_breaks(self.owner.ring)

    def wait_break(self, uint32_t seen, int64_t timeout_ns):
        """Wait until `breaks` is another than was seen, or so long; return what it is then.

        Any thread may wait.
        """
        cdef uint32_t found
        with nogil:
            found = c.rf_break_wait(self.owner.ring, seen, c.rf_now_ns() + timeout_ns)
        return found

    def fail(self, uint32_t row, bytes payload not None):
        """Mark row `row` of the ticket as failed; a record keeps the payload of the first."""
        if row >= self.current.rows:
            raise ValueError(f"row {row} of {self.current.rows}")
        c.rf_fail(&self.current, row, <const char *>payload, <uint32_t>len(payload))

    def cut(self, uint32_t row):
        """Deliver no more of the ticket's rows than the first `row`.

        False where fewer were to be delivered already.
        """
        if row and row >= self.current.rows_delivered:
            return False
        self.current.rows_delivered = row
        return True

    @property
    def killed(self):
        """The first row of the ticket that was given up because it ended its workers, or None."""
        cdef uint32_t row
        for row in range(self.current.rows):
            if self.current.marks[row] == c.RF_ROW_KILLED:
                return row
        return None

    @property
    def claim_address(self):
        """Where the claim lies, for the writer of rows in this process."""
        return <uintptr_t>&self.current

    @property
    def epoch(self):
        """The epoch of the claimed batch."""
        return self.current.epoch

    @property
    def version(self):
        """The version of the dataset that the claimed batch is to be read from."""
        return self.current.version

    @property
    def indices(self):
        """The dataset indices of the claimed rows."""
        cdef uint32_t row
        return [self.current.indices[row] for row in range(self.current.rows)]
