# cython: language_level=3, boundscheck=False, wraparound=False
"""What a value is, by the C APIs of Python, NumPy and DLPack: what is not certain here is left to `Spec`."""

cimport numpy as cnp
from cpython.bool cimport PyBool_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check, PyUnicode_GET_LENGTH, PyUnicode_READ_CHAR
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import sys

import numpy as np

cnp.import_array()


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    const char *PyUnicode_AsUTF8AndSize(object value, Py_ssize_t *size) except NULL
    uint32_t *PyUnicode_AsUCS4(object value, uint32_t *target, Py_ssize_t size, bint with_null) except NULL
    PyTypeObject *Py_TYPE(object value)


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


cdef bint store_number(value, const Given *given, uint8_t *target) except -1:
    """Store a NumPy scalar or a Python number into a 0-d leaf that certainly takes it; False leaves it to the spec."""
    cdef int overflow = 0
    cdef long long whole
    if Py_TYPE(value) is given.scalar:
        memcpy(target, <char *><PyObject *>value + sizeof(PyObject), given.nbytes)
        return True
    if PyFloat_CheckExact(value):
        return rf_store_float(given.number, PyFloat_AS_DOUBLE(value), target)
    if PyBool_Check(value):
        if given.number != RF_NUMBER(c"b", 1):
            return False
        target[0] = value is True
        return True
    if PyLong_CheckExact(value) or rf_is_plain_int(value):
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and rf_store_int(given.number, whole, target)
    return False


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


# NumPy's own scalars that array_of() makes arrays of.
cdef frozenset SCALARS = frozenset(np.dtype(char).type for char in np.typecodes["All"] if char != "O")
cdef object masked_arrays = None  # imported with the first subclass of an array


cdef cnp.ndarray array_of(value):
    """Return what np.asarray makes of a value, where that runs no Python code; else None."""
    if cnp.PyArray_CheckExact(value):
        return value
    if cnp.PyArray_Check(value):
        return base_view(value)
    if isinstance(value, np.generic) and type(value) in SCALARS:
        return PyArray_FromAny(value, NULL, 0, 0, 0, NULL)
    note_tensor(value)
    return None


cdef cnp.ndarray base_view(cnp.ndarray array):
    global masked_arrays
    if masked_arrays is None:
        masked_arrays = np.ma.MaskedArray
    return None if isinstance(array, masked_arrays) else PyArray_View(array, NULL, &PyArray_Type)


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
    if Py_TYPE(value) is not tensor_type or given.tensor.lanes != 1:
        return NULL
    try:
        describe_tensor(<PyObject *>value, &tensor)
    except Exception:  # a sparse one, say
        return NULL
    if (memcmp(&tensor.type, &given.tensor, sizeof(rf_dlpack_type)) != 0 or tensor.device_type != RF_DLPACK_CPU
            or tensor.address == NULL or not is_contiguous(&tensor, given)):
        return NULL
    # numpy() refuses both. An int is never differentiated, and no public function gives one the bit for "negated".
    if tensor.type.code == RF_DLPACK_FLOAT and (value.requires_grad or value.is_neg()):
        return NULL
    return <uint8_t *>tensor.address + tensor.byte_offset
