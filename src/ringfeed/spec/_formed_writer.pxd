"""What other extensions of ringfeed see of the writer of leaves with a form."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t

from ringfeed.spec._formed_fields cimport Differing, rf_filled
from ringfeed.spec._fields cimport Fields
from ringfeed.spec._writer cimport FormWriter


cdef struct Packed:  # of a field whose rows lie one after another from the first of a ticket on
    int64_t next     # where the next row is written
    Py_ssize_t row   # that was written last
    int64_t start    # where


cdef enum Strings:
    NEITHER
    BYTES
    TEXT


cdef class DifferingWriter(FormWriter):
    cdef Fields fields
    cdef Differing formed
    cdef tuple leaves
    cdef object spec, owner
    cdef object values  # the module that judges what does not certainly fit
    cdef rf_filled filled
    cdef Packed *packed  # by leaf
    cdef Strings *strings  # likewise: whether its samples are bytes or text

    cdef bint fits(self, Py_ssize_t number, cnp.ndarray array)
    cdef bint write_string(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index,
                           bint stream) except -1
    cdef int64_t place_or_refuse(self, Py_ssize_t number, uint8_t *field, Py_ssize_t row, const int64_t *lengths,
                                 int64_t index) except -2
    cdef int64_t place(self, Py_ssize_t number, uint8_t *field, Py_ssize_t row, const int64_t *lengths) except -2
    cdef int copy(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t start,
                  bint stream) except -1
