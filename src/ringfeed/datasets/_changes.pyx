# cython: language_level=3, boundscheck=False, wraparound=False
"""Writes what the user's functions make of rows and batches; and the draws of a sampler."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field
from ringfeed.spec._forms cimport FormWriter
from ringfeed.spec._rows cimport RowChange, RowWriter, rf_note_times
from ringfeed.spec._writer cimport LeafWriter

import numpy as np

from ringfeed.errors import SpecError


@cython.final
cdef class RowTransform(RowChange):
    """Calls transform(index, views) on a row in its slot, and writes what it returns there."""

    cdef object transform

    def __cinit__(self, transform):
        self.transform = transform

    cdef int apply(self, RowWriter writer, c.rf_claim *claim, uint32_t row) except -1:
        cdef int64_t index = claim.indices[row]
        out = writer.views_of(claim, row)
        given = writer.spec.unflatten(out)
        answer = self.transform(index, given)
        if answer is not None:
            put_back(writer, claim, row, answer, out)
        else:
            writer.check_out(given, out, index, "sample", "transform")
        for leaf in writer.leaves:
            (<LeafWriter>leaf).clear_row(claim.base, claim.first_row + row)
        return 0


cdef put_back(RowWriter writer, c.rf_claim *claim, uint32_t row, sample, list out):
    """Write a sample into the row that its leaves may be parts of."""
    cdef int64_t index = claim.indices[row]
    leaves = writer.spec.flatten(sample, index)
    found = [None if leaf is field else np.array(writer.spec.array(number, leaf, index))
             for number, (leaf, field) in enumerate(zip(leaves, out))]
    for number, (array, field) in enumerate(zip(found, out)):
        if array is None:
            continue
        if writer.leaf(number).field.form is None:
            field[...] = array
        else:
            (<FormWriter>writer.leaf(number)).put_sample(
                array, claim.base, claim.first_row + row, index)


cdef void forget_end(c.rf_claim *claim, uint32_t read) noexcept:
    """Have a claim that an iterable's end has cut off after these rows fail for another reason.

    It has room for one. The next batch shows the end.
    """
    cdef uint32_t row
    (<c.rf_failure *>claim.failure).size = 0
    for row in range(read, claim.rows):
        claim.marks[row] = c.RF_ROW_OK


@cython.final
cdef class BatchWriter:
    """Calls `batch_transform` and `collate_fn` on batches, with the `RowWriter` of their rows."""

    cdef RowWriter rows

    def __cinit__(self, RowWriter rows not None):
        self.rows = rows

    cdef FormWriter form(self, Py_ssize_t number):
        """Return the writer of a leaf with a form; of another leaf None."""
        leaf = self.rows.leaf(number)
        return <FormWriter>leaf if leaf.field.form is not None else None

    def change(self, uintptr_t claim_address, fill, transform, bint whole, bint skips, on_error):
        """Call fill() for the whole claimed batch, and transform(indices, views) on its rows.

        What that returns is written in their place. Rows that failed are left out where the batch
        goes on without them.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef uint32_t row
        if not fill():
            return False
        rows = list(range(claim.rows_delivered))
        if not whole:
            rows = [row for row in rows if claim.marks[row] == c.RF_ROW_OK]
        if not rows or (len(rows) < claim.rows_delivered and not skips):
            return True
        indices = (claim.indices[0],) if whole else tuple([claim.indices[row] for row in rows])
        try:
            self.change_rows(claim, rows, indices, transform)
        except BaseException as error:
            if not skips:
                forget_end(claim, claim.rows_delivered)
            failed = [0] if whole else rows if skips else rows[:1]
            for row in failed:
                on_error(row, claim.indices[row], error)
            if whole:
                claim.rows_delivered = 0
        return True

    def collate(
        self, uintptr_t claim_address, fill, make, change, uint32_t most, bint skips, on_error
    ):
        """Call fill() to read the claimed samples, and write the batch make(indices) of them.

        change(indices, views) then changes it in the slot, unless that is None. No batch is made
        where a sample has failed, unless it goes on without that sample: `skips`.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef uint32_t row, read
        claim.rows_delivered = claim.rows  # also where Ctrl-C has kept it from its end
        if not fill():
            return False
        read = claim.rows_delivered  # up to the end of an iterable
        rows = [row for row in range(read) if claim.marks[row] == c.RF_ROW_OK]
        claim.rows_delivered = 0
        if not rows or (len(rows) < read and not skips):
            return True
        indices = tuple([claim.indices[row] for row in rows])
        try:
            self.write_made(claim, indices, make, change, most)
        except BaseException as error:
            claim.rows_delivered = 0
            if not skips:
                forget_end(claim, read)
            for row in rows if skips else rows[:1]:
                on_error(row, claim.indices[row], error)
        return True

    cdef write_made(self, c.rf_claim *claim, tuple indices, make, change, uint32_t most):
        cdef int64_t began_ns = c.rf_now_ns(), made_ns, count = len(indices)
        c.rf_blame_stage(claim, c.RF_IN_COLLATE_FN)
        batch = make(indices)
        made_ns = c.rf_now_ns()
        self.rows.begin(claim)
        claim.rows_delivered = self.rows.write_batch(batch, claim.base, indices[0], most)
        # By the row, since of a ticket's samples one was timed.
        rf_note_times(claim, 0, (made_ns - began_ns) // count, (c.rf_now_ns() - made_ns) // count)
        if change is not None:
            self.change_rows(claim, list(range(claim.rows_delivered)), indices, change)

    cdef change_rows(self, c.rf_claim *claim, list rows, tuple indices, transform):
        """Call transform on views of a batch, or on copies if rows are missing or have a form."""
        cdef Py_ssize_t number
        has_gaps = len(rows) < claim.rows_delivered
        out = [self.field_of(claim, number, rows, has_gaps) for number in range(self.rows.count)]
        given = self.rows.spec.unflatten(out)
        c.rf_blame_stage(claim, c.RF_IN_BATCH_TRANSFORM)
        answer = transform(indices, given)
        leaves = out
        if answer is not None:
            leaves = self.changed_to(answer, out, indices[0])
        else:
            self.rows.check_out(given, out, indices[0], "batch", "batch_transform")
        for number in range(self.rows.count):
            if has_gaps or leaves[number] is not out[number] or self.form(number) is not None:
                self.write_rows(claim, number, leaves[number], rows, indices[0])
            self.clear_rows(claim, number)

    cdef field_of(self, c.rf_claim *claim, Py_ssize_t number, list rows, bint has_gaps):
        """Return the rows of a field as `batch_transform` is given them."""
        if self.form(number) is not None:
            leaf = self.rows.spec.leaves[number]
            return leaf.form.joined(leaf, self.samples_at(claim, number, rows))
        view = self.view_of(claim, number)
        return view[rows] if has_gaps else view

    cdef list samples_at(self, c.rf_claim *claim, Py_ssize_t number, list rows):
        """Return these rows of a leaf with a form, as they lie in the slot."""
        cdef Field field = self.rows.leaf(number).field
        return [field.wrap(claim.base, claim.first_row + <uint32_t>row, -1, self.rows.owner)
                for row in rows]

    cdef view_of(self, c.rf_claim *claim, Py_ssize_t number):
        cdef Field field = self.rows.leaf(number).field
        return field.wrap(claim.base, claim.first_row, claim.rows_delivered, self.rows.owner)

    cdef list changed_to(self, batch, list out, int64_t index):
        """Return the leaves of `out` where a batch still has them; of others, copies that fit."""
        leaves = self.rows.spec.flatten(batch, index, "batch")
        return [leaf if leaf is field else self.copied(number, leaf, field, index)
                for number, (leaf, field) in enumerate(zip(leaves, out))]

    cdef copied(self, Py_ssize_t number, leaf, field, int64_t index):
        path = self.rows.spec.leaves[number].path.replace("sample", "batch", 1)
        where = f"dataset[{index}]: {path}"
        if self.form(number) is not None:
            found = [np.array(sample) for sample in
                     self.rows.spec.samples(number, leaf, index, self.rows_of(number, field))]
            if len(found) != self.rows_of(number, field):
                raise SpecError(f"{where} has {len(found)} samples, expected "
                                f"{self.rows_of(number, field)} as before batch_transform; "
                                f"give as many")
            return found
        if np.shape(leaf) != field.shape:
            raise SpecError(f"{where} has shape {np.shape(leaf)}, expected {field.shape} as before "
                            f"batch_transform; change shapes in transform=")
        return np.array(self.rows.spec.batch_array(number, leaf, index, len(field)))

    cdef rows_of(self, Py_ssize_t number, field):
        """Return how many samples of a leaf with a form `batch_transform` was given."""
        return len(self.rows.spec.leaves[number].form.values_of(field))

    cdef write_rows(self, c.rf_claim *claim, Py_ssize_t number, leaf, list rows, int64_t index):
        """Write rows that are no views of the slot."""
        if self.form(number) is not None:
            if type(leaf) is not list:
                leaf = self.samples_in(claim, number, leaf, rows, index)
            self.form(number).write_anew(leaf, claim.base, claim.first_row, rows, index)
            return
        view = self.view_of(claim, number)
        view[rows if len(rows) < claim.rows_delivered else ...] = leaf

    cdef list samples_in(
        self, c.rf_claim *claim, Py_ssize_t number, leaf, list rows, int64_t index
    ):
        """Return the samples of a leaf that was changed in place, in the lengths that they had."""
        place = self.rows.spec.leaves[number]
        if not place.form.is_padded:
            return self.rows.spec.samples(number, leaf, index, len(rows))
        values = place.form.values_of(leaf)
        shapes = [np.shape(sample) for sample in self.samples_at(claim, number, rows)]
        return [value[tuple(map(slice, shape))] for value, shape in zip(values, shapes)]

    cdef clear_rows(self, c.rf_claim *claim, Py_ssize_t number):
        """Clear the padding of elements that the user's code may have written."""
        cdef Field field = self.rows.leaf(number).field
        if field.form is None:
            field.clear_gaps(claim.base + field.offset, self.view_of(claim, number).nbytes)


def fill_draws(uintptr_t claim_address, Py_ssize_t index_at, Py_ssize_t weight_at, fill):
    """Write the number and the weight of each draw into these fields, and call `fill`.

    Indices of the claim are draws: a float32 of 0 or more above 32 bits of a sample's number.
    `fill` sees numbers.
    """
    cdef c.rf_claim *claim = <c.rf_claim *>claim_address
    cdef const int64_t *draws = claim.indices
    cdef int64_t *numbers = <int64_t *>(claim.base + index_at) + claim.first_row
    cdef uint32_t *weights = <uint32_t *>(claim.base + weight_at) + claim.first_row
    cdef uint32_t row
    for row in range(claim.rows):
        numbers[row] = draws[row] & 0xffffffff
        weights[row] = <uint32_t>(draws[row] >> 32)
    claim.indices = numbers
    try:
        return fill()
    finally:
        claim.indices = draws  # what the ticket is sealed with
