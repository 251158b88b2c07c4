# cython: language_level=3, boundscheck=False, wraparound=False
"""Values that are no arrays of a leaf's own, by the C APIs of Python, NumPy and DLPack, where they certainly fit."""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check, PyUnicode_GET_LENGTH, PyUnicode_READ_CHAR
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ringfeed.spec._values cimport Given, rf_dlpack_type, same_shape, store_number
from ringfeed.spec._writer cimport OtherValues

import sys

cnp.import_array()

# As in spec._writer: below this a conversion is cheaper than giving the GIL away and taking it
# back.
cdef size_t NOGIL_BYTES = 32768


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL
    uint32_t *PyUnicode_AsUCS4(object value, uint32_t *target, Py_ssize_t size, bint with_null) except NULL
    PyTypeObject *Py_TYPE(object value)


cdef extern from "bytes/cast.h" nogil:
    int RF_NUMBER(int kind, int size)
    bint rf_cast(int from_, int to, const void *source, void *target, size_t count)


cdef extern from "export/exchange.h":
    int RF_DLPACK_CPU
    int RF_DLPACK_FLOAT
    int RF_EXCHANGE_MAJOR
    const char *RF_EXCHANGE_NAME

    struct rf_dlpack_tensor:
        void *address
        int32_t device_type, axes
        rf_dlpack_type type
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

    ctypedef int (*rf_describe)(PyObject *value, rf_dlpack_tensor *tensor) except -1

    struct rf_exchange:
        uint32_t major
        rf_describe describe


@cython.final
@cython.auto_pickle(False)
cdef class CoercedValues(OtherValues):
    """Writes what certainly fits: tensors, text, lists of numbers, and numbers of another dtype under cast=True."""

    cdef const void *memory_of(self, value, const Given *given) except? NULL:
        """Return where the bytes of a leaf lie in a tensor; NULL where that is not certain."""
        if given.tensor.lanes != 1:
            return NULL
        cdef const void *memory = memory_of_tensor(value, given)
        if memory == NULL:
            note_tensor(value)
        return memory

    cdef bint write(self, value, cnp.ndarray array, const Given *given, uint8_t *target) except -1:
        if given.text:
            return store_text(value, given, target)
        if array is None:
            return given.element and store_list(value, given, target)
        return given.casts_to and same_shape(array, 0, given) and cast(array, given, target)


cdef bint cast(cnp.ndarray array, const Given *given, uint8_t *target) except -1:
    """Write an array of numbers of another type; False where one does not certainly arrive."""
    cdef cnp.dtype dtype = <cnp.dtype>cnp.PyArray_DESCR(array)
    cdef size_t count = cnp.PyArray_SIZE(array)
    cdef int of = RF_NUMBER(dtype.kind, cnp.PyArray_ITEMSIZE(array))
    cdef bint done
    if not (cnp.PyArray_ISNOTSWAPPED(array) and cnp.PyArray_ISALIGNED(array)):
        return False
    array = cnp.PyArray_GETCONTIGUOUS(array)
    cdef const void *source = cnp.PyArray_DATA(array)
    if count < NOGIL_BYTES // sizeof(double):
        return rf_cast(of, given.casts_to, source, target, count)
    with nogil:
        done = rf_cast(of, given.casts_to, source, target, count)
    return done


cdef bint store_text(value, const Given *given, uint8_t *target) except -1:
    """Store a string into a 0-d leaf that certainly takes it, padded with NULs; False leaves it to the spec."""
    cdef Py_ssize_t size
    cdef const char *text
    if PyBytes_Check(value) and given.text == c"S":
        return store_padded(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), given, target)
    if not PyUnicode_Check(value):
        return False
    size = PyUnicode_GET_LENGTH(value)
    if given.text == c"S":
        try:
            text = PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError:
            return False
        return store_padded(text, size, given, target)
    if <size_t>size * sizeof(uint32_t) > given.nbytes or (size and PyUnicode_READ_CHAR(value, size - 1) == 0):
        return False
    memset(target, 0, given.nbytes)
    PyUnicode_AsUCS4(value, <uint32_t *>target, given.nbytes // sizeof(uint32_t), False)
    return True


cdef bint store_padded(const char *text, Py_ssize_t size, const Given *given, uint8_t *target) noexcept:
    if <size_t>size > given.nbytes or (size and text[size - 1] == 0):  # which could not be told from padding
        return False
    memcpy(target, text, size)
    memset(target + size, 0, given.nbytes - size)
    return True


cdef bint store_list(value, const Given *given, uint8_t *target) except -1:
    """Store a list of numbers, or of such lists, into a leaf that certainly takes all; False leaves it to the spec."""
    if not PyList_CheckExact(value) and not PyTuple_CheckExact(value):
        return False
    return store_items(value, given, 0, target) != NULL


cdef uint8_t *store_items(value, const Given *given, int axis, uint8_t *target) except? NULL:
    """Store one axis of a list; returns where the next number goes, NULL where one does not certainly fit."""
    cdef cnp.npy_intp number
    cdef Given one = given[0]
    one.number, one.scalar = given.element, NULL
    if given.nbytes == 0:
        return NULL
    for number in range(given.shape[axis]):
        item = item_of(value, number, given.shape[axis])
        if item is None:
            return NULL
        if axis + 1 < given.ndim:
            target = store_items(item, given, axis + 1, target)
            if target == NULL:
                return NULL
            continue
        if not store_number(item, &one, target):
            return NULL
        target += given.element & 0xff
    return target


cdef item_of(value, Py_ssize_t number, Py_ssize_t length):
    """Return an item of a list or tuple of a length; None where it is none."""
    if PyList_CheckExact(value) and PyList_GET_SIZE(value) == length:
        return <object>PyList_GET_ITEM(value, number)
    if PyTuple_CheckExact(value) and PyTuple_GET_SIZE(value) == length:
        return <object>PyTuple_GET_ITEM(value, number)
    return None


# ---- torch's tensors, without an import of torch ----


cdef PyTypeObject *tensor_type = NULL  # torch.Tensor, once a value was one
cdef object tensor_kept = None         # so that its address stays its own
cdef rf_describe describe_tensor = NULL


cdef int note_tensor(value) except -1:
    """Remember the type of a value if it is torch.Tensor and shows C how to describe one."""
    global tensor_type, tensor_kept, describe_tensor
    cdef const rf_exchange *exchange
    found = getattr(sys.modules.get("torch"), "Tensor", None)
    if type(value) is not found or tensor_kept is not None:
        return 0
    capsule = getattr(found, "__dlpack_c_exchange_api__", None)
    if not PyCapsule_IsValid(capsule, RF_EXCHANGE_NAME):
        return 0
    exchange = <const rf_exchange *>PyCapsule_GetPointer(capsule, RF_EXCHANGE_NAME)
    if exchange.major == RF_EXCHANGE_MAJOR and exchange.describe != NULL:
        tensor_kept, tensor_type, describe_tensor = found, <PyTypeObject *>found, exchange.describe
    return 0


cdef bint is_contiguous(const rf_dlpack_tensor *tensor, const Given *given) noexcept:
    """Whether a tensor has the shape of a leaf, and its elements lie one after another."""
    cdef int64_t stride = 1
    cdef int axis
    if tensor.axes != given.sample_ndim:
        return False
    for axis in range(given.ndim - 1, -1, -1):
        if tensor.shape[axis] != given.shape[axis] or (tensor.strides[axis] != stride and tensor.shape[axis] != 1):
            return False
        stride *= tensor.shape[axis]
    return True


cdef const void *memory_of_tensor(value, const Given *given) except? NULL:
    """Return where the bytes of a leaf lie in a tensor; NULL where that is not certain."""
    cdef rf_dlpack_tensor tensor
    if Py_TYPE(value) is not tensor_type:
        return NULL
    try:
        describe_tensor(<PyObject *>value, &tensor)
    except Exception:  # a sparse one, say
        return NULL
    if (memcmp(&tensor.type, &given.tensor, sizeof(rf_dlpack_type)) != 0 or tensor.device_type != RF_DLPACK_CPU
            or tensor.address == NULL or not is_contiguous(&tensor, given)):
        return NULL
    # numpy() refuses both. An int is never differentiated, and no public function gives one the bit
    # for "negated".
    if tensor.type.code == RF_DLPACK_FLOAT and (value.requires_grad or value.is_neg()):
        return NULL
    return <uint8_t *>tensor.address + tensor.byte_offset
