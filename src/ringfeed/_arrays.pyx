# cython: language_level=3, boundscheck=False, wraparound=False
"""NumPy at C speed: samples into rows of a slot, rows of a slot as arrays. What does not fit is `Spec`'s to judge."""

cimport cython
cimport numpy as cnp
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport Py_INCREF, PyTypeObject
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ringfeed cimport _cring as c

from ringfeed.errors import SpecError
from ringfeed.failure import Nothing

cnp.import_array()

# Below this a copy is cheaper than giving the GIL away and taking it back.
cdef size_t NOGIL_BYTES = 32768


cdef extern from "gather.h" nogil:
    void rf_gather(uint8_t *target, const uint8_t *source, Py_ssize_t stride, size_t row_size,
                   const int64_t *indices, size_t rows)


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject *subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *memory, int flags, object obj)
    PyTypeObject PyArray_Type


cdef struct Field:
    uint64_t offset      # in the slot
    size_t row_size      # bytes of one sample's leaf
    int ndim             # of one sample's leaf
    int number_type      # the NumPy type of a 0-d leaf which plain Python numbers may fill, or -1
    cnp.npy_intp shape[33]  # [0] is for the rows; 32 axes were NumPy's limit when this was written
    bint varies             # a batch's own shape stands before the field
    uint8_t may_be_less[33]  # by axis


cdef int64_t *shape_before(uint8_t *field, int ndim) noexcept nogil:
    """Where a batch's own shape stands, of a field whose shape varies: as `Layout` says."""
    cdef size_t size = (ndim * sizeof(int64_t) + c.RF_FIELD_ALIGN - 1) // c.RF_FIELD_ALIGN * c.RF_FIELD_ALIGN
    return <int64_t *>(field - size)


cdef void read_shape(uint8_t *field, int ndim, const cnp.npy_intp *most, cnp.npy_intp *shape) noexcept nogil:
    """Read a batch's own shape; whatever a worker has left there, nobody reads beyond the field."""
    cdef const int64_t *recorded = shape_before(field, ndim)
    cdef int axis
    for axis in range(ndim):
        shape[axis] = max(0, min(recorded[axis], most[axis]))


def shape_of(lease, uint64_t offset, tuple most not None):
    """Return the shape that a leaf has in the batch of a lease, if it varies up to `most`; without the rows."""
    cdef cnp.npy_intp limits[33]
    cdef cnp.npy_intp shape[33]
    cdef uint8_t *base = <uint8_t *><uintptr_t>lease.address
    cdef int axis
    for axis in range(len(most)):
        limits[axis] = most[axis]
    read_shape(base + offset, <int>len(most), limits, shape)
    return tuple([shape[axis] for axis in range(len(most))])


@cython.final
cdef class Fields:
    """The fields of a slot: where each leaf of the spec lies, and as what."""

    cdef Field *fields
    cdef Py_ssize_t count
    cdef list dtypes

    def __cinit__(self, spec, offsets):
        self.count = len(spec.leaves)
        self.dtypes = [leaf.dtype for leaf in spec.leaves]
        self.fields = <Field *>calloc(self.count, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError
        for number, leaf in enumerate(spec.leaves):
            self.describe(number, leaf, offsets[number])

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
        field.number_type = (<cnp.dtype>leaf.dtype).type_num if not leaf.shape and leaf.dtype.isnative else -1

    def __dealloc__(self):
        free(self.fields)

    cdef cnp.ndarray wrap(self, Py_ssize_t number, uint8_t *base, cnp.npy_intp first, cnp.npy_intp rows, owner):
        """Rows `first`, … of a field as an array that keeps `owner`; `rows` < 0: one row, without the row axis."""
        cdef Field *field = &self.fields[number]
        cdef cnp.dtype dtype = <cnp.dtype>self.dtypes[number]
        cdef int skipped = 1 if rows < 0 else 0
        cdef uint8_t *start = base + field.offset + first * field.row_size
        cdef cnp.npy_intp shape[33]
        memcpy(shape, field.shape, sizeof(shape))
        if field.varies:
            read_shape(base + field.offset, field.ndim, field.shape + 1, shape + 1)
        shape[0] = rows
        Py_INCREF(dtype)  # the constructor steals one
        array = PyArray_NewFromDescr(&PyArray_Type, dtype, field.ndim + 1 - skipped, shape + skipped, NULL, start,
                                     cnp.NPY_ARRAY_CARRAY, <object>NULL)
        cnp.set_array_base(array, owner)
        return array

    def views(self, lease, cnp.npy_intp rows):
        """Return an array a field over the first `rows` rows of the lease's slot; each keeps the lease."""
        cdef uint8_t *base = <uint8_t *><uintptr_t>lease.address
        return [self.wrap(number, base, 0, rows, lease) for number in range(self.count)]


cdef bint same_type(cnp.ndarray array, cnp.dtype dtype):
    cdef cnp.dtype got = <cnp.dtype>cnp.PyArray_DESCR(array)
    return got is dtype or cnp.PyArray_EquivTypes(got, dtype)


cdef bint same_shape(cnp.ndarray array, int skipped, const Field *field):
    cdef int axis
    if cnp.PyArray_NDIM(array) != field.ndim + skipped:
        return False
    for axis in range(field.ndim):
        if cnp.PyArray_DIM(array, axis + skipped) != field.shape[axis + 1]:
            return False
    return True


cdef bint fits(cnp.ndarray array, const Field *field):
    """Whether an array is a whole batch of a field, whose rows are not looked at."""
    cdef int axis
    cdef cnp.npy_intp length
    if not field.varies:
        return same_shape(array, 1, field)
    if cnp.PyArray_NDIM(array) != field.ndim + 1:
        return False
    for axis in range(field.ndim):
        length = cnp.PyArray_DIM(array, axis + 1)
        if length > field.shape[axis + 1] or (length < field.shape[axis + 1] and not field.may_be_less[axis]):
            return False
    return True


cdef void note_shape(cnp.ndarray array, const Field *field, uint8_t *base):
    """Write a batch's own shape down; like its rows, it is seen when the ticket is published."""
    cdef int64_t *place = shape_before(base + field.offset, field.ndim)
    cdef int axis
    for axis in range(field.ndim):
        place[axis] = cnp.PyArray_DIM(array, axis + 1)


cdef bint store_number(value, int number_type, uint8_t *target) except -1:
    """Store a plain Python number where its type is the natural one; False leaves it to the spec."""
    cdef int overflow = 0
    cdef int64_t whole
    cdef float single
    if number_type == cnp.NPY_INT64 and PyLong_CheckExact(value):
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        memcpy(target, &whole, sizeof(whole))
        return not overflow
    if number_type == cnp.NPY_FLOAT32 and PyFloat_CheckExact(value):
        single = <float><double>value
        memcpy(target, &single, sizeof(single))
        return not isinf(single)
    return False


cdef void blame_nobody(c.rf_claim *claim, uint32_t row) noexcept:
    """Tell that the worker is at a row and those behind it, without a blame for any of them."""
    cdef c.rf_claim beside = claim[0]
    beside.first_row = 0xfffffffe - row  # no row of a batch: a death here says only that the next try goes row by row
    c.rf_blame(&beside, row)


@cython.final
cdef class RowWriter:
    """Writes samples into the rows of a claimed ticket; each array is copied once."""

    cdef Fields fields
    cdef object spec, owner
    cdef Py_ssize_t flat  # the number of leaves of a flat tuple; 0: a bare leaf; -1: anything else

    def __cinit__(self, spec, offsets, owner):
        self.fields = Fields(spec, offsets)
        self.spec = spec
        self.owner = owner
        structure = spec.structure
        self.flat = -1
        if structure[0] == "leaf":
            self.flat = 0
        elif structure[0] == "tuple" and structure[1] is None and all(child[0] == "leaf" for child in structure[2]):
            self.flat = self.fields.count

    cdef int copy(self, cnp.ndarray array, uint8_t *target, size_t size, Py_ssize_t number, uint8_t *base,
                  cnp.npy_intp first, cnp.npy_intp rows) except -1:
        """Copy an array of the right type and shape, however it is strided."""
        cdef const void *source = cnp.PyArray_DATA(array)
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            place = self.fields.wrap(number, base, first, rows, self.owner)
            if self.fields.dtypes[number].isbuiltin != 1:
                # As bytes: NumPy skips those between fields, and knows no unaligned elements of others' dtypes.
                raw = f"V{cnp.PyArray_ITEMSIZE(array)}"
                place, array = place.view(raw), array.view(raw)
            cnp.PyArray_CopyInto(place, array)
        elif size < NOGIL_BYTES:
            memcpy(target, source, size)
        else:
            with nogil:
                memcpy(target, source, size)
        return 0

    cdef int write_leaf(self, Py_ssize_t number, value, uint8_t *base, cnp.npy_intp row, int64_t index) except -1:
        cdef Field *field = &self.fields.fields[number]
        cdef uint8_t *target = base + field.offset + row * field.row_size
        if cnp.PyArray_CheckExact(value):
            if same_type(value, <cnp.dtype>self.fields.dtypes[number]) and same_shape(value, 0, field):
                return self.copy(value, target, field.row_size, number, base, row, -1)
        elif field.number_type >= 0 and store_number(value, field.number_type, target):
            return 0
        return self.copy(self.spec.array(number, value, index), target, field.row_size, number, base, row, -1)

    cdef int write(self, sample, uint8_t *base, cnp.npy_intp row, int64_t index) except -1:
        cdef Py_ssize_t number
        if self.flat == 0:
            return self.write_leaf(0, sample, base, row, index)
        if self.flat < 0 or type(sample) is not tuple or len(<tuple>sample) != self.flat:
            sample = tuple(self.spec.flatten(sample, index))
        for number in range(self.fields.count):
            self.write_leaf(number, (<tuple>sample)[number], base, row, index)
        return 0

    cdef int fill_row(self, c.rf_claim *claim, uint32_t row, function, bint in_place) except -1:
        index = claim.indices[row]
        if not in_place:
            return self.write(function(index), claim.base, claim.first_row + row, index)
        out = [self.fields.wrap(number, claim.base, claim.first_row + row, -1, self.owner)
               for number in range(self.fields.count)]
        given = self.spec.unflatten(out)
        answer = function(index, given)
        if answer is not None and answer is not given:
            raise TypeError(f"read_into returned a {type(answer).__name__}, expected None; write the sample into out")
        if self.flat < 0:
            self.check_out(given, out, index)
        return 0

    cdef check_out(self, given, list out, int64_t index):
        """Refuse an `out` whose arrays were replaced in place of being written into: the row would stay as it was."""
        leaves = list(given.values()) if type(given) is dict else list(given)
        if len(leaves) != len(out) or any(leaf is not field for leaf, field in zip(leaves, out)):
            leaves = self.spec.flatten(given, index, "out")
        for leaf, field, place in zip(leaves, out, self.spec.leaves):
            if leaf is not field:
                where = place.path.replace("sample", "out", 1)
                raise SpecError(f"dataset[{index}]: {where} was replaced, expected to be written into; use "
                                f"{where}[...] = in read_into")

    cdef bint fill_rows(self, c.rf_claim *claim, function, bint in_place, context, on_error) except -1:
        cdef uint32_t row
        for row in range(claim.rows):
            if c.rf_cancelled(claim):
                return False
            if claim.marks[row] == c.RF_ROW_KILLED:
                continue
            context.index = claim.indices[row]
            c.rf_blame(claim, row)
            try:
                self.fill_row(claim, row, function, in_place)
            except BaseException as error:
                on_error(row, claim.indices[row], error)
        return True

    def samples(self, uintptr_t claim_address, getitem, context, on_error):
        """Fill the claim with getitem(index), row by row; False when the claim was cancelled.

        on_error(row, index, error) is told of each row that fails, counted in the ticket.
        """
        return self.fill_rows(<c.rf_claim *>claim_address, getitem, False, context, on_error)

    def rows(self, uintptr_t claim_address, read_into, context, on_error):
        """Fill the claim with read_into(index, out): `out` has the sample's structure and lies in the slot."""
        return self.fill_rows(<c.rf_claim *>claim_address, read_into, True, context, on_error)

    def bulk(self, uintptr_t claim_address, getitems, context, on_error):
        """Fill the claim with getitems(indices), many samples at once.

        If that fails, or kills a worker, one at a time: the sample at fault is found and blamed, the others are saved.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef uint32_t row
        rows = [row for row in range(claim.rows) if claim.marks[row] != c.RF_ROW_KILLED]
        context.index = None  # many samples at once: rng() has none to belong to
        if not rows or c.rf_cancelled(claim):
            return not rows
        if claim.attempt == 0 and self.many(claim, rows, getitems, on_error, len(rows) == 1):
            return True
        for row in rows:
            if c.rf_cancelled(claim):
                return False
            self.many(claim, [row], getitems, on_error, True)
        return True

    cdef bint many(self, c.rf_claim *claim, list rows, getitems, on_error, bint last_try) except -1:
        """Fill some rows; False where they are to be tried one at a time."""
        cdef uint32_t row
        cdef Py_ssize_t count = 0
        indices = [claim.indices[row] for row in rows]
        faults = []
        if last_try:
            c.rf_blame(claim, rows[0])
        else:
            blame_nobody(claim, rows[0])
        try:
            for sample in getitems(list(indices)):  # one by one: a generator may fill the same buffer again
                if count == len(rows):
                    raise ValueError(f"__getitems__ returned more than {len(rows)} samples for as many indices")
                try:
                    self.write(sample, claim.base, claim.first_row + <uint32_t>rows[count], indices[count])
                except BaseException as error:
                    faults.append((rows[count], indices[count], error))
                count += 1
            if count != len(rows):
                raise ValueError(f"__getitems__ returned {count} samples for {len(rows)} indices")
        except BaseException as error:
            if not last_try and not isinstance(error, KeyboardInterrupt):
                return False
            faults = [(row, claim.indices[row], error) for row in rows]
        for row, index, error in faults:
            on_error(row, index, error)
        return True

    def gather(self, uintptr_t claim_address, list arrays, on_error):
        """Fill the claim from resident arrays, an array a leaf, without the GIL.

        After a death (a mapped file that was cut short, say) row by row, so that only the row to blame is blamed.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef int64_t length = min(len(array) for array in arrays)
        cdef uint32_t row
        if c.rf_cancelled(claim):
            return False
        if claim.attempt == 0 and self.lie_within(claim, length):
            self.gather_rows(claim, arrays, 0, claim.rows)
            return True
        for row in range(claim.rows):
            if claim.marks[row] == c.RF_ROW_KILLED:
                continue
            c.rf_blame(claim, row)
            if 0 <= claim.indices[row] < length:
                self.gather_rows(claim, arrays, row, 1)
            else:
                on_error(row, claim.indices[row],
                         IndexError(f"index {claim.indices[row]} is out of range for arrays of {length} rows"))
        return True

    cdef bint lie_within(self, c.rf_claim *claim, int64_t length):
        cdef uint32_t row
        for row in range(claim.rows):
            if claim.indices[row] < 0 or claim.indices[row] >= length:
                return False
        return True

    cdef gather_rows(self, c.rf_claim *claim, list arrays, uint32_t first, uint32_t rows):
        cdef Field *field
        cdef cnp.ndarray array
        cdef uint8_t *target
        cdef const uint8_t *source
        cdef Py_ssize_t number, stride
        for number in range(self.fields.count):
            field = &self.fields.fields[number]
            array = arrays[number]
            target = claim.base + field.offset + (claim.first_row + first) * field.row_size
            source = <const uint8_t *>cnp.PyArray_DATA(array)
            stride = cnp.PyArray_STRIDE(array, 0)
            with nogil:
                rf_gather(target, source, stride, field.row_size, claim.indices + first, rows)

    def batch(self, uintptr_t claim_address, getitem, uint32_t most, context, on_error):
        """Fill the whole slot with the batch getitem(index) of at most `most` rows."""
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        claim.rows_delivered = 0
        if c.rf_cancelled(claim):
            return False
        if claim.marks[0] == c.RF_ROW_KILLED:
            return True
        index = claim.indices[0]
        context.index = index
        c.rf_blame(claim, 0)
        try:
            claim.rows_delivered = self.write_batch(getitem(index), claim.base, index, most)
        except BaseException as error:
            on_error(0, index, error)
        return True

    cdef uint32_t write_batch(self, batch, uint8_t *base, int64_t index, uint32_t most) except? 0xffffffff:
        cdef Py_ssize_t number
        cdef cnp.npy_intp rows = -1
        cdef Field *field
        cdef cnp.ndarray array
        if batch is None:
            raise Nothing
        if self.flat == 0:
            batch = (batch,)
        elif self.flat < 0 or type(batch) is not tuple or len(<tuple>batch) != self.flat:
            batch = tuple(self.spec.flatten(batch, index, "batch"))
        for number in range(self.fields.count):
            field = &self.fields.fields[number]
            value = (<tuple>batch)[number]
            if not (cnp.PyArray_CheckExact(value) and same_type(value, <cnp.dtype>self.fields.dtypes[number])
                    and fits(value, field) and cnp.PyArray_DIM(value, 0) <= most):
                value = self.spec.batch_array(number, value, index, most)
            array = value
            if rows >= 0 and cnp.PyArray_DIM(array, 0) != rows:
                self.spec.batch_rows(number, cnp.PyArray_DIM(array, 0), rows, index)
            rows = cnp.PyArray_DIM(array, 0)
            if field.varies:
                note_shape(array, field, base)
            self.copy(array, base + field.offset, cnp.PyArray_NBYTES(array), number, base, 0, rows)
        return <uint32_t>rows
