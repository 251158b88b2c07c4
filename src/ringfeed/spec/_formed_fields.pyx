# cython: language_level=3, boundscheck=False, wraparound=False
"""The fields of leaves with a form as arrays, by NumPy's C API: see cext/bytes/forms.h."""

cimport cython
cimport numpy as cnp
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ringfeed.ring._ring cimport Lease

import numpy as np

cnp.import_array()


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *memory, int flags, object obj)
    PyTypeObject PyArray_Type


@cython.final
cdef class Differing(FormFields):
    """The fields of leaves whose samples differ in length."""

    def __cinit__(self, spec, offsets):
        self.count = len(spec.leaves)
        self.dtypes = [leaf.dtype for leaf in spec.leaves]
        self.fields = <FormField *>calloc(self.count, sizeof(FormField))
        if self.fields == NULL:
            raise MemoryError
        self.forms = tuple([(number, leaf.form) for number, leaf in enumerate(spec.leaves) if leaf.form is not None])
        for number, _ in self.forms:
            self.describe(&self.fields[<Py_ssize_t>number], spec.leaves[number], offsets[number])

    cdef describe(self, FormField *field, leaf, uint64_t offset):
        form = leaf.form
        cdef int axes = form.axes[len(form.axes) - 1] + 1, axis
        cdef bytes padding = form.padding  # which the spec keeps, by the form
        field.offset = offset
        field.ndim = len(leaf.shape)
        field.form.axes = axes
        field.form.padded = form.is_padded
        field.form.itemsize = field.form.unit = leaf.dtype.itemsize
        for axis in range(field.ndim):
            field.shape[axis] = leaf.shape[axis]
            field.limits[axis] = form.most[axis]
            field.may_be_less[axis] = axis in form.axes
            if axis < axes:
                field.form.most[axis] = field.shape[axis]
            else:
                field.form.unit *= <size_t>field.shape[axis]
        field.form.total = form.total or 0
        field.form.padding = <const uint8_t *><char *>padding

    def __dealloc__(self):
        free(self.fields)

    cdef cnp.ndarray wrap_all(self, Py_ssize_t number, uint8_t *base, Lease owner):
        """The values of a leaf, as `finish` has made them."""
        cdef FormField *field = &self.fields[number]
        cdef cnp.dtype dtype = <cnp.dtype>self.dtypes[number]
        cdef tuple found = owner.finished[field.offset][0]
        cdef cnp.npy_intp shape[33]
        for axis, length in enumerate(found):
            shape[<int>axis] = length
        Py_INCREF(dtype)  # the constructor steals one
        array = PyArray_NewFromDescr(&PyArray_Type, dtype, <int>len(found), shape, NULL, base + field.offset,
                                     cnp.NPY_ARRAY_CARRAY, <object>NULL)
        cnp.set_array_base(array, owner)
        return array

    cdef cnp.ndarray wrap_row(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp row, owner):
        """One row that was just written, as an array that keeps `owner`."""
        cdef FormField *field = &self.fields[number]
        cdef cnp.dtype dtype = <cnp.dtype>self.dtypes[number]
        cdef int64_t lengths[32]
        cdef cnp.npy_intp shape[33]
        cdef cnp.npy_intp strides[33]
        cdef cnp.npy_intp step = dtype.itemsize
        cdef int64_t start = rf_look_up_row(base + field.offset, &field.form, <uint32_t>row, lengths)
        cdef int axis
        for axis in range(field.ndim - 1, -1, -1):
            strides[axis] = step
            shape[axis] = lengths[axis] if axis < field.form.axes else field.shape[axis]
            step *= field.shape[axis]
            if axis == 0:
                start *= strides[0]
        Py_INCREF(dtype)
        array = PyArray_NewFromDescr(&PyArray_Type, dtype, field.ndim, shape, strides, base + field.offset + start,
                                     cnp.NPY_ARRAY_WRITEABLE | cnp.NPY_ARRAY_ALIGNED, <object>NULL)
        cnp.set_array_base(array, owner)
        return array

    cdef tuple close_up(self, FormField *field, uint8_t *start, uint32_t rows, const int64_t *good):
        """Close the gaps between rows; returns the shape of all, and where each begins."""
        cdef cnp.ndarray splits = np.empty(rows + 1, np.int64)
        cdef int64_t *places = <int64_t *>cnp.PyArray_DATA(splits)
        cdef list shape = [0, *[field.shape[axis] for axis in range(1, field.ndim)]]
        cdef bint done
        with nogil:
            done = rf_close_up(start, &field.form, good, rows, places)
        if not done:
            raise MemoryError(f"no memory to put {rows} rows in their order")
        shape[0] = places[rows]
        return tuple(shape), splits

    cdef tuple pad(self, FormField *field, form, uint8_t *start, uint32_t rows, const int64_t *good):
        """Fill up what is short; returns the shape of all, and what comes beside them."""
        cdef int axes = field.form.axes, axis
        cdef cnp.ndarray lengths = np.empty((rows, axes), np.int64)
        cdef int64_t *own = <int64_t *>cnp.PyArray_DATA(lengths)
        cdef int64_t shape[32]
        rf_read_lengths(start, &field.form, good, rows, own)
        all_axes = (rows, *form.padded_shape(lengths, tuple([field.shape[axis] for axis in range(field.ndim)])))
        for axis in range(axes):
            shape[axis] = all_axes[axis + 1]
        found = all_axes, form.beside_of(lengths, all_axes)
        with nogil:
            rf_pad(start, &field.form, good, rows, own, shape)
        return found

    cdef finish(self, Lease lease, uint32_t rows, cnp.ndarray good):
        """Make one array of the rows of each leaf with a form, of the `good` ones only; once a lease."""
        cdef FormField *field
        cdef const int64_t *numbers = NULL
        if good is not None:
            numbers = <const int64_t *>cnp.PyArray_DATA(good)
        if lease.finished is None:
            lease.finished = {}
        for number, form in self.forms:
            field = &self.fields[<Py_ssize_t>number]
            if field.offset in lease.finished:
                continue
            # Rows are moved last, and no Python code runs until that is noted: Ctrl-C comes before,
            # or after.
            if form.is_padded:
                lease.finished[field.offset] = self.pad(field, form, lease.base() + field.offset, rows, numbers)
            else:
                lease.finished[field.offset] = self.close_up(field, lease.base() + field.offset, rows, numbers)

    cdef dict besides(self, Lease lease, uint32_t rows):
        """Return what comes beside the values, by the leaf's number."""
        self.finish(lease, rows, None)
        return {number: lease.finished[self.fields[<Py_ssize_t>number].offset][1]
                for number, form in self.forms if form.beside is not None}

    cdef tuple needed(self, Lease lease, uint32_t rows):
        """Return the number of the first leaf whose rows did not fit into its total, and what they need; or None."""
        cdef FormField *field
        cdef int64_t need
        for number, _ in self.forms:
            field = &self.fields[<Py_ssize_t>number]
            need = rf_needed(lease.base() + field.offset, &field.form, lease.taken.batch, rows)
            if need >= 0:
                return number, need
        return None
