"""What other extensions of ringfeed see of the writer of fields."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Fields
from ringfeed.spec._values cimport Given


cdef class OtherValues:  # see `coercion`
    cdef const void *memory_of(self, value, const Given *given) except? NULL
    cdef bint write(self, value, cnp.ndarray array, const Given *given, uint8_t *target) except -1


cdef class FormWriter:  # of leaves with a form; see `forms`
    cdef void begin(self, const c.rf_claim *claim) noexcept
    cdef int write(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index,
                   bint stream) except -1
    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index, bint stream) except -1
    cdef int put(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t row, int64_t index,
                 bint stream) except -1
    cdef write_anew(self, Py_ssize_t number, list samples, uint8_t *base, Py_ssize_t first, rows, int64_t index)
    cdef cnp.ndarray sample_of(self, Py_ssize_t number, value, int64_t index)
    cdef list samples_of(self, Py_ssize_t number, value, str where, Py_ssize_t most, int64_t index)


cdef class FieldWriter:
    cdef Fields fields
    cdef object spec
    cdef object owner
    cdef Given *given
    cdef Py_ssize_t count
    cdef list dtypes  # of what is given
    cdef bint stream  # past the caches
    cdef FormWriter forms  # None: no leaf has a form
    cdef OtherValues others  # None: none was given yet

    cdef describe(self, Given *given, leaf)
    cdef describe_native(self, Given *given, leaf, char kind, int itemsize)
    cdef int put(self, cnp.ndarray array, uint8_t *target, size_t size, Py_ssize_t number, uint8_t *base,
                 cnp.npy_intp first, cnp.npy_intp rows) except -1
    cdef void copy(self, void *target, const void *source, size_t size) noexcept
    cdef void clear_row(self, Py_ssize_t number, uint8_t *base, Py_ssize_t row) noexcept
    cdef int convert(self, cnp.ndarray array, float *target, size_t size, Py_ssize_t number,
                     cnp.npy_intp rows) except -1
    cdef int write(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1
    cdef bint write_otherwise(self, value, cnp.ndarray array, const Given *given, uint8_t *target) except -1
    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index) except -1
    cdef bint is_plain(self, Py_ssize_t number, array)
    cdef gather(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t first, const int64_t *indices,
                Py_ssize_t rows)
