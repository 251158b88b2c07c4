"""What other extensions of ringfeed see of the writer of fields."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t

from ringfeed.spec._fields cimport Fields
from ringfeed.spec._form_writer cimport FormWriter
from ringfeed.spec._values cimport Given


cdef class FieldWriter:
    cdef Fields fields
    cdef object spec
    cdef object owner
    cdef Given *given
    cdef Py_ssize_t count
    cdef list dtypes  # of what is given
    cdef bint stream  # past the caches
    cdef FormWriter forms  # None: no leaf has a form

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
    cdef bint cast(self, cnp.ndarray array, const Given *given, uint8_t *target) except -1
    cdef Py_ssize_t write_batch(self, Py_ssize_t number, value, uint8_t *base, Py_ssize_t rows, Py_ssize_t most,
                                int64_t index) except -1
    cdef gather(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base, Py_ssize_t first, const int64_t *indices,
                Py_ssize_t rows)
