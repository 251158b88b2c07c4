# The lease: one slot in the consumer's hands. Part of _ring.pyx.


@cython.final
@cython.no_gc  # a batch costs the collector nothing, and `finished` leads nowhere
cdef class Lease:
    """The consumer's hold on one slot.

    Each reference to it, above all from arrays by `base`, keeps the slot.

    It exports the slot's fields as one writable block of bytes. ``finished``: what was made of
    fields whose rows differ in shape, once it was (see `Fields.finish`).
    """

    def __init__(self):
        raise TypeError("a Lease is made by Ring.take()")

    def __dealloc__(self):
        if self.ring != NULL:
            c.rf_drop(self.ring, self.taken.slot)
            c.rf_unreference(self.ring)

    cdef uint8_t *base(self):
        return c.rf_slot_base(self.ring, self.taken.slot)

    def __getbuffer__(self, Py_buffer *view, int flags):
        address = c.rf_slot_base(self.ring, self.taken.slot)
        PyBuffer_FillInfo(view, self, address, self.ring.geometry.failures_at, 0, flags)

    @property
    def address(self):
        """Where the slot's first field starts, in this process."""
        return <uintptr_t>c.rf_slot_base(self.ring, self.taken.slot)

    cdef c.rf_dlpack *export(self, const c.rf_field *field) noexcept nogil:
        """Return a DLPack tensor over a field; NULL without memory.

        It holds the slot by itself, in plain C.
        """
        return c.rf_export(self.ring, self.taken.slot, field)

    def has_room(self):
        """Whether another slot is left to be filled: one that is free, or bound."""
        return c.rf_has_room(self.ring)

    def wait_room(self, int64_t timeout_ns):
        """Wait without the GIL until it has room, or the ring ends; return whether it has.

        Signals are answered.
        """
        cdef int64_t now = c.rf_now_ns()
        cdef int64_t deadline = now + timeout_ns
        cdef bint over = False
        while not over and now < deadline:
            with nogil:
                over = c.rf_wait_room(self.ring, min(deadline, now + SLICE_NS))
            come_up()
            now = c.rf_now_ns()
        return c.rf_has_room(self.ring)

    @property
    def slot(self):
        """The number of the slot."""
        return self.taken.slot

    @property
    def batch(self):
        """The count of the batch, over all epochs."""
        return self.taken.batch

    @property
    def epoch(self):
        """The epoch the batch belongs to."""
        return self.taken.epoch

    @property
    def rows(self):
        """Rows delivered."""
        return self.taken.rows

    @property
    def failed(self):
        """Whether some row failed."""
        return self.taken.failed

    def indices(self, uint32_t rows):
        """Return the dataset index of each of the batch's `rows`."""
        cdef const int64_t *indices = c.rf_slot_indices(self.ring, self.taken.slot)
        cdef uint32_t row
        return [indices[row] for row in range(min(rows, self.ring.geometry.rows))]

    def failed_rows(self, uint32_t rows):
        """Return (row, dataset index, mark) of each failed row among the batch's `rows`."""
        cdef const uint8_t *marks = c.rf_slot_marks(self.ring, self.taken.slot)
        cdef const int64_t *indices = c.rf_slot_indices(self.ring, self.taken.slot)
        cdef uint32_t row
        return [(row, indices[row], marks[row]) for row in range(min(rows, self.ring.geometry.rows))
                if self.has_failed(row // self.taken.rows_per_ticket) and marks[row] != c.RF_ROW_OK]

    cdef bint has_failed(self, uint32_t cell) noexcept:
        return cell < self.taken.tickets and self.taken.failed_cells >> cell & 1

    def failures(self):
        """Return (row, payload) of the first failure of each ticket that has one."""
        cdef c.rf_failure failure
        cdef uint32_t cell
        found = []
        for cell in range(self.taken.tickets):
            if not self.has_failed(cell):
                continue
            if c.rf_read_failure(self.ring, self.taken.slot, cell, &failure) and failure.size:
                found.append((failure.row, <bytes>failure.payload[:failure.size]))
        return found
