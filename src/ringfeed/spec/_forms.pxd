"""What other extensions of ringfeed see of leaves whose samples differ in length."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field
from ringfeed.spec._writer cimport LeafWriter


cdef extern from "bytes/forms.h" nogil:
    struct rf_form:
        int axes
        bint padded
        size_t unit, itemsize
        int64_t most[32]
        int64_t total
        const uint8_t *padding

    struct rf_filled:
        uint64_t batch
        uint32_t rows


cdef class FormField(Field):
    cdef rf_form layout


cdef class FormWriter(LeafWriter):
    cdef FormField rows        # the field
    cdef rf_filled filled
    cdef int64_t next_start    # where the next row of the ticket is written, behind the last
    cdef Py_ssize_t last_row   # that was written
    cdef int64_t last_start    # where

    cdef int write_anew(
        self, list samples, uint8_t *base, Py_ssize_t first, rows, int64_t index
    ) except -1
    cdef int put_sample(
        self, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t index
    ) except -1
    cdef int64_t place(
        self, uint8_t *base, Py_ssize_t row, const int64_t *lengths, int64_t index
    ) except -2
