"""What the writer of leaves with a form sees of their fields."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease
from ringfeed.spec._fields cimport FormFields


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
    int64_t rf_refused(uint8_t *field, const rf_form *form, uint64_t batch, uint32_t row)
    int64_t rf_needed(uint8_t *field, const rf_form *form, uint64_t batch, uint32_t rows)
    bint rf_close_up(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count, int64_t *splits)
    void rf_read_lengths(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count, int64_t *lengths)
    void rf_pad(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count, const int64_t *lengths,
                const int64_t *shape)


cdef struct FormField:  # of a leaf without a form: zeros
    uint64_t offset             # in the slot
    int ndim                    # of a sample
    cnp.npy_intp shape[32]      # that a slot has room for
    int64_t limits[32]          # of a sample, by axis
    uint8_t may_be_less[32]     # likewise
    rf_form form


cdef class Differing(FormFields):
    cdef FormField *fields
    cdef Py_ssize_t count
    cdef list dtypes
    cdef tuple forms  # the numbers of leaves with a form, and their forms

    cdef describe(self, FormField *field, leaf, uint64_t offset)
    cdef tuple close_up(self, FormField *field, uint8_t *start, uint32_t rows, const int64_t *good)
    cdef tuple pad(self, FormField *field, form, uint8_t *start, uint32_t rows, const int64_t *good)
