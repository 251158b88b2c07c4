# cython: language_level=3, boundscheck=False, wraparound=False
"""The fields of a slot as arrays, by NumPy's C API."""

cimport cython
cimport numpy as cnp
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from ringfeed.ring cimport _cring as c

cnp.import_array()


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd,
                                const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *memory, int flags, object obj)
    PyTypeObject PyArray_Type


cdef int64_t *shape_before(uint8_t *field, int ndim) noexcept nogil:
    """Return where a batch's shape stands, before a field that varies: see `Layout`."""
    cdef size_t align = c.RF_FIELD_ALIGN
    cdef size_t size = (ndim * sizeof(int64_t) + align - 1) // align * align
    return <int64_t *>(field - size)


cdef void read_shape(
    uint8_t *field, int ndim, const cnp.npy_intp *most, cnp.npy_intp *shape
) noexcept nogil:
    """Read a batch's shape, and never beyond the field, whatever a worker has left there."""
    cdef const int64_t *recorded = shape_before(field, ndim)
    cdef int axis
    for axis in range(ndim):
        shape[axis] = max(0, min(recorded[axis], most[axis]))


cdef cnp.ndarray array_over(cnp.dtype dtype, int ndim, const cnp.npy_intp *shape,
                            const cnp.npy_intp *strides,
                            void *start, owner):
    """Return an array over memory of `owner`; without strides its elements lie in a row."""
    Py_INCREF(dtype)  # the constructor steals one
    array = PyArray_NewFromDescr(&PyArray_Type, dtype, ndim, shape, strides, start,
                                 cnp.NPY_ARRAY_CARRAY,
                                 <object>NULL)
    cnp.set_array_base(array, owner)
    return array


cdef Field open_field(leaf, uint64_t offset):
    """Return the field of a leaf."""
    if leaf.form is None:
        return Field(leaf, offset)
    from ringfeed.spec._forms import FormField  # only where it is needed

    return FormField(leaf, offset)


cdef class Field:
    """Where the samples of one leaf lie in a slot, and as what."""

    def __cinit__(self, leaf, uint64_t offset):
        self.offset = offset
        self.row_size = leaf.nbytes
        self.dtype = leaf.dtype
        self.form = leaf.form
        self.ndim = len(leaf.shape)
        if self.ndim > 32:
            raise ValueError(f"{leaf.path} has {self.ndim} axes, at most 32 are supported")
        for axis, length in enumerate(leaf.shape):
            self.shape[axis + 1] = length
        for axis in leaf.variable:
            self.varies = self.may_be_less[axis] = True
        if leaf.dtype.names is not None or leaf.dtype.char in "gG":
            from ringfeed.spec.gaps import gaps_in  # only where it is needed

            self.gaps = gaps_in(leaf.dtype)

    cdef cnp.ndarray wrap(self, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner):
        """Return rows as an array that keeps `owner`; `rows` < 0: one row, without a row axis."""
        cdef int skipped = 1 if rows < 0 else 0
        cdef cnp.npy_intp shape[33]
        memcpy(shape, self.shape, sizeof(shape))
        if self.varies:
            read_shape(base + self.offset, self.ndim, self.shape + 1, shape + 1)
        shape[0] = rows
        return array_over(self.dtype, self.ndim + 1 - skipped, shape + skipped, NULL,
                          base + self.offset + first * self.row_size, owner)

    cdef int clear_gaps(self, uint8_t *target, size_t size) except -1:
        """Fill the padding of elements with zeros: what else lies there is no part of a sample."""
        cdef cnp.npy_intp shape[2]
        if self.gaps is not None:
            shape[1] = self.dtype.itemsize
            shape[0] = size // <size_t>shape[1]
            cnp.PyArray_SimpleNewFromData(2, shape, cnp.NPY_UINT8, target)[:, self.gaps] = 0
        return 0

    cdef void note_shape(self, cnp.ndarray array, uint8_t *base) noexcept:
        """Write a batch's shape before the field; publishing the ticket makes it seen."""
        cdef int64_t *place = shape_before(base + self.offset, self.ndim)
        cdef int axis
        for axis in range(self.ndim):
            place[axis] = cnp.PyArray_DIM(array, axis + 1)


@cython.final
cdef class Fields:
    """The fields of a slot, one for each leaf of a spec."""

    def __cinit__(self, spec, offsets):
        self.fields = [open_field(leaf, offset) for leaf, offset in zip(spec.leaves, offsets)]
        forms = [(number, leaf.form) for number, leaf in enumerate(spec.leaves)]
        self.forms = tuple([pair for pair in forms if pair[1] is not None])

    cdef Field at(self, Py_ssize_t number):
        return <Field>self.fields[number]

    cdef int finish(self, lease, rows, good) except -1:
        """Make one array of the rows, or of the `good` ones, of each form; once a lease."""
        for number, _ in self.forms:
            self.fields[<Py_ssize_t>number].finish(lease, rows, good)
        return 0

    def views(self, lease, cnp.npy_intp rows):
        """Return an array a field over the first `rows` rows of a lease's slot; each keeps it.

        Of a leaf with a form, these are its values: see `besides`.
        """
        cdef uint8_t *base = <uint8_t *><uintptr_t>lease.address
        self.finish(lease, rows, None)
        return [(<Field>field).wrap(base, 0, rows, lease) for field in self.fields]

    def besides(self, lease, rows):
        """Return what comes beside the values of leaves with a form, by the leaf's number."""
        self.finish(lease, rows, None)
        return {number: lease.finished[self.at(number).offset][1] for number, form in self.forms
                if form.beside is not None}

    def needed(self, lease, rows):
        """Return the first leaf whose rows exceed its total, and what they need; or None."""
        for number, _ in self.forms:
            need = self.fields[<Py_ssize_t>number].needed(lease, rows)
            if need >= 0:
                return number, need
        return None
