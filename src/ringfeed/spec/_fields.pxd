"""What other extensions of ringfeed see of a slot's fields."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef struct Field:
    uint64_t offset      # in the slot
    size_t row_size      # bytes of one sample's leaf
    int ndim             # of one sample's leaf
    cnp.npy_intp shape[33]  # [0] is for the rows; 32 axes were NumPy's limit when this was written
    bint varies             # a batch's own shape stands before the field
    uint8_t may_be_less[33]  # by axis
    size_t itemsize
    size_t gap_count         # stretches of padding in an element, which are zeros in a slot
    size_t *gaps             # where each begins, and how long it is


cdef class Fields:
    cdef Field *fields
    cdef Py_ssize_t count
    cdef list dtypes

    cdef describe(self, Py_ssize_t number, leaf, uint64_t offset)
    cdef note_gaps(self, Field *field, dtype)
    cdef void clear_gaps(self, Py_ssize_t number, uint8_t *target, size_t size) noexcept nogil
    cdef void note_shape(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base) noexcept
    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner)
