"""What other extensions of ringfeed see of the writer of rows."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._writer cimport FieldWriter


cdef extern from "times.h" nogil:
    void rf_note_times(const c.rf_claim *claim, uint64_t rows, int64_t read_ns, int64_t write_ns)


cdef class RowWriter


cdef class Containers:  # see `coercion`
    cdef tuple leaves_of(self, sample)


cdef class RowChange:  # see `transforms`
    cdef int apply(self, RowWriter writer, c.rf_claim *claim, uint32_t row) except -1


cdef class RowWriter:
    cdef FieldWriter writer
    cdef object spec, owner
    cdef public RowChange change  # None: samples stay as they were written
    cdef uint64_t beyond   # caches: bytes of slots
    cdef Py_ssize_t count  # of leaves
    cdef int flat  # as `spec.nodes.flatness` says
    cdef Containers containers  # None where it is flat

    cdef void begin(self, c.rf_claim *claim) noexcept
    cdef tuple leaves_of(self, sample, int64_t index, str root)
    cdef int write(self, sample, uint8_t *base, Py_ssize_t row, int64_t index) except -1
    cdef int fill_row(self, c.rf_claim *claim, uint32_t row, function, bint in_place, bint timed) except -1
    cdef list views_of(self, c.rf_claim *claim, uint32_t row)
    cdef int change_alone(self, c.rf_claim *claim, uint32_t row, context) except -1
    cdef fill_in_place(self, c.rf_claim *claim, uint32_t row, function, index)
    cdef check_out(self, given, list out, int64_t index, str name, str function)
    cdef bint fill_rows(self, c.rf_claim *claim, function, bint in_place, context, on_error) except -1
    cdef bint are_plain(self, tuple arrays)
    cdef bint lie_within(self, c.rf_claim *claim, int64_t length)
    cdef gather_rows(self, c.rf_claim *claim, tuple arrays, uint32_t first, uint32_t rows)
    cdef write_row(self, c.rf_claim *claim, tuple arrays, uint32_t row)
    cdef uint32_t write_batch(self, batch, uint8_t *base, int64_t index, uint32_t most) except? 0xffffffff
