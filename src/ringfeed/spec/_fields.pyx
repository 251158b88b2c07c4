# cython: language_level=3, boundscheck=False, wraparound=False
"""The fields of a slot as arrays, by NumPy's C API."""

cimport cython
cimport numpy as cnp
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease

cnp.import_array()


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *memory, int flags, object obj)
    PyTypeObject PyArray_Type


cdef int64_t *shape_before(uint8_t *field, int ndim) noexcept nogil:
    """Where a batch's own shape stands, of a field whose shape varies: as `Layout` says."""
    cdef size_t size = (ndim * sizeof(int64_t) + c.RF_FIELD_ALIGN - 1) // c.RF_FIELD_ALIGN * c.RF_FIELD_ALIGN
    return <int64_t *>(field - size)


cdef void read_shape(uint8_t *field, int ndim, const cnp.npy_intp *most, cnp.npy_intp *shape) noexcept nogil:
    """Read a batch's own shape; whatever a worker has left there, no read goes beyond the field."""
    cdef const int64_t *recorded = shape_before(field, ndim)
    cdef int axis
    for axis in range(ndim):
        shape[axis] = max(0, min(recorded[axis], most[axis]))


@cython.auto_pickle(False)
cdef class FormFields:
    """The fields of leaves whose samples differ in length, as their room has them."""

    cdef cnp.ndarray wrap_all(self, Py_ssize_t number, uint8_t *base, Lease owner):
        raise NotImplementedError

    cdef cnp.ndarray wrap_row(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp row, owner):
        raise NotImplementedError

    cdef finish(self, Lease lease, uint32_t rows, cnp.ndarray good):
        """Make one array of the rows of each leaf, of the `good` ones only, None: of all; once a lease."""
        raise NotImplementedError

    cdef dict besides(self, Lease lease, uint32_t rows):
        raise NotImplementedError

    cdef tuple needed(self, Lease lease, uint32_t rows):
        raise NotImplementedError


@cython.final
cdef class Fields:
    """The fields of a slot: where each leaf of the spec lies, and as what."""

    def __cinit__(self, spec, offsets):
        self.count = len(spec.leaves)
        self.dtypes = [leaf.dtype for leaf in spec.leaves]
        self.fields = <Field *>calloc(self.count, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError
        self.forms = tuple([(number, leaf.form) for number, leaf in enumerate(spec.leaves) if leaf.form is not None])
        for number, leaf in enumerate(spec.leaves):
            self.describe(number, leaf, offsets[number])
        if self.forms:
            self.formed = self.forms[0][1].open_fields(spec, offsets)

    cdef describe(self, Py_ssize_t number, leaf, uint64_t offset):
        cdef Field *field = &self.fields[number]
        if len(leaf.shape) > 32:
            raise ValueError(f"{leaf.path} has {len(leaf.shape)} axes, at most 32 are supported")
        field.offset = offset
        field.row_size = leaf.nbytes
        field.ndim = len(leaf.shape)
        for axis, length in enumerate(leaf.shape):
            field.shape[axis + 1] = length
        for axis in leaf.variable:
            field.varies = True
            field.may_be_less[axis] = True
        field.has_form = leaf.form is not None
        self.note_gaps(field, leaf.dtype)

    cdef note_gaps(self, Field *field, dtype):
        gaps = []
        if dtype.names is not None or dtype.char in "gG":
            from ringfeed.spec.gaps import gaps_in  # only where it is needed

            gaps = gaps_in(dtype)
        field.itemsize = dtype.itemsize
        field.gaps = <size_t *>calloc(2 * len(gaps) + 1, sizeof(size_t))
        if field.gaps == NULL:
            raise MemoryError
        for start, length in gaps:
            field.gaps[2 * field.gap_count] = start
            field.gaps[2 * field.gap_count + 1] = length
            field.gap_count += 1

    def __dealloc__(self):
        cdef Py_ssize_t number
        if self.fields != NULL:
            for number in range(self.count):
                free(self.fields[number].gaps)
        free(self.fields)

    cdef void clear_gaps(self, Py_ssize_t number, uint8_t *target, size_t size) noexcept nogil:
        """Fill the padding of elements with zeros: what else lies there is no part of a sample."""
        cdef Field *field = &self.fields[number]
        cdef size_t element, gap
        if not field.gap_count:
            return
        for element in range(size // field.itemsize):
            for gap in range(field.gap_count):
                memset(target + element * field.itemsize + field.gaps[2 * gap], 0, field.gaps[2 * gap + 1])

    cdef void note_shape(self, Py_ssize_t number, cnp.ndarray array, uint8_t *base) noexcept:
        """Write a batch's own shape down; like its rows, it is seen when the ticket is published."""
        cdef Field *field = &self.fields[number]
        cdef int64_t *place = shape_before(base + field.offset, field.ndim)
        cdef int axis
        for axis in range(field.ndim):
            place[axis] = cnp.PyArray_DIM(array, axis + 1)

    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner):
        """Rows `first`, … of a field as an array that keeps `owner`; `rows` < 0: one row, without the row axis."""
        cdef Field *field = &self.fields[number]
        cdef cnp.dtype dtype = <cnp.dtype>self.dtypes[number]
        cdef int skipped = 1 if rows < 0 else 0
        cdef uint8_t *start = base + field.offset + first * field.row_size
        cdef cnp.npy_intp shape[33]
        memcpy(shape, field.shape, sizeof(shape))
        if field.has_form:
            return (self.formed.wrap_row(number, base, first, owner) if rows < 0
                    else self.formed.wrap_all(number, base, owner))
        if field.varies:
            read_shape(base + field.offset, field.ndim, field.shape + 1, shape + 1)
        shape[0] = rows
        Py_INCREF(dtype)  # the constructor steals one
        array = PyArray_NewFromDescr(&PyArray_Type, dtype, field.ndim + 1 - skipped, shape + skipped, NULL, start,
                                     cnp.NPY_ARRAY_CARRAY, <object>NULL)
        cnp.set_array_base(array, owner)
        return array

    # ---- rows that differ in length ----

    def besides(self, Lease lease not None, uint32_t rows):
        """Return what comes beside the values of leaves with a form, by the leaf's number."""
        return {} if self.formed is None else self.formed.besides(lease, rows)

    def needed(self, Lease lease not None, uint32_t rows):
        """Return the number of the first leaf whose rows did not fit into its total, and what they need; or None."""
        return None if self.formed is None else self.formed.needed(lease, rows)

    def views(self, lease, cnp.npy_intp rows):
        """Return an array a field over the first `rows` rows of the lease's slot; each keeps the lease.

        Of a leaf with a form, its values: see `besides`.
        """
        cdef uint8_t *base = <uint8_t *><uintptr_t>lease.address
        if self.formed is not None:
            self.formed.finish(lease, rows, None)
        return [self.wrap(number, base, 0, rows, lease) for number in range(self.count)]
