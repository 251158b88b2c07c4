"""What other extensions of ringfeed see of the writer of rows."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._writer cimport LeafWriter


cdef extern from "bytes/copy.h" nogil:
    bint rf_streams(const c.rf_claim *claim, uint64_t beyond)


cdef extern from "times.h" nogil:
    void rf_note_times(const c.rf_claim *claim, uint64_t rows, int64_t read_ns, int64_t write_ns)


cdef class RowWriter


cdef class RowChange:  # see `datasets._changes`
    cdef int apply(self, RowWriter writer, c.rf_claim *claim, uint32_t row) except -1


cdef class RowWriter:
    cdef list leaves        # a LeafWriter each
    cdef object spec, owner
    cdef public RowChange change  # None: samples stay as they were written
    cdef uint64_t beyond    # caches: bytes of slots
    cdef Py_ssize_t count   # of leaves
    cdef object structure

    cdef LeafWriter leaf(self, Py_ssize_t number)
    cdef int begin(self, c.rf_claim *claim) except -1
    cdef tuple leaves_of(self, sample, int64_t index, str root)
    cdef int write(self, sample, uint8_t *base, Py_ssize_t row, int64_t index) except -1
    cdef list views_of(self, c.rf_claim *claim, uint32_t row)
    cdef int change_alone(self, c.rf_claim *claim, uint32_t row, context) except -1
    cdef check_out(self, given, list out, int64_t index, str name, str function)
    cdef uint32_t write_batch(
        self, batch, uint8_t *base, int64_t index, uint32_t most
    ) except? 0xffffffff
