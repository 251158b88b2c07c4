"""What other extensions of ringfeed see of a slot's fields."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease


cdef extern from "bytes/forms.h" nogil:
    int64_t RF_NO_ROOM

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

    rf_filled rf_filled_by(const c.rf_claim *claim)
    int64_t rf_place_row(uint8_t *field, const rf_form *form, const rf_filled *filled, uint32_t row, int64_t length)
    void rf_place_anew(uint8_t *field, const rf_form *form, const rf_filled *filled)
    void rf_note_row(uint8_t *field, const rf_form *form, uint32_t row, int64_t start, const int64_t *lengths)
    int64_t rf_look_up_row(uint8_t *field, const rf_form *form, uint32_t row, int64_t *lengths)
    int64_t rf_needed(uint8_t *field, const rf_form *form, uint64_t batch, uint32_t rows)
    bint rf_close_up(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count, int64_t *splits)
    void rf_read_lengths(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count, int64_t *lengths)
    void rf_pad(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count, const int64_t *lengths,
                const int64_t *shape)


cdef struct Field:
    uint64_t offset      # in the slot
    size_t row_size      # bytes of one sample's leaf
    int ndim             # of one sample's leaf
    cnp.npy_intp shape[33]  # [0] is for the rows; 32 axes were NumPy's limit when this was written
    bint varies             # a batch's own shape stands before the field, or the shapes of its rows
    rf_form *form           # of rows that differ in shape; NULL: they do not
    uint8_t may_be_less[33]  # by axis
    int64_t limits[32]       # of a sample with a form, by axis
    size_t itemsize
    size_t gap_count         # stretches of padding in an element, which are zeros in a slot
    size_t *gaps             # where each begins, and how long it is


cdef class Fields:
    cdef Field *fields
    cdef Py_ssize_t count
    cdef list dtypes
    cdef readonly tuple forms  # the numbers of leaves with a form, and their forms

    cdef describe(self, Py_ssize_t number, leaf, uint64_t offset)
    cdef note_gaps(self, Field *field, dtype)
    cdef void clear_gaps(self, Py_ssize_t number, uint8_t *target, size_t size) noexcept nogil
    cdef void note_shape(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base) noexcept
    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner)
    cdef bint has_form(self, Py_ssize_t number) noexcept
    cdef describe_form(self, Field *field, leaf)
    cdef cnp.ndarray wrap_all(self, Py_ssize_t number, uint8_t *base, Lease owner)
    cdef cnp.ndarray wrap_row(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp row, owner)
    cdef tuple close_up(self, Field *field, uint8_t *start, uint32_t rows, const int64_t *good)
    cdef tuple pad(self, Field *field, form, uint8_t *start, uint32_t rows, const int64_t *good)
    cdef finish(self, Lease lease, uint32_t rows, cnp.ndarray good)
