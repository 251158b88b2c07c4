"""What other extensions of ringfeed see of a slot's fields."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from "convert.h" nogil:
    struct rf_conversion:
        pass


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


cdef struct Given:  # what the dataset gives for a leaf
    size_t nbytes
    int ndim
    cnp.npy_intp shape[32]
    int number_type            # the NumPy type of a 0-d leaf which plain Python numbers may fill, or -1
    rf_conversion *conversion  # NULL: it goes into the slot as it is


cdef class Fields:
    cdef Field *fields
    cdef Py_ssize_t count
    cdef list dtypes

    cdef describe(self, Py_ssize_t number, leaf, uint64_t offset)
    cdef note_gaps(self, Field *field, dtype)
    cdef void clear_gaps(self, Py_ssize_t number, uint8_t *target, size_t size) noexcept nogil
    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner)


cdef class FieldWriter:
    cdef Fields fields
    cdef object spec
    cdef object owner
    cdef Given *given
    cdef list dtypes  # of what is given
    cdef bint stream  # past the caches

    cdef describe(self, Given *given, leaf)
    cdef int put(self, cnp.ndarray array, uint8_t *target, size_t size, Py_ssize_t number, uint8_t *base,
                 cnp.npy_intp first, cnp.npy_intp rows) except -1
    cdef void clear_row(self, Py_ssize_t number, uint8_t *base, Py_ssize_t row) noexcept
    cdef int convert(self, cnp.ndarray array, float *target, size_t size, Py_ssize_t number,
                     cnp.npy_intp rows) except -1
    cdef int write(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1
    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index) except -1
    cdef gather(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t first, const int64_t *indices,
                Py_ssize_t rows)
