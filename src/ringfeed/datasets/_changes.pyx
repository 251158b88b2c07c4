# cython: language_level=3, boundscheck=False, wraparound=False
"""Writes what the user's functions make of rows and batches; and the draws of a sampler."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._fields cimport Field
from ringfeed.spec._forms cimport FormWriter
from ringfeed.spec._rows cimport RowChange, RowWriter, rf_note_times
from ringfeed.spec._writer cimport LeafWriter

import numpy as np

from ringfeed._classes import copied
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
cdef class SampleKeeper(LeafWriter):
    """Keeps the samples of a claim for `collate_fn`, by their rows, which have no bytes."""

    cdef list samples
    cdef Py_ssize_t first  # row of the claim
    cdef bint copies  # a sample may share its memory with the next

    cdef int begin(self, const c.rf_claim *claim, bint stream) except -1:
        self.samples, self.first = [None] * claim.rows, claim.first_row
        return 0

    cdef int write(self, value, uint8_t *base, Py_ssize_t row, int64_t index) except -1:
        # A row that is read again, one by one, takes the place of what it was.
        self.samples[row - self.first] = copied(value) if self.copies else value
        return 0

    cdef list take(self, list rows):
        """Return the samples of these rows of the claim, and keep none."""
        samples, self.samples = self.samples, []
        return [samples[row] for row in rows]


def keeper_of(RowWriter rows not None, bint copies):
    """Let a writer of rows of one leaf keep the samples."""
    cdef SampleKeeper keeper = SampleKeeper(rows.spec, 0, 0, rows.owner)
    keeper.copies = copies
    rows.leaves = [keeper]
    return keeper


@cython.final
cdef class BatchWriter:
    """Calls `batch_transform` and `collate_fn` on batches, with the `RowWriter` of their rows."""

    cdef RowWriter rows
    cdef SampleKeeper keeper

    def __cinit__(self, RowWriter rows not None, SampleKeeper keeper):
        """`keeper`: has the samples of which a batch is made; None: `rows` writes them."""
        self.rows, self.keeper = rows, keeper

    def fill(self, uintptr_t claim_address, fill, make, change, source, on_error):
        """Call fill() to read the claimed batch, and have the user's functions change it.

        make(indices, samples) makes the batch of the samples that were kept; change(indices, views)
        changes it in the slot; either may be None. Nothing is made or changed where a sample has
        failed, unless the batch goes on without it.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef uint32_t row, read
        cdef bint whole = source.whole, skips = source.skips
        if make is not None:
            claim.rows_delivered = claim.rows  # also where Ctrl-C has kept it from its end
        if not fill():
            return False
        read = claim.rows_delivered  # up to the end of an iterable
        rows = [row for row in range(read) if whole or claim.marks[row] == c.RF_ROW_OK]
        if make is not None:
            claim.rows_delivered = 0
        if not rows or (len(rows) < read and not skips):
            return True
        indices = (claim.indices[0],) if whole else tuple([claim.indices[row] for row in rows])
        try:
            if make is not None:
                self.write_made(claim, rows, indices, make, source.rows)
            if change is not None:
                made = rows if make is None else list(range(claim.rows_delivered))
                self.change_rows(claim, made, indices, change)
        except BaseException as error:
            if not skips:
                forget_end(claim, read)
            if whole or make is not None:
                claim.rows_delivered = 0
            for row in [0] if whole else rows if skips else rows[:1]:
                on_error(row, claim.indices[row], error)
        return True

    cdef write_made(self, c.rf_claim *claim, list rows, tuple indices, make, uint32_t most):
        cdef int64_t began_ns = c.rf_now_ns(), made_ns, count = len(indices)
        c.rf_blame_stage(claim, c.RF_IN_COLLATE_FN)
        batch = make(indices, self.keeper.take(rows))
        made_ns = c.rf_now_ns()
        self.rows.begin(claim)
        claim.rows_delivered = self.rows.write_batch(batch, claim.base, indices[0], most)
        # By the row, since of a ticket's samples one was timed.
        rf_note_times(claim, 0, (made_ns - began_ns) // count, (c.rf_now_ns() - made_ns) // count)

    cdef change_rows(self, c.rf_claim *claim, list rows, tuple indices, transform):
        """Call transform on views of a batch, or on copies if rows are missing or have a form."""
        cdef Py_ssize_t number
        cdef Field field
        spec = self.rows.spec
        out = [self.given(claim, number, rows) for number in range(self.rows.count)]
        given = spec.unflatten(out)
        c.rf_blame_stage(claim, c.RF_IN_BATCH_TRANSFORM)
        answer = transform(indices, given)
        if answer is None:
            self.rows.check_out(given, out, indices[0], "batch", "batch_transform")
        leaves = out if answer is None else spec.flatten(answer, indices[0], "batch")
        # All are copied before any is written, since they may be parts of one another.
        found = [self.values_of(claim, number, leaf, own, rows, indices[0])
                 for number, (leaf, own) in enumerate(zip(leaves, out))]
        for number, values in enumerate(found):
            field = self.rows.leaf(number).field
            if field.form is not None:
                (<FormWriter>self.rows.leaf(number)).write_anew(
                    values, claim.base, claim.first_row, rows, indices[0])
                continue
            view = self.view_of(claim, number)
            if values is not None:
                view[rows if len(rows) < claim.rows_delivered else ...] = values
            # The user's code may have written into the padding of elements.
            field.clear_gaps(claim.base + field.offset, view.nbytes)

    cdef given(self, c.rf_claim *claim, Py_ssize_t number, list rows):
        """Return these rows of a leaf as `batch_transform` is given them."""
        leaf = self.rows.spec.leaves[number]
        if leaf.form is not None:
            return leaf.form.joined(leaf, self.samples_at(claim, number, rows))
        view = self.view_of(claim, number)
        return view[rows] if len(rows) < claim.rows_delivered else view

    cdef list samples_at(self, c.rf_claim *claim, Py_ssize_t number, list rows):
        """Return these rows of a leaf with a form, as they lie in the slot."""
        cdef Field field = self.rows.leaf(number).field
        return [field.wrap(claim.base, claim.first_row + <uint32_t>row, -1, self.rows.owner)
                for row in rows]

    cdef view_of(self, c.rf_claim *claim, Py_ssize_t number):
        cdef Field field = self.rows.leaf(number).field
        return field.wrap(claim.base, claim.first_row, claim.rows_delivered, self.rows.owner)

    cdef values_of(
        self, c.rf_claim *claim, Py_ssize_t number, leaf, own, list rows, int64_t index
    ):
        """Return what to write into these rows of a leaf; None where it lies there.

        `own`: what `batch_transform` was given of it.
        """
        spec, place = self.rows.spec, self.rows.spec.leaves[number]
        where = f"dataset[{index}]: {place.path.replace('sample', 'batch', 1)}"
        if place.form is not None:
            if leaf is own and place.form.is_padded:  # in the lengths that they had
                shapes = [np.shape(sample) for sample in self.samples_at(claim, number, rows)]
                return [value[tuple(map(slice, shape))]
                        for value, shape in zip(place.form.values_of(leaf), shapes)]
            samples = [np.array(sample) for sample in spec.samples(number, leaf, index, len(rows))]
            if len(samples) != len(rows):
                raise SpecError(f"{where} has {len(samples)} samples, expected {len(rows)} as "
                                f"before batch_transform; give as many")
            return samples
        if leaf is own:
            return own if len(rows) < claim.rows_delivered else None
        if np.shape(leaf) != own.shape:
            raise SpecError(f"{where} has shape {np.shape(leaf)}, expected {own.shape} as before "
                            f"batch_transform; change shapes in transform=")
        return np.array(spec.batch_array(number, leaf, index, len(own)))


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
