# cython: language_level=3, boundscheck=False, wraparound=False
"""Where the bytes of torch's tensors lie, by its C interface for DLPack; torch is not imported."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from ringfeed.spec cimport _writer
from ringfeed.spec._writer cimport LeafWriter, rf_dlpack_type

import sys


cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(object value)


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


cdef bint is_contiguous(const rf_dlpack_tensor *tensor, LeafWriter leaf) noexcept:
    """Whether a tensor has the shape of a leaf, and its elements lie one after another."""
    cdef int64_t stride = 1
    cdef int axis
    if tensor.axes != leaf.ndim:
        return False
    for axis in range(leaf.ndim - 1, -1, -1):
        if tensor.shape[axis] != leaf.shape[axis]:
            return False
        if tensor.strides[axis] != stride and tensor.shape[axis] != 1:
            return False
        stride *= tensor.shape[axis]
    return True


cdef const void *memory_of_tensor(value, LeafWriter leaf) except? NULL:
    """Return where the bytes of a leaf lie in a tensor; NULL where that is not certain."""
    cdef rf_dlpack_tensor tensor
    cdef rf_describe describe
    if Py_TYPE(value) is not tensor_type:
        note_tensor(value)
        if Py_TYPE(value) is not tensor_type:
            return NULL
    describe = describe_tensor
    if describe == NULL:  # another thread has noted the type, and no more yet
        return NULL
    try:
        describe(<PyObject *>value, &tensor)
    except Exception:  # a sparse one, say
        return NULL
    if (memcmp(&tensor.type, &leaf.tensor, sizeof(rf_dlpack_type)) != 0
            or tensor.device_type != RF_DLPACK_CPU
            or tensor.address == NULL or not is_contiguous(&tensor, leaf)):
        return NULL
    # numpy() refuses both. An int is never differentiated, and no public function gives one the bit
    # for "negated".
    if tensor.type.code == RF_DLPACK_FLOAT and (value.requires_grad or value.is_neg()):
        return NULL
    return <uint8_t *>tensor.address + tensor.byte_offset


_writer.memory_of_tensor = memory_of_tensor
