# cython: language_level=3, boundscheck=False, wraparound=False
"""Samples that differ in length into the fields of a slot: see cext/bytes/forms.h."""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from ringfeed.spec._formed_fields cimport (
    RF_NO_ROOM, Differing, FormField, rf_filled_by, rf_form, rf_note_row, rf_place_anew, rf_place_row)
from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Fields
from ringfeed.spec._values cimport array_of

cnp.import_array()

# As in _writer: below this a copy is cheaper than giving the GIL away and taking it back.
cdef size_t NOGIL_BYTES = 32768


cdef extern from "bytes/copy.h" nogil:
    void rf_copy(void *target, const void *source, size_t size, bint stream)
    void rf_stream_end()


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object value)
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL


cdef void copy_bytes(uint8_t *target, const void *source, size_t size, bint stream) noexcept:
    if size < NOGIL_BYTES:
        rf_copy(target, source, size, False)
        return
    with nogil:
        rf_copy(target, source, size, stream)
        if stream:
            rf_stream_end()


@cython.final
cdef class DifferingWriter(FormWriter):
    """Writes samples of leaves with a form; each is copied once, to where its row lies."""

    def __cinit__(self, spec, Fields fields not None, owner):
        from ringfeed.spec import form_values as values

        self.spec = spec
        self.leaves = spec.leaves
        self.fields = fields
        self.owner = owner
        self.formed = <Differing?>fields.formed
        self.values = values
        self.packed = <Packed *>calloc(fields.count, sizeof(Packed))
        self.strings = <Strings *>calloc(fields.count, sizeof(Strings))
        if self.packed == NULL or self.strings == NULL:
            raise MemoryError
        for number, form in fields.forms:
            self.strings[<Py_ssize_t>number] = {"bytes": BYTES, "text": TEXT}.get(form.name, NEITHER)

    def __dealloc__(self):
        free(self.packed)
        free(self.strings)

    cdef void begin(self, const c.rf_claim *claim) noexcept:
        """Begin to fill a ticket, or begin it again."""
        cdef Py_ssize_t number
        self.filled = rf_filled_by(claim)
        for number in range(self.fields.count):
            self.packed[number].next = claim.first_row * self.formed.fields[number].form.most[0]
            self.packed[number].row = -1

    cdef cnp.ndarray sample_of(self, Py_ssize_t number, value, int64_t index):
        """Return a sample as an array that fits, or refuse it."""
        array = array_of(value)
        if array is None or not self.fits(number, array):
            leaf = self.leaves[number]
            array = self.values.fitting(leaf, value, f"dataset[{index}]: {leaf.path}")
        return array

    cdef bint fits(self, Py_ssize_t number, cnp.ndarray array):
        cdef FormField *field = &self.formed.fields[number]
        cdef int axis
        cdef cnp.npy_intp length
        if cnp.PyArray_NDIM(array) != field.ndim:
            return False
        for axis in range(field.ndim):
            length = cnp.PyArray_DIM(array, axis)
            if length > field.limits[axis] or (length < field.limits[axis] and not field.may_be_less[axis]):
                return False
        got, dtype = <cnp.dtype>cnp.PyArray_DESCR(array), <cnp.dtype>self.fields.dtypes[number]
        return got is dtype or cnp.PyArray_EquivTypes(got, dtype)

    cdef int write(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index,
                   bint stream) except -1:
        """Write the value of a leaf of one sample."""
        if self.strings[number] != NEITHER and self.write_string(number, value, base, row, index, stream):
            return 0
        return self.put(number, self.sample_of(number, value, index), base, row, index, stream)

    cdef bint write_string(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index,
                           bint stream) except -1:
        """Write what are certainly bytes or text that fits; False leaves it to `sample_of`."""
        cdef FormField *field = &self.formed.fields[number]
        cdef const char *source
        cdef Py_ssize_t size = 0
        cdef int64_t length, start
        if self.strings[number] == BYTES and PyBytes_CheckExact(value):
            source = PyBytes_AS_STRING(value)
            size = PyBytes_GET_SIZE(value)
        elif self.strings[number] == TEXT and PyUnicode_CheckExact(value) and PyUnicode_IS_ASCII(value):
            source = PyUnicode_AsUTF8AndSize(value, &size)  # its own memory: of other text Python would keep a copy
        else:
            return False
        if size > field.limits[0]:
            return False
        length = size
        start = self.place_or_refuse(number, base + field.offset, row, &length, index)
        copy_bytes(base + field.offset + start, source, size, stream)
        return True

    cdef int put(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t index,
                 bint stream) except -1:
        cdef FormField *field = &self.formed.fields[number]
        cdef int64_t lengths[32]
        cdef int64_t start
        cdef int axis
        for axis in range(field.ndim):
            lengths[axis] = cnp.PyArray_DIM(array, axis)
        start = self.place_or_refuse(number, base + field.offset, row, lengths, index)
        return self.copy(number, array, base, row, start, stream)

    cdef int64_t place_or_refuse(self, Py_ssize_t number, uint8_t *field, Py_ssize_t row, const int64_t *lengths,
                                 int64_t index) except -2:
        cdef int64_t start = self.place(number, field, row, lengths)
        if start == RF_NO_ROOM:
            leaf = self.leaves[number]
            raise self.values.no_room(leaf, f"dataset[{index}]: {leaf.path}", lengths[0])
        return start

    cdef int64_t place(self, Py_ssize_t number, uint8_t *field, Py_ssize_t row, const int64_t *lengths) except -2:
        """Note a row's lengths, and return where it is written, in units from the start of its field."""
        cdef const rf_form *form = &self.formed.fields[number].form
        cdef Packed *packed = &self.packed[number]
        cdef int64_t first = row * form.most[0], start = first
        if form.total:
            return rf_place_row(field, form, &self.filled, <uint32_t>row, lengths[0])
        if not form.padded:
            start = packed.start if packed.row == row else min(packed.next, first)
            packed.row = row
            packed.start = start
            packed.next = start + lengths[0]
        rf_note_row(field, form, <uint32_t>row, start, lengths)
        return start

    cdef int copy(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t start,
                  bint stream) except -1:
        """Copy a sample to where its row lies."""
        cdef FormField *field = &self.formed.fields[number]
        cdef size_t size = cnp.PyArray_NBYTES(array)
        cdef uint8_t *target = base + field.offset + <size_t>start * field.form.unit
        cdef const void *source = cnp.PyArray_DATA(array)
        cdef cnp.ndarray place
        if field.form.axes > 1 or not cnp.PyArray_IS_C_CONTIGUOUS(array):
            target = base + field.offset + row * self.fields.fields[number].row_size if field.form.padded else target
            place = self.formed.wrap_row(number, base, row, self.owner)
            if self.fields.dtypes[number].isbuiltin != 1:  # as bytes, for the reasons in FieldWriter.put
                raw = f"V{field.form.itemsize}"
                place, array = place.view(raw), array.view(raw)
            cnp.PyArray_CopyInto(place, array)
            size = self.fields.fields[number].row_size if field.form.padded else size
        else:
            copy_bytes(target, source, size, stream)
        self.fields.clear_gaps(number, target, size)
        return 0

    cdef list samples_of(self, Py_ssize_t number, value, str where, Py_ssize_t most, int64_t index):
        """Return the samples of a whole batch as arrays that fit, and their total too, or refuse them."""
        leaf = self.leaves[number]
        found = [self.sample_of(number, sample, index) for sample in self.values.rows_of(leaf, value, where, most)]
        if leaf.form.total is not None:
            self.values.check_total(leaf, where, sum([len(sample) for sample in found]))
        return found

    cdef write_anew(self, Py_ssize_t number, list samples, uint8_t *base, Py_ssize_t first, rows, int64_t index):
        """Write samples into these rows, counted from the `first` of a ticket that is all of a batch."""
        cdef FormField *field = &self.formed.fields[number]
        rf_place_anew(base + field.offset, &field.form, &self.filled)
        self.packed[number].next = first * field.form.most[0]
        self.packed[number].row = -1
        for row, sample in zip(rows, samples):
            self.put(number, sample, base, first + <Py_ssize_t>row, index, False)

    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index, bint stream) except -1:
        """Write the samples of a whole batch: a list of them, a `Ragged` or an array; returns how many."""
        cdef Py_ssize_t row
        cdef FormField *field = &self.formed.fields[number]
        where = f"dataset[{index}]: {self.leaves[number].path.replace('sample', 'batch', 1)}"
        found = self.samples_of(number, value, where, most, index)
        if rows >= 0 and len(found) != rows:
            self.spec.batch_rows(number, len(found), rows, index)
        rf_place_anew(base + field.offset, &field.form, &self.filled)  # a worker that died here may have placed others
        for row in range(len(found)):
            self.put(number, found[row], base, row, index, stream)
        return len(found)
