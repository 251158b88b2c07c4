# cython: language_level=3, boundscheck=False, wraparound=False
"""Fills what a worker has claimed, row by row, in bulk or as whole batches, and takes the time of it."""

cimport cython
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._writer cimport FieldWriter

from numpy import asarray

from ringfeed.errors import SpecError
from ringfeed._failure import Nothing
from ringfeed.spec.nodes import flatness


cdef extern from "bytes/copy.h" nogil:
    bint rf_streams(const c.rf_claim *claim, uint64_t beyond)


cdef extern from "times.h" nogil:
    uint32_t rf_timed_row(const c.rf_claim *claim)


cdef object fill_many = None  # imported with the first dataset that gives many samples at once


@cython.auto_pickle(False)
cdef class Containers:
    """Finds the leaves of samples in nested containers, as their room does it; None: the spec must look."""

    cdef tuple leaves_of(self, sample):
        raise NotImplementedError


@cython.auto_pickle(False)
cdef class RowChange:
    """Changes a sample in its row, once it is written, as its room does it."""

    cdef int apply(self, RowWriter writer, c.rf_claim *claim, uint32_t row) except -1:
        raise NotImplementedError


@cython.final
cdef class RowWriter:
    """Writes samples into the rows of a claimed ticket.

    One row of each ticket is timed, or all where they are read or written together. Rows go past
    the caches where the open slots are of `beyond` bytes together, or more.
    """

    def __cinit__(self, spec, offsets, owner, uint64_t beyond):
        self.writer = FieldWriter(spec, offsets, owner)
        self.spec = spec
        self.owner = owner
        self.beyond = beyond
        self.count = len(spec.leaves)
        self.flat = flatness(spec.structure)
        if not self.flat:
            from ringfeed.spec._structure import Structure  # only where it is needed

            self.containers = Structure(spec)

    cdef void begin(self, c.rf_claim *claim) noexcept:
        """Begin to fill a ticket."""
        self.writer.stream = rf_streams(claim, self.beyond)
        if self.writer.forms is not None:
            self.writer.forms.begin(claim)

    cdef tuple leaves_of(self, sample, int64_t index, str root):
        """Return the leaves of a sample, or of a batch, in order."""
        if self.flat == 1:
            return (sample,)
        if self.flat == 2 and PyTuple_CheckExact(sample) and PyTuple_GET_SIZE(sample) == self.count:
            return <tuple>sample
        cdef tuple leaves = None if self.flat else self.containers.leaves_of(sample)
        return tuple(self.spec.flatten(sample, index, root)) if leaves is None else leaves

    cdef int write(self, sample, uint8_t *base, Py_ssize_t row, int64_t index) except -1:
        cdef Py_ssize_t number
        cdef tuple leaves = self.leaves_of(sample, index, "sample")
        for number in range(self.count):
            self.writer.write(number, leaves[number], base, row, index)
        return 0

    cdef int fill_row(self, c.rf_claim *claim, uint32_t row, function, bint in_place, bint timed) except -1:
        cdef int64_t began_ns = c.rf_now_ns() if timed else 0, read_ns = 0, write_ns = 0
        index = claim.indices[row]
        if in_place:
            self.fill_in_place(claim, row, function, index)
        else:
            sample = function(index)
            if timed:
                read_ns = c.rf_now_ns()
            self.write(sample, claim.base, claim.first_row + row, index)
            if timed:
                write_ns = c.rf_now_ns() - read_ns
        if self.change is not None:
            self.change.apply(self, claim, row)
        if timed:
            rf_note_times(claim, 1, c.rf_now_ns() - began_ns - write_ns, write_ns)
        return 0

    cdef list views_of(self, c.rf_claim *claim, uint32_t row):
        """Return arrays over the fields of a row; of `Bytes` and `Text` what a dataset gives."""
        out = [self.writer.fields.wrap(number, claim.base, claim.first_row + row, -1, self.owner)
               for number in range(self.count)]
        if self.writer.forms is not None:
            for number, form in self.writer.fields.forms:
                out[number] = form.given(out[number])
        return out

    cdef int change_alone(self, c.rf_claim *claim, uint32_t row, context) except -1:
        """Have a row changed that was read together with others, with its own random numbers."""
        context.index = claim.indices[row]
        try:
            self.change.apply(self, claim, row)
        finally:
            context.index = None
        return 0

    cdef fill_in_place(self, c.rf_claim *claim, uint32_t row, function, index):
        """Have a row filled by the dataset itself."""
        out = self.views_of(claim, row)
        given = self.spec.unflatten(out)
        answer = function(index, given)
        if answer is not None and answer is not given:
            raise TypeError(f"read_into returned a {type(answer).__name__}, expected None; write the sample into out")
        if not self.flat:
            self.check_out(given, out, index, "out", "read_into")
        for number in range(self.count):
            self.writer.clear_row(number, claim.base, claim.first_row + row)

    cdef check_out(self, given, list out, int64_t index, str name, str function):
        """Refuse what a function was given where its arrays were replaced in place of being written into.

        The row would stay as it was. `name`: what the function knows it as.
        """
        leaves = list(given.values()) if type(given) is dict else list(given)
        if len(leaves) != len(out) or any(leaf is not field for leaf, field in zip(leaves, out)):
            leaves = self.spec.flatten(given, index, name)
        for leaf, field, place in zip(leaves, out, self.spec.leaves):
            if leaf is not field:
                where = place.path.replace("sample", name, 1)
                raise SpecError(f"dataset[{index}]: {where} was replaced, expected to be written into; use "
                                f"{where}[...] = in {function}")

    cdef bint fill_rows(self, c.rf_claim *claim, function, bint in_place, context, on_error) except -1:
        cdef uint32_t row
        cdef uint32_t timed = rf_timed_row(claim)
        self.begin(claim)
        for row in range(claim.rows):
            if c.rf_cancelled(claim):
                return False
            if claim.marks[row] == c.RF_ROW_KILLED:
                continue
            context.index = claim.indices[row]
            c.rf_blame(claim, row)
            try:
                self.fill_row(claim, row, function, in_place, row == timed)
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
        """Fill the claim with getitems(indices), many samples at once, as their room does it."""
        global fill_many
        if fill_many is None:
            from ringfeed.spec._bulk import fill_many as found  # only where it is needed

            fill_many = found
        return fill_many(self, claim_address, getitems, context, on_error)

    def gather(self, uintptr_t claim_address, columns, context, on_error):
        """Fill the claim from columns, an array a leaf: without the GIL, where their rows are those of the spec.

        Columns are looked at for each claim: a hook may have put others in their place. Row by row
        go rows that are strided or of another dtype, what a transform changes, and rows after a
        death (a mapped file that was cut short, say), so that only the row to blame is blamed.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef tuple arrays = self.leaves_of(columns, 0, "sample")
        cdef bint plain = self.are_plain(arrays)
        cdef int64_t length = min(len(array) for array in arrays), began_ns = c.rf_now_ns()
        cdef uint32_t row
        self.begin(claim)
        if c.rf_cancelled(claim):
            return False
        if plain and claim.attempt == 0 and self.change is None and self.lie_within(claim, length):
            self.gather_rows(claim, arrays, 0, claim.rows)
            rf_note_times(claim, claim.rows, 0, c.rf_now_ns() - began_ns)
            return True
        for row in range(claim.rows):
            if c.rf_cancelled(claim):
                return False
            if claim.marks[row] == c.RF_ROW_KILLED:
                continue
            c.rf_blame(claim, row)
            try:
                if not 0 <= claim.indices[row] < length:
                    raise IndexError(f"index {claim.indices[row]} is out of range for arrays of {length} rows")
                if plain:
                    self.gather_rows(claim, arrays, row, 1)
                else:
                    self.write_row(claim, arrays, row)
                if self.change is not None:
                    self.change_alone(claim, row, context)
            except BaseException as error:
                on_error(row, claim.indices[row], error)
        if self.change is None:
            rf_note_times(claim, claim.rows, 0, c.rf_now_ns() - began_ns)
        return True

    cdef bint are_plain(self, tuple arrays):
        """Whether the rows of all arrays are, byte for byte, what the fields of a slot hold."""
        cdef Py_ssize_t number
        for number in range(self.count):
            if not self.writer.is_plain(number, arrays[number]):
                return False
        return True

    cdef bint lie_within(self, c.rf_claim *claim, int64_t length):
        cdef uint32_t row
        for row in range(claim.rows):
            if claim.indices[row] < 0 or claim.indices[row] >= length:
                return False
        return True

    cdef gather_rows(self, c.rf_claim *claim, tuple arrays, uint32_t first, uint32_t rows):
        cdef Py_ssize_t number
        for number in range(self.count):
            self.writer.gather(number, arrays[number], claim.base, claim.first_row + first, claim.indices + first, rows)

    cdef write_row(self, c.rf_claim *claim, tuple arrays, uint32_t row):
        cdef Py_ssize_t number
        cdef int64_t index = claim.indices[row]
        for number in range(self.count):
            value = asarray(arrays[number])[index, ...]
            self.writer.write(number, value, claim.base, claim.first_row + row, index)

    def batch(self, uintptr_t claim_address, getitem, uint32_t most, context, on_error):
        """Fill the whole slot with the batch getitem(index) of at most `most` rows."""
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef int64_t began_ns = c.rf_now_ns(), read_ns
        self.begin(claim)
        claim.rows_delivered = 0
        if c.rf_cancelled(claim):
            return False
        if claim.marks[0] == c.RF_ROW_KILLED:
            return True
        index = claim.indices[0]
        context.index = index
        c.rf_blame(claim, 0)
        try:
            batch = getitem(index)
            read_ns = c.rf_now_ns()
            claim.rows_delivered = self.write_batch(batch, claim.base, index, most)
            rf_note_times(claim, claim.rows_delivered, read_ns - began_ns, c.rf_now_ns() - read_ns)
        except BaseException as error:
            on_error(0, index, error)
        return True

    cdef uint32_t write_batch(self, batch, uint8_t *base, int64_t index, uint32_t most) except? 0xffffffff:
        cdef Py_ssize_t number, rows = -1
        if batch is None:
            raise Nothing
        cdef tuple leaves = self.leaves_of(batch, index, "batch")
        for number in range(self.count):
            rows = self.writer.write_batch(number, leaves[number], base, rows, most, index)
        return <uint32_t>rows
