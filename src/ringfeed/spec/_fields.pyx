# cython: language_level=3, boundscheck=False, wraparound=False
"""The fields of a slot, by NumPy's C API: as arrays, and values into them. What does not fit is `Spec`'s to judge."""

cimport cython
cimport numpy as cnp
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ringfeed.ring cimport _cring as c

import numpy as np

from ringfeed.spec.array import gaps_in

cnp.import_array()

# Below this a copy is cheaper than giving the GIL away and taking it back.
cdef size_t NOGIL_BYTES = 32768


cdef extern from "copy.h" nogil:
    void rf_copy(void *target, const void *source, size_t size, bint stream)
    void rf_stream_end()


cdef extern from "gather.h" nogil:
    void rf_gather(uint8_t *target, const uint8_t *source, Py_ssize_t stride, size_t row_size,
                   const int64_t *indices, size_t rows, bint stream)


cdef extern from "convert.h" nogil:
    float RF_NO_SCALE
    float RF_NO_OFFSET
    float RF_NO_MEAN
    float RF_NO_STD

    rf_conversion *rf_conversion_new(float scale, float offset, const float *mean, const float *std, size_t count,
                                     size_t channels, bint planar)
    void rf_convert(const rf_conversion *conversion, float *target, const uint8_t *source, Py_ssize_t stride,
                    const int64_t *indices, size_t rows, size_t size)


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *memory, int flags, object obj)
    PyTypeObject PyArray_Type


cdef int64_t *shape_before(uint8_t *field, int ndim) noexcept nogil:
    """Where a batch's own shape stands, of a field whose shape varies: as `Layout` says."""
    cdef size_t size = (ndim * sizeof(int64_t) + c.RF_FIELD_ALIGN - 1) // c.RF_FIELD_ALIGN * c.RF_FIELD_ALIGN
    return <int64_t *>(field - size)


cdef void read_shape(uint8_t *field, int ndim, const cnp.npy_intp *most, cnp.npy_intp *shape) noexcept nogil:
    """Read a batch's own shape; whatever a worker has left there, nobody reads beyond the field."""
    cdef const int64_t *recorded = shape_before(field, ndim)
    cdef int axis
    for axis in range(ndim):
        shape[axis] = max(0, min(recorded[axis], most[axis]))


def shape_of(lease, uint64_t offset, tuple most not None):
    """Return the shape that a leaf has in the batch of a lease, if it varies up to `most`; without the rows."""
    cdef cnp.npy_intp limits[33]
    cdef cnp.npy_intp shape[33]
    cdef uint8_t *base = <uint8_t *><uintptr_t>lease.address
    cdef int axis
    for axis in range(len(most)):
        limits[axis] = most[axis]
    read_shape(base + offset, <int>len(most), limits, shape)
    return tuple([shape[axis] for axis in range(len(most))])


@cython.final
cdef class Fields:
    """The fields of a slot: where each leaf of the spec lies, and as what."""

    def __cinit__(self, spec, offsets):
        self.count = len(spec.leaves)
        self.dtypes = [leaf.dtype for leaf in spec.leaves]
        self.fields = <Field *>calloc(self.count, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError
        for number, leaf in enumerate(spec.leaves):
            self.describe(number, leaf, offsets[number])

    cdef describe(self, Py_ssize_t number, leaf, uint64_t offset):
        cdef Field *field = &self.fields[number]
        if len(leaf.shape) > 32:
            raise ValueError(f"{leaf.path} has {len(leaf.shape)} axes, at most 32 are supported")
        field.offset = offset
        field.row_size = leaf.nbytes
        field.ndim = len(leaf.shape)
        for axis, length in enumerate(leaf.shape):
            field.shape[axis + 1] = length
        for axis in leaf.variable:
            field.varies = True
            field.may_be_less[axis] = True
        self.note_gaps(field, leaf.dtype)

    cdef note_gaps(self, Field *field, dtype):
        gaps = gaps_in(dtype)
        field.itemsize = dtype.itemsize
        field.gaps = <size_t *>calloc(2 * len(gaps) + 1, sizeof(size_t))
        if field.gaps == NULL:
            raise MemoryError
        for start, length in gaps:
            field.gaps[2 * field.gap_count] = start
            field.gaps[2 * field.gap_count + 1] = length
            field.gap_count += 1

    def __dealloc__(self):
        cdef Py_ssize_t number
        if self.fields != NULL:
            for number in range(self.count):
                free(self.fields[number].gaps)
        free(self.fields)

    cdef void clear_gaps(self, Py_ssize_t number, uint8_t *target, size_t size) noexcept nogil:
        """Fill the padding of elements with zeros: what else lies there is no part of a sample."""
        cdef Field *field = &self.fields[number]
        cdef size_t element, gap
        if not field.gap_count:
            return
        for element in range(size // field.itemsize):
            for gap in range(field.gap_count):
                memset(target + element * field.itemsize + field.gaps[2 * gap], 0, field.gaps[2 * gap + 1])

    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner):
        """Rows `first`, … of a field as an array that keeps `owner`; `rows` < 0: one row, without the row axis."""
        cdef Field *field = &self.fields[number]
        cdef cnp.dtype dtype = <cnp.dtype>self.dtypes[number]
        cdef int skipped = 1 if rows < 0 else 0
        cdef uint8_t *start = base + field.offset + first * field.row_size
        cdef cnp.npy_intp shape[33]
        memcpy(shape, field.shape, sizeof(shape))
        if field.varies:
            read_shape(base + field.offset, field.ndim, field.shape + 1, shape + 1)
        shape[0] = rows
        Py_INCREF(dtype)  # the constructor steals one
        array = PyArray_NewFromDescr(&PyArray_Type, dtype, field.ndim + 1 - skipped, shape + skipped, NULL, start,
                                     cnp.NPY_ARRAY_CARRAY, <object>NULL)
        cnp.set_array_base(array, owner)
        return array

    def views(self, lease, cnp.npy_intp rows):
        """Return an array a field over the first `rows` rows of the lease's slot; each keeps the lease."""
        cdef uint8_t *base = <uint8_t *><uintptr_t>lease.address
        return [self.wrap(number, base, 0, rows, lease) for number in range(self.count)]


# ---- values into fields ----


cdef rf_conversion *conversion_of(leaf) except NULL:
    """Return what makes float32 of the uint8 of a leaf."""
    cast, shape = leaf.cast, leaf.given_shape
    cdef size_t count = cast.channels or 1
    cdef size_t channels = shape[len(shape) - 1] if shape else 1
    cdef float scale = RF_NO_SCALE if cast.scale is None else cast.scale
    cdef float offset = RF_NO_OFFSET if cast.offset is None else cast.offset
    cdef cnp.ndarray mean = np.full(count, RF_NO_MEAN if cast.mean is None else cast.mean, np.float32)
    cdef cnp.ndarray std = np.full(count, RF_NO_STD if cast.std is None else cast.std, np.float32)
    cdef rf_conversion *made = rf_conversion_new(
        scale, offset, <const float *>cnp.PyArray_DATA(mean), <const float *>cnp.PyArray_DATA(std), count, channels,
        cast.layout is not None)
    if made == NULL:
        raise MemoryError
    return made


cdef bint same_type(cnp.ndarray array, cnp.dtype dtype):
    cdef cnp.dtype got = <cnp.dtype>cnp.PyArray_DESCR(array)
    return got is dtype or cnp.PyArray_EquivTypes(got, dtype)


cdef bint same_shape(cnp.ndarray array, int skipped, const Given *given):
    cdef int axis
    if cnp.PyArray_NDIM(array) != given.ndim + skipped:
        return False
    for axis in range(given.ndim):
        if cnp.PyArray_DIM(array, axis + skipped) != given.shape[axis]:
            return False
    return True


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


cdef void note_shape(cnp.ndarray array, const Field *field, uint8_t *base):
    """Write a batch's own shape down; like its rows, it is seen when the ticket is published."""
    cdef int64_t *place = shape_before(base + field.offset, field.ndim)
    cdef int axis
    for axis in range(field.ndim):
        place[axis] = cnp.PyArray_DIM(array, axis + 1)


cdef bint store_number(value, int number_type, uint8_t *target) except -1:
    """Store a plain Python number where its type is the natural one; False leaves it to the spec."""
    cdef int overflow = 0
    cdef int64_t whole
    cdef float single
    if number_type == cnp.NPY_INT64 and PyLong_CheckExact(value):
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        memcpy(target, &whole, sizeof(whole))
        return not overflow
    if number_type == cnp.NPY_FLOAT32 and PyFloat_CheckExact(value):
        single = <float><double>value
        memcpy(target, &single, sizeof(single))
        return not isinf(single)
    return False


@cython.final
cdef class FieldWriter:
    """Writes the values of leaves into the fields of slots; each array is copied once, or converted.

    `owner` is what the arrays over a slot keep. What is copied goes past the caches while `stream` is true.
    """

    def __cinit__(self, spec, offsets, owner):
        self.fields = Fields(spec, offsets)
        self.spec = spec
        self.owner = owner
        self.dtypes = [leaf.given_dtype for leaf in spec.leaves]
        self.given = <Given *>calloc(self.fields.count, sizeof(Given))
        if self.given == NULL:
            raise MemoryError
        for number, leaf in enumerate(spec.leaves):
            self.describe(&self.given[number], leaf)

    cdef describe(self, Given *given, leaf):
        given.ndim = len(leaf.given_shape)
        for axis, length in enumerate(leaf.given_shape):
            given.shape[axis] = length
        given.nbytes = leaf.nbytes // (<cnp.dtype>leaf.dtype).itemsize * (<cnp.dtype>leaf.given_dtype).itemsize
        is_number = not leaf.shape and leaf.dtype.isnative and leaf.cast is None
        given.number_type = (<cnp.dtype>leaf.dtype).type_num if is_number else -1
        given.conversion = NULL if leaf.cast is None else conversion_of(leaf)

    def __dealloc__(self):
        cdef Py_ssize_t number
        if self.given != NULL:
            for number in range(self.fields.count):
                free(self.given[number].conversion)
            free(self.given)

    cdef int put(self, cnp.ndarray array, uint8_t *target, size_t size, Py_ssize_t number, uint8_t *base,
                 cnp.npy_intp first, cnp.npy_intp rows) except -1:
        """Copy or convert an array of the right type and shape, however it is strided; `size`: of the array, in bytes.

        It is one row, or `rows` of them unless that is negative.
        """
        if self.given[number].conversion != NULL:
            return self.convert(array, <float *>target, size, number, 1 if rows < 0 else rows)
        cdef const void *source = cnp.PyArray_DATA(array)
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            place = self.fields.wrap(number, base, first, rows, self.owner)
            if self.fields.dtypes[number].isbuiltin != 1:
                # As bytes: NumPy skips those between fields, and knows no unaligned elements of others' dtypes.
                raw = f"V{cnp.PyArray_ITEMSIZE(array)}"
                place, array = place.view(raw), array.view(raw)
            cnp.PyArray_CopyInto(place, array)
        elif size < NOGIL_BYTES:
            memcpy(target, source, size)
        else:
            with nogil:
                rf_copy(target, source, size, self.stream)
                if self.stream:
                    rf_stream_end()
        if self.fields.fields[number].gap_count:
            self.fields.clear_gaps(number, target, size)
        return 0

    cdef void clear_row(self, Py_ssize_t number, uint8_t *base, Py_ssize_t row) noexcept:
        """Clear the padding of what a dataset has written into a row itself."""
        cdef Field *field = &self.fields.fields[number]
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
        if cnp.PyArray_CheckExact(value):
            if same_type(value, <cnp.dtype>self.dtypes[number]) and same_shape(value, 0, given):
                return self.put(value, target, given.nbytes, number, base, row, -1)
        elif given.number_type >= 0 and store_number(value, given.number_type, target):
            return 0
        return self.put(self.spec.array(number, value, index), target, given.nbytes, number, base, row, -1)

    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index) except -1:
        """Write a leaf of a whole batch, of `rows` rows or, if negative, of up to `most`; returns how many."""
        cdef Field *field = &self.fields.fields[number]
        cdef cnp.ndarray array
        if not (cnp.PyArray_CheckExact(value) and same_type(value, <cnp.dtype>self.dtypes[number])
                and fits(value, &self.given[number], field) and cnp.PyArray_DIM(value, 0) <= most):
            value = self.spec.batch_array(number, value, index, most)
        array = value
        if rows >= 0 and cnp.PyArray_DIM(array, 0) != rows:
            self.spec.batch_rows(number, cnp.PyArray_DIM(array, 0), rows, index)
        rows = cnp.PyArray_DIM(array, 0)
        if field.varies:
            note_shape(array, field, base)
        self.put(array, base + field.offset, cnp.PyArray_NBYTES(array), number, base, 0, rows)
        return rows

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
