# cython: language_level=3, boundscheck=False, wraparound=False
"""A part of a slot as a DLPack capsule.

The array may be smaller than its field: see `shape_of`.
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease
from ringfeed.spec._fields cimport read_shape


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


def capsule(
    Lease lease not None, uint64_t offset, tuple shape not None, uint8_t code, uint8_t bits
):
    """Return a DLPack capsule over the array at `offset`; it holds the slot by itself, in C."""
    cdef rf_field field
    cdef uint64_t size = (bits + 7) // 8
    if len(shape) > <Py_ssize_t>c.RF_MAX_AXES:
        raise ValueError(f"an array of {len(shape)} axes, at most {c.RF_MAX_AXES} are supported")
    field.address = lease.base() + offset
    field.type = rf_dlpack_type(code, bits, 1)
    field.axes = <int32_t>len(shape)
    for axis, length in enumerate(shape):
        field.shape[axis] = length
        size *= <uint64_t>length
    if offset + size > lease.ring.geometry.failures_at:
        raise ValueError(
            f"an array of {size} bytes at {offset} does not lie within the slot's fields"
        )
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


def shape_of(Lease lease not None, uint64_t offset, tuple most not None):
    """Return the shape of a row in the batch of a lease, where it varies up to `most`."""
    cdef cnp.npy_intp limits[33]
    cdef cnp.npy_intp shape[33]
    cdef int axis
    for axis in range(len(most)):
        limits[axis] = most[axis]
    read_shape(lease.base() + offset, <int>len(most), limits, shape)
    return tuple([shape[axis] for axis in range(len(most))])
