"""What other extensions of ringfeed see of a slot's fields."""

cimport numpy as cnp
from libc.stdint cimport uint8_t, uint64_t


cdef cnp.ndarray array_over(cnp.dtype dtype, int ndim, const cnp.npy_intp *shape,
                            const cnp.npy_intp *strides,
                            void *start, owner)
cdef Field open_field(leaf, uint64_t offset)


cdef class Field:
    cdef uint64_t offset      # in the slot
    cdef size_t row_size      # bytes of one sample's leaf
    cdef int ndim             # of one sample's leaf
    cdef cnp.npy_intp shape[33]   # [0] is for the rows; 32 axes were NumPy's limit
    cdef bint varies              # a batch's own shape stands before the field
    cdef uint8_t may_be_less[32]  # by axis of a sample
    cdef cnp.dtype dtype
    cdef readonly object form     # None: all samples have one shape
    cdef object gaps              # which bytes of an element are padding; None: none is

    cdef cnp.ndarray wrap(self, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner)
    cdef int clear_gaps(self, uint8_t *target, size_t size) except -1
    cdef void note_shape(self, cnp.ndarray array, uint8_t *base) noexcept


cdef class Fields:
    cdef readonly list fields
    cdef readonly tuple forms  # the numbers of leaves with a form, and their forms

    cdef Field at(self, Py_ssize_t number)
    cdef int finish(self, lease, rows, good) except -1
