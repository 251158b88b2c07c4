"""What other extensions of ringfeed see of values."""

cimport numpy as cnp
from cpython.ref cimport PyTypeObject
from libc.stdint cimport uint8_t, uint16_t


cdef extern from "bytes/convert.h" nogil:
    struct rf_conversion:
        pass


cdef extern from "export/exchange.h":
    struct rf_dlpack_type:
        uint8_t code, bits
        uint16_t lanes


cdef struct Given:  # what the dataset gives for a leaf
    size_t nbytes
    int ndim
    int sample_ndim            # -1 where no array is certainly a sample, as its shape may vary
    cnp.npy_intp shape[32]
    int number                 # RF_NUMBER of a 0-d leaf which plain Python numbers may fill, or 0
    int element                # RF_NUMBER of a leaf with axes which lists of plain Python numbers may fill, or 0
    int casts_to               # RF_NUMBER of a leaf into which other types are converted, or 0
    char text                  # "S" or "U" of a 0-d leaf which strings may fill, or 0
    PyTypeObject *scalar       # NumPy's scalars of this type are the bytes of the 0-d leaf; NULL: none is
    rf_dlpack_type tensor      # of tensors that are such a leaf's bytes; of no lanes: none is
    rf_conversion *conversion  # NULL: it goes into the slot as it is


cdef bint store_number(value, const Given *given, uint8_t *target) except -1
cdef cnp.ndarray array_of(value)


cdef inline bint same_shape(cnp.ndarray array, int skipped, const Given *given) noexcept:
    """Whether an array has the shape of a sample, behind `skipped` axes."""
    cdef int axis
    if cnp.PyArray_NDIM(array) != given.sample_ndim + skipped:
        return False
    for axis in range(given.ndim):
        if cnp.PyArray_DIM(array, axis + skipped) != given.shape[axis]:
            return False
    return True
