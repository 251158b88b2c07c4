# cython: language_level=3, boundscheck=False, wraparound=False
"""Values into the fields of a slot, by NumPy's C API. What surely fits is written here; `Spec` judges the rest."""

cimport cython
cimport numpy as cnp
from cpython.ref cimport PyTypeObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field, Fields
from ringfeed.spec._values cimport Given, array_of, rf_conversion, rf_dlpack_type, same_shape, store_number

cnp.import_array()

# Below this a copy is cheaper than giving the GIL away and taking it back.
cdef size_t NOGIL_BYTES = 32768


cdef extern from "bytes/copy.h" nogil:
    void rf_copy(void *target, const void *source, size_t size, bint stream)
    void rf_stream_end()


cdef extern from "bytes/gather.h" nogil:
    void rf_gather(uint8_t *target, const uint8_t *source, Py_ssize_t stride, size_t row_size,
                   const int64_t *indices, size_t rows, bint stream)


cdef extern from "bytes/convert.h" nogil:
    rf_conversion *rf_conversion_new(float scale, float offset, const float *mean, const float *std, size_t count,
                                     size_t channels, bint planar)
    void rf_convert(const rf_conversion *conversion, float *target, const uint8_t *source, Py_ssize_t stride,
                    const int64_t *indices, size_t rows, size_t size)


cdef extern from "bytes/numbers.h":
    int RF_NUMBER(int kind, int size)


cdef rf_conversion *conversion_of(leaf) except NULL:
    """Return what makes float32 of the uint8 of a leaf."""
    cast, shape = leaf.cast, leaf.given_shape
    cdef cnp.ndarray numbers = cast.numbers()
    cdef const float *steps = <const float *>cnp.PyArray_DATA(numbers)
    cdef size_t count = (cnp.PyArray_SIZE(numbers) - 2) // 2
    cdef size_t channels = shape[len(shape) - 1] if shape else 1
    cdef rf_conversion *made = rf_conversion_new(
        steps[0], steps[1], steps + 2, steps + 2 + count, count, channels, cast.layout is not None)
    if made == NULL:
        raise MemoryError
    return made


cdef bint is_number(cnp.dtype dtype):
    """Whether a dtype is one of NumPy's own numbers; of one that was unpickled, `isbuiltin` does not say so."""
    return 0 <= dtype.type_num <= cnp.NPY_FLOAT16 and dtype.kind in b"biufc"


cdef bint same_type(cnp.ndarray array, cnp.dtype dtype):
    cdef cnp.dtype got = <cnp.dtype>cnp.PyArray_DESCR(array)
    return got is dtype or cnp.PyArray_EquivTypes(got, dtype)


cdef bint fits(cnp.ndarray array, const Given *given, const Field *field):
    """Whether an array is a whole batch of a field, whose rows are not looked at."""
    cdef int axis
    cdef cnp.npy_intp length
    if not field.varies:
        return same_shape(array, 1, given)
    if cnp.PyArray_NDIM(array) != given.ndim + 1:
        return False
    for axis in range(given.ndim):
        length = cnp.PyArray_DIM(array, axis + 1)
        if length > given.shape[axis] or (length < given.shape[axis] and not field.may_be_less[axis]):
            return False
    return True


@cython.auto_pickle(False)
cdef class OtherValues:
    """Writes values that are no arrays of a leaf's own, as their room does it."""

    cdef const void *memory_of(self, value, const Given *given) except? NULL:
        """Return where the bytes of a leaf lie in a value that is no array; NULL where that is not certain."""

    cdef bint write(self, value, cnp.ndarray array, const Given *given, uint8_t *target) except -1:
        """Write a value that certainly fits; `array`: what it is, or None. False leaves it to the spec."""


@cython.auto_pickle(False)
cdef class FormWriter:
    """Writes the samples of leaves that differ in length, as their room does it."""

    cdef void begin(self, const c.rf_claim *claim) noexcept:
        """Begin to fill a ticket, or begin it again."""

    cdef int write(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index,
                   bint stream) except -1:
        """Write the value of a leaf of one sample."""

    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index, bint stream) except -1:
        """Write the samples of a whole batch; returns how many."""

    cdef int put(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t index,
                 bint stream) except -1:
        """Write a sample that fits."""

    cdef write_anew(self, Py_ssize_t number, list samples, uint8_t *base, Py_ssize_t first, rows, int64_t index):
        """Write samples into these rows, counted from the `first` of a ticket that is all of a batch."""

    cdef cnp.ndarray sample_of(self, Py_ssize_t number, value, int64_t index):
        """Return a sample as an array that fits, or refuse it."""

    cdef list samples_of(self, Py_ssize_t number, value, str where, Py_ssize_t most, int64_t index):
        """Return the samples of a whole batch as arrays that fit, and their total too, or refuse them."""


@cython.final
cdef class FieldWriter:
    """Writes the values of leaves into the fields of slots; each array is copied once, or converted.

    `owner` is what the arrays over a slot keep. What is copied goes past the caches while `stream`
    is true.
    """

    def __cinit__(self, spec, offsets, owner):
        self.fields = Fields(spec, offsets)
        self.spec = spec
        self.owner = owner
        self.dtypes = [leaf.given_dtype for leaf in spec.leaves]
        self.count = self.fields.count
        self.given = <Given *>calloc(self.count, sizeof(Given))
        if self.given == NULL:
            raise MemoryError
        for number, leaf in enumerate(spec.leaves):
            self.describe(&self.given[number], leaf)
        if self.fields.forms:
            self.forms = self.fields.forms[0][1].open_writer(spec, self.fields, owner)

    cdef describe(self, Given *given, leaf):
        if leaf.form is not None:
            given.ndim = given.sample_ndim = -1  # no array is certainly a sample: `forms` looks at it
            return
        given.ndim = len(leaf.given_shape)
        given.sample_ndim = -1 if leaf.variable else given.ndim
        for axis, length in enumerate(leaf.given_shape):
            given.shape[axis] = length
        given.nbytes = leaf.nbytes // (<cnp.dtype>leaf.dtype).itemsize * (<cnp.dtype>leaf.given_dtype).itemsize
        if leaf.cast is None and leaf.dtype.isnative and is_number(leaf.dtype):
            self.describe_native(given, leaf, ord(leaf.dtype.kind), leaf.dtype.itemsize)
        if leaf.cast is None and leaf.dtype.isnative and leaf.dtype.kind in "SU" and not leaf.shape:
            given.text = ord(leaf.dtype.kind)
        given.conversion = NULL if leaf.cast is None else conversion_of(leaf)

    cdef describe_native(self, Given *given, leaf, char kind, int itemsize):
        """Note which numbers and tensors are the very elements of a leaf that is not converted."""
        if not leaf.shape and kind in b"biufc":
            given.scalar = <PyTypeObject *>leaf.dtype.type  # which the dtype keeps
            given.number = RF_NUMBER(kind, itemsize)
        if kind in b"biuf" and itemsize <= 8:
            given.tensor = rf_dlpack_type(b"iuf...b".index(kind), 8 * itemsize, 1)
            given.element = RF_NUMBER(kind, itemsize) if leaf.shape and not leaf.variable else 0
            given.casts_to = RF_NUMBER(kind, itemsize) if leaf.casts else 0

    def __dealloc__(self):
        cdef Py_ssize_t number
        if self.given != NULL:
            for number in range(self.count):  # not of `fields`, which the collector may have taken away
                free(self.given[number].conversion)
            free(self.given)

    cdef int put(self, cnp.ndarray array, uint8_t *target, size_t size, Py_ssize_t number, uint8_t *base,
                 cnp.npy_intp first, cnp.npy_intp rows) except -1:
        """Copy or convert an array of the right type and shape, however it is strided; `size`: of the array, in bytes.

        It is one row, or `rows` of them unless that is negative.
        """
        if self.given[number].conversion != NULL:
            return self.convert(array, <float *>target, size, number, 1 if rows < 0 else rows)
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            place = self.fields.wrap(number, base, first, rows, self.owner)
            if self.fields.dtypes[number].isbuiltin != 1:
                # As bytes: NumPy skips those between fields, and knows no unaligned elements of
                # others' dtypes.
                raw = f"V{cnp.PyArray_ITEMSIZE(array)}"
                place, array = place.view(raw), array.view(raw)
            cnp.PyArray_CopyInto(place, array)
        else:
            self.copy(target, cnp.PyArray_DATA(array), size)
        if self.fields.fields[number].gap_count:
            self.fields.clear_gaps(number, target, size)
        return 0

    cdef void copy(self, void *target, const void *source, size_t size) noexcept:
        if size < NOGIL_BYTES:
            memcpy(target, source, size)
            return
        with nogil:
            rf_copy(target, source, size, self.stream)
            if self.stream:
                rf_stream_end()

    cdef void clear_row(self, Py_ssize_t number, uint8_t *base, Py_ssize_t row) noexcept:
        """Clear the padding of what a dataset has written into a row itself."""
        cdef Field *field = &self.fields.fields[number]
        if not field.has_form:
            self.fields.clear_gaps(number, base + field.offset + row * field.row_size, field.row_size)

    cdef int convert(self, cnp.ndarray array, float *target, size_t size, Py_ssize_t number,
                     cnp.npy_intp rows) except -1:
        """Make float32 of an array of uint8."""
        cdef const rf_conversion *conversion = self.given[number].conversion
        array = cnp.PyArray_GETCONTIGUOUS(array)
        cdef const uint8_t *source = <const uint8_t *>cnp.PyArray_DATA(array)
        cdef size_t each = size // <size_t>rows if rows else 0
        if size * sizeof(float) < NOGIL_BYTES:
            rf_convert(conversion, target, source, each, NULL, rows, each)
        else:
            with nogil:
                rf_convert(conversion, target, source, each, NULL, rows, each)
        return 0

    cdef int write(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1:
        """Write the value of a leaf of one sample."""
        cdef Field *field = &self.fields.fields[number]
        cdef Given *given = &self.given[number]
        cdef uint8_t *target = base + field.offset + row * field.row_size
        cdef cnp.ndarray array
        if given.scalar != NULL and store_number(value, given, target):
            if field.gap_count:
                self.fields.clear_gaps(number, target, field.row_size)
            return 0
        array = array_of(value)
        if array is None or not (same_type(array, <cnp.dtype>self.dtypes[number]) and same_shape(array, 0, given)):
            if field.has_form:
                return self.forms.write(number, value, base, row, index, self.stream)
            if field.varies:
                self.write_batch(number, self.spec.batch_of_one(number, value, index), base, 1, 1, index)
                return 0
            if self.write_otherwise(value, array, given, target):
                return 0
            array = self.spec.array(number, value, index)
        return self.put(array, target, given.nbytes, number, base, row, -1)

    cdef bint write_otherwise(self, value, cnp.ndarray array, const Given *given, uint8_t *target) except -1:
        """Write a value that is no array of the leaf's own, where it certainly fits; False leaves it to the spec."""
        if self.others is None:
            from ringfeed.spec._coerced import CoercedValues  # only where it is needed

            self.others = CoercedValues()
        cdef const void *memory = NULL
        if array is None:
            memory = self.others.memory_of(value, given)
        if memory != NULL:
            self.copy(target, memory, given.nbytes)
            return True
        return self.others.write(value, array, given, target)

    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index) except -1:
        """Write a leaf of a whole batch, of `rows` rows or, if negative, of up to `most`; returns how many."""
        cdef Field *field = &self.fields.fields[number]
        cdef cnp.ndarray array
        if field.has_form:
            return self.forms.write_batch(number, value, base, rows, most, index, self.stream)
        array = array_of(value)
        if array is None or not (same_type(array, <cnp.dtype>self.dtypes[number])
                                 and fits(array, &self.given[number], field) and cnp.PyArray_DIM(array, 0) <= most):
            array = self.spec.batch_array(number, value, index, most)
        if rows >= 0 and cnp.PyArray_DIM(array, 0) != rows:
            self.spec.batch_rows(number, cnp.PyArray_DIM(array, 0), rows, index)
        rows = cnp.PyArray_DIM(array, 0)
        if field.varies:
            self.fields.note_shape(number, array, base)
        self.put(array, base + field.offset, cnp.PyArray_NBYTES(array), number, base, 0, rows)
        return rows

    cdef bint is_plain(self, Py_ssize_t number, array):
        """Whether each row of a column is, byte for byte, what the dataset gives for a leaf: see `gather`."""
        cdef Py_ssize_t axis, size
        if not isinstance(array, cnp.ndarray) or not same_shape(array, 1, &self.given[number]):
            return False
        size = cnp.PyArray_ITEMSIZE(array)
        for axis in range(cnp.PyArray_NDIM(array) - 1, 0, -1):
            if cnp.PyArray_DIM(array, axis) != 1 and cnp.PyArray_STRIDE(array, axis) != size:
                return False
            size *= cnp.PyArray_DIM(array, axis)
        return same_type(array, <cnp.dtype>self.dtypes[number])

    cdef gather(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t first, const int64_t *indices,
                Py_ssize_t rows):
        """Write rows of a resident array, whose rows are contiguous, without the GIL."""
        cdef Field *field = &self.fields.fields[number]
        cdef Given *given = &self.given[number]
        cdef uint8_t *target = base + field.offset + first * field.row_size
        cdef const uint8_t *source = <const uint8_t *>cnp.PyArray_DATA(array)
        cdef Py_ssize_t stride = cnp.PyArray_STRIDE(array, 0)
        with nogil:
            if given.conversion == NULL:
                rf_gather(target, source, stride, field.row_size, indices, rows, self.stream)
                self.fields.clear_gaps(number, target, rows * field.row_size)
            else:
                rf_convert(given.conversion, <float *>target, source, stride, indices, rows, given.nbytes)
