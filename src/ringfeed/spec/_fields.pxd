"""What other extensions of ringfeed see of a slot's fields."""

cimport numpy as cnp
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ringfeed.ring._ring cimport Lease


cdef struct Field:
    uint64_t offset      # in the slot
    size_t row_size      # bytes of one sample's leaf
    int ndim             # of one sample's leaf
    cnp.npy_intp shape[33]  # [0] is for the rows; 32 axes were NumPy's limit when this was written
    bint varies             # a batch's own shape stands before the field
    bint has_form           # its rows differ in length: `FormFields` has it
    uint8_t may_be_less[33]  # by axis
    size_t itemsize
    size_t gap_count         # stretches of padding in an element, which are zeros in a slot
    size_t *gaps             # where each begins, and how long it is


cdef void read_shape(uint8_t *field, int ndim, const cnp.npy_intp *most, cnp.npy_intp *shape) noexcept nogil


cdef class FormFields:  # of leaves with a form; see `forms`
    cdef cnp.ndarray wrap_all(self, Py_ssize_t number, uint8_t *base, Lease owner)
    cdef cnp.ndarray wrap_row(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp row, owner)
    cdef finish(self, Lease lease, uint32_t rows, cnp.ndarray good)
    cdef dict besides(self, Lease lease, uint32_t rows)
    cdef tuple needed(self, Lease lease, uint32_t rows)


cdef class Fields:
    cdef Field *fields
    cdef Py_ssize_t count
    cdef list dtypes
    cdef FormFields formed  # None: no leaf has a form
    cdef readonly tuple forms  # the numbers of leaves with a form, and their forms

    cdef describe(self, Py_ssize_t number, leaf, uint64_t offset)
    cdef note_gaps(self, Field *field, dtype)
    cdef void clear_gaps(self, Py_ssize_t number, uint8_t *target, size_t size) noexcept nogil
    cdef void note_shape(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base) noexcept
    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner)
