# cython: language_level=3, boundscheck=False, wraparound=False
"""Rows on their way from a slot of an actor's into a slot of the training's: taken out there, and landed here.

A row of a leaf is copied once, or converted, by what writes the rows of local workers; leaves with
a form are placed row by row, as there. A claim is named by its address, `WorkerEnd.claim_address`.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from ringfeed.spec._formed_fields cimport Differing, rf_refused
from ringfeed.spec._formed_writer cimport DifferingWriter
from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field, Fields
from ringfeed.spec._writer cimport FieldWriter

import numpy as np

from ringfeed.errors import SpecError
from ringfeed.ray.filled import Packed

cnp.import_array()


cdef extern from "bytes/copy.h" nogil:
    bint rf_streams(const c.rf_claim *claim, uint64_t beyond)


cdef extern from "times.h" nogil:
    void rf_note_times(const c.rf_claim *claim, uint64_t rows, int64_t read_ns, int64_t write_ns)


cdef inline c.rf_claim *at(uintptr_t address) noexcept:
    return <c.rf_claim *>address


# ---- in an actor ----


def delivered(uintptr_t address):
    """Return how many rows a filled claim delivers."""
    return at(address).rows_delivered


def failures(uintptr_t address):
    """Return the rows of a filled claim that are not there; the record of why is that of the first which was told."""
    cdef c.rf_claim *claim = at(address)
    cdef const c.rf_failure *failure = claim.failure
    cdef uint32_t row
    if not failure.size:
        return ()
    first = failure.row - claim.first_row
    rows = [row for row in range(claim.rows) if claim.marks[row] != c.RF_ROW_OK and row != first]
    return ((first, bytes(failure.payload[:failure.size])), *[(row, b"") for row in rows])


@cython.final
cdef class Collector:
    """Takes the rows of a filled claim out of its slot, as views where rows have one length."""

    cdef Fields fields
    cdef object owner

    def __cinit__(self, spec, offsets, owner):
        self.fields = Fields(spec, offsets)
        self.owner = owner

    def collect(self, uintptr_t address):
        """Return what `Filled.leaves` has of the claim."""
        cdef Py_ssize_t number
        cdef c.rf_claim *claim = at(address)
        return tuple([self.pack(number, claim) if self.fields.fields[number].has_form
                      else self.fields.wrap(number, claim.base, claim.first_row, claim.rows_delivered, self.owner)
                      for number in range(self.fields.count)])

    cdef pack(self, Py_ssize_t number, c.rf_claim *claim):
        """Return the samples of a leaf that differ in length."""
        cdef Differing formed = <Differing>self.fields.formed
        cdef uint8_t *field = claim.base + self.fields.fields[number].offset
        cdef uint32_t row, rows = claim.rows_delivered
        cdef int64_t refused
        cdef object sample
        shapes = np.full((rows, self.fields.fields[number].ndim), -1, np.int64)
        found = [np.empty(0, self.fields.dtypes[number])]
        for row in range(rows):
            if row < claim.rows and claim.marks[row] != c.RF_ROW_OK:
                refused = rf_refused(field, &formed.fields[number].form, claim.batch, claim.first_row + row)
                shapes[row, 0] = -1 if refused < 0 else -2 - refused
                continue
            sample = self.fields.wrap(number, claim.base, claim.first_row + row, -1, self.owner)
            shapes[row] = sample.shape
            found.append(sample.reshape(-1))
        return Packed(np.concatenate(found), shapes)


# ---- in a bridge ----


cdef list runs_of(rows):
    """Return (first row of a block, first row of the ticket, how many) of rows that lie side by side in both."""
    cdef list runs = [], run = None
    for place, row in enumerate(rows):
        if run is not None and run[1] + run[2] == row:
            run[2] += 1
        else:
            run = [place, row, 1]
            runs.append(run)
    return runs


@cython.final
cdef class Lander:
    """Writes the rows of actors into claims. Of one thread at a time.

    `most`: rows of a slot's fields. `whole`: what a call delivers begins at row 0, however many
    rows were asked for, as it is a whole batch.
    """

    cdef FieldWriter writer
    cdef DifferingWriter forms  # None: no leaf has a form
    cdef object leaves
    cdef uint64_t beyond
    cdef Py_ssize_t most
    cdef bint whole

    def __cinit__(self, spec, offsets, owner, uint64_t beyond, Py_ssize_t most, bint whole):
        self.writer = FieldWriter(spec, offsets, owner)
        self.forms = <DifferingWriter?>self.writer.forms if self.writer.forms is not None else None
        self.leaves = spec.leaves
        self.beyond = beyond
        self.most = most
        self.whole = whole

    # ---- what has come ----

    def check(self, uintptr_t address, rows, filled):
        """Raise ValueError unless the arrays are those of the spec's leaves, of rows that the claim has."""
        cdef Py_ssize_t most = self.most if self.whole else len(rows)
        bad = [row for row in rows if not 0 <= row < at(address).rows]
        if bad or list(rows) != sorted(set(rows)):
            raise ValueError(f"rows {list(rows)} of a claim of {at(address).rows}, expected ascending ones of them")
        if not 0 <= filled.delivered <= most:
            raise ValueError(f"{filled.delivered} rows came, expected at most {most}")
        if [row for row, _ in filled.failures if not 0 <= row < len(rows)]:
            raise ValueError(f"failures of rows {[row for row, _ in filled.failures]} of {len(rows)}")
        if not filled.leaves and filled.failures:
            return
        if len(filled.leaves) != len(self.leaves):
            raise ValueError(f"{len(filled.leaves)} leaves came, expected {len(self.leaves)}")
        for number, (leaf, came) in enumerate(zip(self.leaves, filled.leaves)):
            if leaf.form is None:
                self.check_block(number, leaf, came, filled.delivered)
            else:
                self.check_packed(leaf, came, filled.delivered)

    cdef check_block(self, Py_ssize_t number, leaf, came, rows):
        """Refuse what is no block of so many rows of a leaf, as its dataset gives it or as its slot has it."""
        if type(came) is not np.ndarray:
            raise ValueError(f"{leaf.path} came as {type(came).__name__}, expected ndarray")
        if not came.flags.c_contiguous:
            raise ValueError(f"{leaf.path} came with strides {came.strides}, expected C order")
        expected = [(leaf.given_dtype, leaf.given_shape), (leaf.dtype, leaf.shape)]
        for dtype, shape in expected:
            if came.dtype == dtype and came.ndim == len(shape) + 1 and came.shape[0] == rows and all(
                    length == most or (axis in leaf.variable and length <= most)
                    for axis, (length, most) in enumerate(zip(came.shape[1:], shape))):
                return
        dtype, shape = expected[0]
        raise ValueError(f"{leaf.path} came as {came.dtype.str} {came.shape}, expected {dtype.str} {(rows, *shape)}")

    cdef check_packed(self, leaf, came, rows):
        """Refuse what are no samples of a leaf that differ in length."""
        if type(came) is not Packed:
            raise ValueError(f"{leaf.path} came as {type(came).__name__}, expected Packed")
        values, shapes = came
        for name, array, dtype, ndim in (("values", values, leaf.dtype, 1), ("shapes", shapes, np.dtype(np.int64), 2)):
            if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != ndim \
                    or not array.flags.c_contiguous:
                raise ValueError(f"{leaf.path} came with {name} that are no {dtype.str} of {ndim} axes in C order")
        if shapes.shape != (rows, len(leaf.shape)):
            raise ValueError(f"{leaf.path} came with shapes of {shapes.shape}, expected {(rows, len(leaf.shape))}")
        there = shapes[(shapes >= 0).all(axis=1)]
        for axis, most in enumerate(leaf.form.most):
            lengths = there[:, axis]
            if (lengths > most).any() or (axis not in leaf.form.axes and (lengths < most).any()):
                raise ValueError(f"{leaf.path} came with samples of {lengths.max()} along axis {axis}, expected "
                                 f"{'at most ' if axis in leaf.form.axes else ''}{most}")
        if there.prod(axis=1).sum() != len(values):
            raise ValueError(f"{leaf.path} came with {len(values)} elements, expected {there.prod(axis=1).sum()}")

    # ---- into the slot ----

    def land(self, uintptr_t address, parts):
        """Write parts of a claim, (rows, Filled) each, which were checked; returns why rows are not there, by row.

        What was sent of it is bytes, b"" behind the first; what does not fit here is an error.
        """
        cdef c.rf_claim *claim = at(address)
        self.writer.stream = rf_streams(claim, self.beyond)
        if self.forms is not None:
            self.forms.begin(claim)
        parts = sorted([(tuple(rows), filled) for rows, filled in parts], key=lambda part: part[0])
        found = []
        for rows, filled in parts:
            found += [(rows[row], record) for row, record in filled.failures]
            if filled.leaves:
                targets = range(filled.delivered) if self.whole else rows[:filled.delivered]
                self.land_part(claim, targets, filled)
                found += self.land_forms(claim, rows, targets, filled)
            rf_note_times(claim, filled.timed, filled.read_ns, filled.write_ns)
        self.note_delivered(claim, parts)
        return found

    cdef note_delivered(self, c.rf_claim *claim, list parts):
        """Note how many rows the claim delivers: fewer, up to the end of an iterable, or those of a whole batch."""
        if self.whole:
            claim.rows_delivered = parts[0][1].delivered
            return
        ends = [rows[filled.delivered] for rows, filled in parts if filled.delivered < len(rows)]
        claim.rows_delivered = min(ends, default=claim.rows)

    cdef land_part(self, c.rf_claim *claim, targets, filled):
        """Write the leaves of one length."""
        cdef Py_ssize_t number
        runs = runs_of(targets)
        for number in range(self.writer.count):
            if not self.writer.fields.fields[number].has_form:
                for place, row, count in runs:
                    self.land_block(claim, number, filled.leaves[number][place:place + count], row)

    cdef int land_block(self, c.rf_claim *claim, Py_ssize_t number, cnp.ndarray block, uint32_t row) except -1:
        """Write rows of a leaf that lie side by side."""
        cdef Field *field = &self.writer.fields.fields[number]
        cdef Py_ssize_t first = claim.first_row + row
        cdef uint8_t *target = claim.base + field.offset + first * field.row_size
        if field.varies:
            self.writer.fields.note_shape(number, block, claim.base)
        if self.leaves[number].cast is not None and block.dtype == self.leaves[number].dtype:
            self.writer.copy(target, cnp.PyArray_DATA(block), cnp.PyArray_NBYTES(block))  # it is converted already
            return 0
        return self.writer.put(block, target, cnp.PyArray_NBYTES(block), number, claim.base, first, len(block))

    cdef list land_forms(self, c.rf_claim *claim, rows, targets, filled):
        """Write the leaves whose samples differ in length; returns the rows that have no room here."""
        cdef Py_ssize_t number
        found = []
        failed = {row for row, _ in filled.failures}
        for number in range(self.writer.count):
            if self.writer.fields.fields[number].has_form:
                found += self.land_packed(claim, number, filled.leaves[number], targets)
        return [(row, error) for row, error in found if row not in failed]

    cdef list land_packed(self, c.rf_claim *claim, Py_ssize_t number, packed, targets):
        """Write the samples of one leaf where there is room for each."""
        cdef int64_t start = 0, size, length, index
        cdef list refused = [], shapes = packed.shapes.tolist()
        if self.whole:
            self.forms.write_anew(number, [], claim.base, claim.first_row, [], 0)
        for place, row in enumerate(targets):
            shape = shapes[place]
            index = claim.indices[0 if self.whole else row]
            if min(shape) < 0:
                length = -2 - shape[0]
                if length >= 0:  # so that the consumer knows what the batch would have needed
                    self.forms.place(number, claim.base + self.writer.fields.fields[number].offset,
                                     claim.first_row + <uint32_t>row, &length)
                continue
            size = np.prod(shape, dtype=np.int64)
            try:
                self.forms.put(number, packed.values[start:start + size].reshape(shape), claim.base,
                               claim.first_row + <uint32_t>row, index, self.writer.stream)
            except SpecError as error:
                refused.append((row, error))
            start += size
        return refused
