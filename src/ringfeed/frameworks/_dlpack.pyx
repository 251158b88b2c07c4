# cython: language_level=3, boundscheck=False, wraparound=False
"""An array of a slot as a DLPack capsule."""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease


cdef extern from "export/dlpack.h":
    struct rf_dlpack_type:
        uint8_t code, bits
        uint16_t lanes

    struct rf_dlpack:
        void (*deleter)(rf_dlpack *self)

    struct rf_field:
        uint8_t *address
        rf_dlpack_type type
        int32_t axes
        int64_t shape[33]


# The name of the capsules; a consumer renames one when it takes ownership.
cdef const char *NAME = "dltensor"


def capsule(Lease lease not None, cnp.ndarray array not None, uint8_t code, uint8_t bits):
    """Return a capsule over an array of `Fields.views`; it holds the slot by itself, in C."""
    cdef rf_field field
    cdef int axis
    field.address = <uint8_t *>cnp.PyArray_DATA(array)
    field.type = rf_dlpack_type(code, bits, 1)
    field.axes = cnp.PyArray_NDIM(array)
    for axis in range(field.axes):
        field.shape[axis] = cnp.PyArray_DIM(array, axis)
    cdef rf_dlpack *export = <rf_dlpack *>lease.export(<const c.rf_field *>&field)
    if export == NULL:
        raise MemoryError
    return PyCapsule_New(export, NAME, delete)


cdef void delete(object capsule) noexcept:
    """Delete an export that no framework has taken: one that takes it renames the capsule."""
    cdef rf_dlpack *export
    if PyCapsule_IsValid(capsule, NAME):
        export = <rf_dlpack *>PyCapsule_GetPointer(capsule, NAME)
        export.deleter(export)
