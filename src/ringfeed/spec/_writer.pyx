# cython: language_level=3, boundscheck=False, wraparound=False
"""Values of a leaf into its field, by the C APIs of Python and NumPy.

What surely fits is written here; `Spec` converts or refuses the rest.
"""

cimport numpy as cnp
from cpython.bool cimport PyBool_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE, PyList_GetItemRef
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject, PyTypeObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_GET_LENGTH
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport open_field

import sys

import numpy as np

cnp.import_array()

# Below this a copy is cheaper than giving the GIL away and taking it back.
cdef size_t NOGIL_BYTES = 32768


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    PyTypeObject *Py_TYPE(object value)
    uint32_t *PyUnicode_AsUCS4(object value, uint32_t *target, Py_ssize_t length,
                               bint with_nul) except NULL
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL
    bint PyUnicode_IS_ASCII(object value)


cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_View(cnp.ndarray array, void *dtype, PyTypeObject *subtype)
    object PyArray_FromAny(object value, void *dtype, int least, int most, int flags, void *context)
    PyTypeObject PyArray_Type


cdef extern from "numpy/arrayscalars.h":
    """
    _Static_assert(offsetof(PyLongDoubleScalarObject, obval) == sizeof(PyObject) &&
                       offsetof(PyCLongDoubleScalarObject, obval) == sizeof(PyObject),
                   "store_number finds the number of a scalar behind the head of its object");
    """


cdef extern from "bytes/numbers.h":
    int RF_NUMBER(int kind, int size)
    bint rf_store_int(int number, long long value, void *target)
    bint rf_store_float(int number, double value, void *target)
    bint rf_is_plain_int(object value)


cdef extern from "bytes/copy.h" nogil:
    void rf_copy(void *target, const void *source, size_t size, bint stream)
    void rf_stream_end()


cdef extern from "bytes/gather.h" nogil:
    void rf_gather(uint8_t *target, const uint8_t *source, Py_ssize_t stride, size_t row_size,
                   const int64_t *indices, size_t rows, bint stream)


cdef extern from "bytes/convert.h" nogil:
    rf_conversion *rf_conversion_new(float scale, float offset, const float *mean,
                                     const float *std, size_t count,
                                     size_t channels, bint planar)
    void rf_convert(const rf_conversion *conversion, float *target, const uint8_t *source,
                    Py_ssize_t stride,
                    const int64_t *indices, size_t rows, size_t size)


# ---- arrays ----

# NumPy's own scalars that array_of() makes arrays of.
cdef frozenset SCALARS = frozenset(
    np.dtype(char).type for char in np.typecodes["All"] if char != "O")


cdef cnp.ndarray array_of(value):
    """Return what np.asarray makes of a value, where that runs no Python code; else None."""
    if cnp.PyArray_CheckExact(value):
        return value
    if cnp.PyArray_Check(value):
        # Where their module was not imported, which takes 50 ms, there are no masked arrays.
        if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
            return None
        return PyArray_View(value, NULL, &PyArray_Type)
    if isinstance(value, np.generic) and type(value) in SCALARS:
        return PyArray_FromAny(value, NULL, 0, 0, 0, NULL)
    return None


cdef bint same_type(cnp.ndarray array, cnp.dtype dtype):
    cdef cnp.dtype got = <cnp.dtype>cnp.PyArray_DESCR(array)
    return got is dtype or cnp.PyArray_EquivTypes(got, dtype)


cdef void copy(void *target, const void *source, size_t size, bint stream) noexcept:
    if size < NOGIL_BYTES:
        memcpy(target, source, size)
        return
    with nogil:
        rf_copy(target, source, size, stream)
        if stream:
            rf_stream_end()


cdef int copy_strided(cnp.ndarray place, cnp.ndarray array) except -1:
    """Copy an array of any strides into another of its dtype and shape."""
    if (<cnp.dtype>cnp.PyArray_DESCR(place)).isbuiltin != 1:
        # As bytes: NumPy skips those between fields, and knows no unaligned elements of others'
        # dtypes.
        raw = f"V{cnp.PyArray_ITEMSIZE(array)}"
        place, array = place.view(raw), array.view(raw)
    cnp.PyArray_CopyInto(place, array)
    return 0


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


# ---- a leaf ----


cdef list writers_of(spec, offsets, owner):
    """Return a writer for each leaf of a spec; `owner` is what the arrays over a slot keep."""
    found = []
    for number, leaf in enumerate(spec.leaves):
        if leaf.form is None:
            found.append(LeafWriter(spec, number, offsets[number], owner))
        else:
            from ringfeed.spec._forms import FormWriter  # only where it is needed

            found.append(FormWriter(spec, number, offsets[number], owner))
    return found


cdef class LeafWriter:
    """Writes the values of one leaf into its field; each array is copied once, or converted."""

    def __cinit__(self, spec, Py_ssize_t number, uint64_t offset, owner):
        leaf = spec.leaves[number]
        self.field = open_field(leaf, offset)
        self.spec, self.number, self.owner = spec, number, owner
        self.dtype = leaf.given_dtype
        self.ndim = len(leaf.given_shape)
        for axis, length in enumerate(leaf.given_shape):
            self.shape[axis] = length
        self.nbytes = leaf.nbytes // self.field.dtype.itemsize * self.dtype.itemsize
        if leaf.cast is not None:
            self.conversion = conversion_of(leaf)
        elif leaf.dtype.isnative:
            describe_elements(self, leaf)

    def __dealloc__(self):
        free(self.conversion)

    cdef int begin(self, const c.rf_claim *claim, bint stream) except -1:
        """Begin to fill a ticket; what is copied goes past the caches where `stream` is true."""
        self.stream = stream
        return 0

    cdef cnp.ndarray fitting(self, value):
        """Return a sample as an array where it certainly is one of the leaf; else None."""
        cdef cnp.ndarray array = array_of(value)
        if array is None and self.kind and PyList_CheckExact(value):
            array = array_of_list(self, value)
        if array is None or not same_type(array, self.dtype) or not has_shape(self, array, 0):
            return None
        return array

    cdef int write(self, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1:
        """Write the value of one sample."""
        cdef uint8_t *target = base + self.field.offset + row * self.field.row_size
        cdef const void *memory
        cdef cnp.ndarray array
        if not self.ndim and (store_number(self, value, target) if self.kind
                              else self.text and store_text(self, value, target)):
            return self.field.clear_gaps(target, self.field.row_size)
        if self.field.varies:
            self.write_batch(self.spec.batch_of_one(self.number, value, index), base, 1, 1, index)
            return 0
        array = self.fitting(value)
        if array is None:
            memory = memory_of(self, value)
            if memory != NULL:
                copy(target, memory, self.nbytes, self.stream)
                return 0
            array = self.spec.array(self.number, value, index)
        return self.put(array, base, row, -1)

    cdef Py_ssize_t write_batch(
        self, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most, int64_t index
    ) except -1:
        """Write a whole batch of `rows` rows or, if negative, of up to `most`; return how many."""
        cdef cnp.ndarray array = array_of(value)
        if array is None or not (same_type(array, self.dtype) and has_shape(self, array, 1)
                                 and cnp.PyArray_DIM(array, 0) <= most):
            array = self.spec.batch_array(self.number, value, index, most)
        if rows >= 0 and cnp.PyArray_DIM(array, 0) != rows:
            self.spec.batch_rows(self.number, cnp.PyArray_DIM(array, 0), rows, index)
        if self.field.varies:
            self.field.note_shape(array, base)
        self.put(array, base, 0, cnp.PyArray_DIM(array, 0))
        return cnp.PyArray_DIM(array, 0)

    cdef int put(
        self, cnp.ndarray array, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows
    ) except -1:
        """Copy or convert an array that fits, of any strides: `rows` rows, or one if negative."""
        cdef uint8_t *target = base + self.field.offset + first * self.field.row_size
        cdef size_t size = cnp.PyArray_NBYTES(array), count = 1 if rows < 0 else rows
        cdef const uint8_t *source
        if self.conversion != NULL:
            if count:
                array = cnp.PyArray_GETCONTIGUOUS(array)
                size //= count
                source = <const uint8_t *>cnp.PyArray_DATA(array)
                convert(self, <float *>target, source, size, NULL, count, size)
            return 0
        if cnp.PyArray_IS_C_CONTIGUOUS(array):
            copy(target, cnp.PyArray_DATA(array), size, self.stream)
        else:
            copy_strided(self.field.wrap(base, first, rows, self.owner), array)
        return self.field.clear_gaps(target, size)

    cdef int clear_row(self, uint8_t *base, Py_ssize_t row) except -1:
        """Clear the padding of what a dataset has written into a row itself."""
        cdef size_t row_size = self.field.row_size
        if self.field.form is None:
            self.field.clear_gaps(base + self.field.offset + row * row_size, row_size)
        return 0

    cdef bint is_plain(self, array):
        """Whether each row of a column is, byte for byte, a sample of the leaf: see `gather`."""
        cdef Py_ssize_t axis, size
        if not isinstance(array, cnp.ndarray) or self.field.varies or not has_shape(self, array, 1):
            return False
        size = cnp.PyArray_ITEMSIZE(array)
        for axis in range(cnp.PyArray_NDIM(array) - 1, 0, -1):
            if cnp.PyArray_DIM(array, axis) != 1 and cnp.PyArray_STRIDE(array, axis) != size:
                return False
            size *= cnp.PyArray_DIM(array, axis)
        return same_type(array, self.dtype)

    cdef int gather(self, cnp.ndarray array, uint8_t *base, Py_ssize_t first,
                    const int64_t *indices,
                    Py_ssize_t rows) except -1:
        """Write rows of a resident array, whose rows are contiguous."""
        cdef size_t row_size = self.field.row_size
        cdef uint8_t *target = base + self.field.offset + first * row_size
        cdef const uint8_t *source = <const uint8_t *>cnp.PyArray_DATA(array)
        cdef Py_ssize_t stride = cnp.PyArray_STRIDE(array, 0)
        if self.conversion != NULL:
            convert(self, <float *>target, source, stride, indices, rows, self.nbytes)
            return 0
        with nogil:
            rf_gather(target, source, stride, row_size, indices, rows, self.stream)
        return self.field.clear_gaps(target, rows * row_size)


cdef describe_elements(LeafWriter writer, leaf):
    """Note which numbers, strings and tensors are the very elements of a leaf."""
    cdef int kind = ord(leaf.dtype.kind), itemsize = leaf.dtype.itemsize
    writer.text = kind if kind in b"SU" else 0
    # One of NumPy's own numbers; of a dtype that was unpickled, `isbuiltin` does not say so.
    if not (0 <= writer.dtype.type_num <= cnp.NPY_FLOAT16 and kind in b"biufc"):
        return
    writer.scalar = <PyTypeObject *>leaf.dtype.type  # which the dtype keeps
    writer.kind = RF_NUMBER(kind, itemsize)
    if leaf.form is None and kind != c"c" and itemsize <= 8:
        writer.tensor = rf_dlpack_type(b"iuf...b".index(kind), 8 * itemsize, 1)


cdef bint has_shape(LeafWriter leaf, cnp.ndarray array, int skipped) noexcept:
    """Whether an array has a sample's shape behind `skipped` axes, or less where it may."""
    cdef int axis
    cdef cnp.npy_intp length
    if cnp.PyArray_NDIM(array) != leaf.ndim + skipped:
        return False
    for axis in range(leaf.ndim):
        length = cnp.PyArray_DIM(array, axis + skipped)
        if length > leaf.shape[axis]:
            return False
        if length < leaf.shape[axis] and not leaf.field.may_be_less[axis]:
            return False
    return True


cdef bint store_number(LeafWriter leaf, value, uint8_t *target) except -1:
    """Store a number that a leaf certainly takes; False leaves it to the spec."""
    cdef int overflow = 0
    cdef long long whole
    if Py_TYPE(value) is leaf.scalar:
        memcpy(target, <char *><PyObject *>value + sizeof(PyObject), leaf.dtype.itemsize)
        return True
    if PyFloat_CheckExact(value):
        return rf_store_float(leaf.kind, PyFloat_AS_DOUBLE(value), target)
    if PyBool_Check(value):
        if leaf.kind != RF_NUMBER(c"b", 1):
            return False
        target[0] = value is True
        return True
    if PyLong_CheckExact(value) or rf_is_plain_int(value):
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and rf_store_int(leaf.kind, whole, target)
    return False


cdef cnp.ndarray array_of_list(LeafWriter leaf, list value):
    """Return a list of numbers, or of such lists, as an array; None where one may not fit."""
    cdef cnp.npy_intp shape[32]
    cdef cnp.ndarray array
    cdef uint8_t *target
    cdef object first = value
    cdef int axis
    for axis in range(leaf.ndim):
        if not PyList_CheckExact(first) or not PyList_GET_SIZE(first):
            return None
        shape[axis] = PyList_GET_SIZE(first)
        first = PyList_GetItemRef(first, 0)
    array = cnp.PyArray_SimpleNew(leaf.ndim, shape, leaf.dtype.type_num)
    target = <uint8_t *>cnp.PyArray_DATA(array)
    return array if store_list(leaf, value, shape, 0, &target) else None


cdef bint store_list(LeafWriter leaf, value, const cnp.npy_intp *shape, int axis,
                     uint8_t **target) except -1:
    """Store the numbers of nested lists, one behind the other."""
    cdef Py_ssize_t number
    if axis == leaf.ndim:
        if not store_number(leaf, value, target[0]):
            return False
        target[0] += leaf.dtype.itemsize
        return True
    if not PyList_CheckExact(value) or PyList_GET_SIZE(value) != shape[axis]:
        return False
    for number in range(shape[axis]):
        # With a reference of its own: without the GIL another thread may replace it.
        if not store_list(leaf, PyList_GetItemRef(value, number), shape, axis + 1, target):
            return False
    return True


cdef bint store_text(LeafWriter leaf, value, uint8_t *target) except -1:
    """Store a string that an S or U leaf certainly takes; False leaves it to the spec."""
    cdef const char *source
    cdef Py_ssize_t size = 0
    if leaf.text == c"U":
        if not PyUnicode_CheckExact(value):
            return False
        size = 4 * PyUnicode_GET_LENGTH(value)
        if size > <Py_ssize_t>leaf.nbytes or (size and value[size // 4 - 1] == "\0"):
            return False
        if size:
            PyUnicode_AsUCS4(value, <uint32_t *>target, size // 4, False)
    else:
        if PyBytes_CheckExact(value):
            source, size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        elif PyUnicode_CheckExact(value) and PyUnicode_IS_ASCII(value):
            # Its own memory: of other text Python would keep a copy.
            source = PyUnicode_AsUTF8AndSize(value, &size)
        else:
            return False
        if size > <Py_ssize_t>leaf.nbytes or (size and source[size - 1] == 0):
            return False
        memcpy(target, source, size)
    memset(target + size, 0, leaf.nbytes - size)
    return True


cdef void convert(LeafWriter leaf, float *target, const uint8_t *source, Py_ssize_t stride,
                  const int64_t *indices,
                  size_t rows, size_t size) noexcept:
    """Make float32 of `rows` samples of `size` bytes."""
    if rows * size * sizeof(float) < NOGIL_BYTES:
        rf_convert(leaf.conversion, target, source, stride, indices, rows, size)
        return
    with nogil:
        rf_convert(leaf.conversion, target, source, stride, indices, rows, size)


cdef const void *memory_of(LeafWriter leaf, value) except? NULL:
    """Return where the bytes of the leaf lie in a tensor; NULL where that is not certain."""
    if leaf.tensor.lanes == 0 or cnp.PyArray_Check(value):
        return NULL
    if memory_of_tensor == NULL:
        __import__("ringfeed.spec._tensors")  # it sets the function; only where it is needed
    return memory_of_tensor(value, leaf)
