"""What other extensions of ringfeed see of the writer of a leaf."""

cimport numpy as cnp
from cpython.ref cimport PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint16_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field


cdef extern from "bytes/convert.h" nogil:
    struct rf_conversion:
        pass


cdef extern from "export/exchange.h":
    struct rf_dlpack_type:
        uint8_t code, bits
        uint16_t lanes


ctypedef const void *(*rf_memory_of)(value, LeafWriter leaf) except? NULL

cdef rf_memory_of memory_of_tensor  # NULL until a value was no array: `_tensors` sets it

cdef cnp.ndarray array_of(value)
cdef bint same_type(cnp.ndarray array, cnp.dtype dtype)
cdef void copy(void *target, const void *source, size_t size, bint stream) noexcept
cdef int copy_strided(cnp.ndarray place, cnp.ndarray array) except -1


cdef class LeafWriter:
    cdef Field field
    cdef object spec, owner
    cdef Py_ssize_t number     # of the leaf in the spec
    cdef bint stream           # past the caches
    # what the dataset gives for a sample
    cdef cnp.dtype dtype
    cdef size_t nbytes
    cdef int ndim
    cdef cnp.npy_intp shape[32]
    cdef int kind              # RF_NUMBER of elements which plain Python numbers may fill, or 0
    cdef int text              # S or U, of a leaf which strings may fill; or 0
    cdef PyTypeObject *scalar  # NumPy's scalars of this type are its bytes; NULL: none is
    cdef rf_dlpack_type tensor       # of tensors that are such a leaf's bytes; of no lanes: none is
    cdef rf_conversion *conversion   # NULL: it goes into the slot as it is

    cdef int begin(self, const c.rf_claim *claim, bint stream) except -1
    cdef cnp.ndarray fitting(self, value)
    cdef int write(self, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1
    cdef Py_ssize_t write_batch(
        self, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most, int64_t index
    ) except -1
    cdef int put(
        self, cnp.ndarray array, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows
    ) except -1
    cdef int clear_row(self, uint8_t *base, Py_ssize_t row) except -1
    cdef bint is_plain(self, array)
    cdef int gather(self, cnp.ndarray array, uint8_t *base, Py_ssize_t first,
                    const int64_t *indices,
                    Py_ssize_t rows) except -1


cdef list writers_of(spec, offsets, owner)
