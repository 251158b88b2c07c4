# cython: language_level=3, boundscheck=False, wraparound=False
"""Leaves whose samples differ in length, into a slot and out of it: see cext/bytes/forms.h."""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease
from ringfeed.spec._fields cimport array_over
from ringfeed.spec._writer cimport copy, copy_strided

import numpy as np

cnp.import_array()


cdef extern from "bytes/forms.h" nogil:
    int64_t RF_NO_ROOM

    rf_filled rf_filled_by(const c.rf_claim *claim)
    int64_t rf_place_row(uint8_t *field, const rf_form *form, const rf_filled *filled,
                         uint32_t row, int64_t length)
    void rf_place_anew(uint8_t *field, const rf_form *form, const rf_filled *filled)
    void rf_note_row(uint8_t *field, const rf_form *form, uint32_t row, int64_t start,
                     const int64_t *lengths)
    int64_t rf_look_up_row(uint8_t *field, const rf_form *form, uint32_t row, int64_t *lengths)
    int64_t rf_needed(uint8_t *field, const rf_form *form, uint64_t batch, uint32_t rows)
    bint rf_close_up(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count,
                     int64_t *splits)
    void rf_read_lengths(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count,
                         int64_t *lengths)
    void rf_pad(uint8_t *field, const rf_form *form, const int64_t *rows, uint32_t count,
                const int64_t *lengths,
                const int64_t *shape)


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object value)
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL


@cython.final
cdef class FormField(Field):
    """The field of a leaf with a form."""

    def __cinit__(self, leaf, offset):
        cdef bytes padding = self.form.padding  # which the form keeps
        cdef int axis
        self.layout.axes = self.form.axes[len(self.form.axes) - 1] + 1
        self.layout.padded = self.form.is_padded
        self.layout.itemsize = self.layout.unit = self.dtype.itemsize
        for axis in range(self.ndim):
            self.may_be_less[axis] = axis in self.form.axes
            if axis < self.layout.axes:
                self.layout.most[axis] = self.shape[axis + 1]
            else:
                self.layout.unit *= <size_t>self.shape[axis + 1]
        self.layout.total = self.form.total or 0
        self.layout.padding = <const uint8_t *><char *>padding

    cdef cnp.ndarray wrap(self, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner):
        """Return the values that `finish` has made; `rows` < 0: one row that was just written."""
        cdef cnp.npy_intp shape[33]
        cdef cnp.npy_intp strides[33]
        cdef int64_t lengths[32]
        cdef uint8_t *start = base + self.offset
        cdef cnp.npy_intp step = self.layout.itemsize
        cdef int64_t place
        cdef int axis
        if rows >= 0:
            made = owner.finished[self.offset][0]
            for axis in range(len(made)):
                shape[axis] = made[axis]
            return array_over(self.dtype, <int>len(made), shape, NULL, start, owner)
        place = rf_look_up_row(start, &self.layout, <uint32_t>first, lengths)
        for axis in range(self.ndim - 1, -1, -1):
            strides[axis] = step
            shape[axis] = lengths[axis] if axis < self.layout.axes else self.shape[axis + 1]
            step *= self.shape[axis + 1]
        return array_over(self.dtype, self.ndim, shape, strides, start + place * strides[0], owner)

    def finish(self, Lease lease not None, uint32_t rows, cnp.ndarray good):
        """Make one array of the rows, of the `good` ones only unless that is None; once a lease.

        Rows are moved last, and no Python code runs until that is noted: Ctrl-C comes before, or
        after.
        """
        cdef const int64_t *numbers = NULL
        cdef uint8_t *start = lease.base() + self.offset
        if good is not None:
            numbers = <const int64_t *>cnp.PyArray_DATA(good)
        if lease.finished is None:
            lease.finished = {}
        if self.offset in lease.finished:
            return
        if self.layout.padded:
            lease.finished[self.offset] = pad(self, start, rows, numbers)
        else:
            lease.finished[self.offset] = close_up(self, start, rows, numbers)

    def needed(self, Lease lease not None, uint32_t rows):
        """Return what a batch needs whose rows did not fit into the total; else -1."""
        return rf_needed(lease.base() + self.offset, &self.layout, lease.taken.batch, rows)


@cython.final
cdef class FormWriter(LeafWriter):
    """Writes the samples of a leaf with a form; each is copied once, to where its row lies."""

    def __cinit__(self, spec, Py_ssize_t number, offset, owner):
        self.rows = <FormField>self.field
        for axis, length in enumerate(self.field.form.most):
            self.shape[axis] = length

    cdef int begin(self, const c.rf_claim *claim, bint stream) except -1:
        """Begin to fill a ticket, or begin it again."""
        self.stream = stream
        self.filled = rf_filled_by(claim)
        self.next_start = claim.first_row * self.rows.layout.most[0]
        self.last_row = -1
        return 0

    cdef int write(self, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1:
        """Write the value of one sample."""
        cdef cnp.ndarray array
        if not write_string(self, value, base, row, index):
            array = self.fitting(value)
            if array is None:
                array = self.spec.array(self.number, value, index)
            self.put_sample(array, base, row, index)
        return 0

    cdef int put_sample(
        self, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t index
    ) except -1:
        """Copy a sample that fits to where its row lies."""
        cdef int64_t lengths[32]
        cdef size_t size = cnp.PyArray_NBYTES(array)
        cdef uint8_t *target = base + self.field.offset
        cdef int axis
        for axis in range(self.ndim):
            lengths[axis] = cnp.PyArray_DIM(array, axis)
        target += <size_t>self.place(base, row, lengths, index) * self.rows.layout.unit
        if self.rows.layout.axes == 1 and cnp.PyArray_IS_C_CONTIGUOUS(array):
            copy(target, cnp.PyArray_DATA(array), size, self.stream)
        else:
            copy_strided(self.field.wrap(base, row, -1, self.owner), array)
            if self.rows.layout.padded:
                size = self.field.row_size
                target = base + self.field.offset + row * size
        return self.field.clear_gaps(target, size)

    cdef int64_t place(
        self, uint8_t *base, Py_ssize_t row, const int64_t *lengths, int64_t index
    ) except -2:
        """Note a row's lengths; return where it is written, in units from its field's start."""
        cdef const rf_form *layout = &self.rows.layout
        cdef uint8_t *field = base + self.field.offset
        cdef int64_t start = row * layout.most[0]
        if layout.total:
            start = rf_place_row(field, layout, &self.filled, <uint32_t>row, lengths[0])
            if start == RF_NO_ROOM:
                self.spec.no_room(self.number, lengths[0], index)
            return start
        if not layout.padded:
            start = self.last_start if self.last_row == row else min(self.next_start, start)
            self.last_row, self.last_start, self.next_start = row, start, start + lengths[0]
        rf_note_row(field, layout, <uint32_t>row, start, lengths)
        return start

    cdef int write_anew(
        self, list samples, uint8_t *base, Py_ssize_t first, rows, int64_t index
    ) except -1:
        """Write samples into these rows of a ticket that is all of a batch, from its `first`."""
        cdef Py_ssize_t row
        # A worker that died here may have placed others.
        rf_place_anew(base + self.field.offset, &self.rows.layout, &self.filled)
        self.next_start = first * self.rows.layout.most[0]
        self.last_row = -1
        for row, sample in zip(rows, samples):
            self.put_sample(sample, base, first + row, index)
        return 0

    cdef Py_ssize_t write_batch(
        self, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most, int64_t index
    ) except -1:
        """Write the samples of a batch: a list, a `Ragged` or an array; return how many."""
        samples = self.spec.samples(self.number, value, index, most)
        if rows >= 0 and len(samples) != rows:
            self.spec.batch_rows(self.number, len(samples), rows, index)
        self.write_anew(samples, base, 0, range(len(samples)), index)
        return len(samples)


cdef tuple close_up(FormField field, uint8_t *start, uint32_t rows, const int64_t *good):
    """Close the gaps between rows; returns the shape of all, and where each begins."""
    cdef cnp.ndarray splits = np.empty(rows + 1, np.int64)
    cdef int64_t *places = <int64_t *>cnp.PyArray_DATA(splits)
    cdef list shape = [0, *[field.shape[axis + 1] for axis in range(1, field.ndim)]]
    cdef bint done
    with nogil:
        done = rf_close_up(start, &field.layout, good, rows, places)
    if not done:
        raise MemoryError(f"no memory to put {rows} rows in their order")
    shape[0] = places[rows]
    return tuple(shape), splits


cdef tuple pad(FormField field, uint8_t *start, uint32_t rows, const int64_t *good):
    """Fill up what is short; returns the shape of all, and what comes beside them."""
    cdef int axes = field.layout.axes, axis
    cdef cnp.ndarray lengths = np.empty((rows, axes), np.int64)
    cdef int64_t *own = <int64_t *>cnp.PyArray_DATA(lengths)
    cdef int64_t shape[32]
    rf_read_lengths(start, &field.layout, good, rows, own)
    room = tuple([field.shape[axis + 1] for axis in range(field.ndim)])
    all_axes = (rows, *field.form.padded_shape(lengths, room))
    for axis in range(axes):
        shape[axis] = all_axes[axis + 1]
    made = all_axes, field.form.beside_of(lengths, all_axes)
    with nogil:
        rf_pad(start, &field.layout, good, rows, own, shape)
    return made


cdef bint write_string(
    FormWriter writer, value, uint8_t *base, Py_ssize_t row, int64_t index
) except -1:
    """Write what are certainly bytes or text that fits; False leaves it to others."""
    cdef const char *source
    cdef Py_ssize_t size = 0
    cdef int64_t length, start
    if PyBytes_CheckExact(value) and writer.field.form.name == "bytes":
        source = PyBytes_AS_STRING(value)
        size = PyBytes_GET_SIZE(value)
    elif (PyUnicode_CheckExact(value) and PyUnicode_IS_ASCII(value)
            and writer.field.form.name == "text"):
        # Its own memory: of other text Python would keep a copy.
        source = PyUnicode_AsUTF8AndSize(value, &size)
    else:
        return False
    if size > writer.shape[0]:
        return False
    length = size
    start = writer.place(base, row, &length, index)
    copy(base + writer.field.offset + start, source, size, writer.stream)
    return True
