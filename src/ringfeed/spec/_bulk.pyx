# cython: language_level=3, boundscheck=False, wraparound=False
"""Fills a claim with many samples at once."""

from libc.stdint cimport int64_t, uint32_t, uintptr_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._rows cimport RowWriter, rf_note_times


def fill_many(RowWriter writer not None, uintptr_t claim_address, getitems, context, on_error):
    """Fill the claim with getitems(indices), many samples at once; False when the claim was cancelled.

    If that fails, or kills a worker, one at a time: the sample at fault is found and blamed, the
    others are saved.
    """
    cdef c.rf_claim *claim = <c.rf_claim *>claim_address
    cdef uint32_t row
    rows = [row for row in range(claim.rows) if claim.marks[row] != c.RF_ROW_KILLED]
    writer.begin(claim)
    context.index = None  # many samples at once: rng() has none to belong to
    if not rows or c.rf_cancelled(claim):
        return not rows
    if claim.attempt == 0 and many(writer, claim, rows, getitems, context, on_error, len(rows) == 1):
        return True
    writer.begin(claim)
    for row in rows:
        if c.rf_cancelled(claim):
            return False
        many(writer, claim, [row], getitems, context, on_error, True)
    return True


cdef bint many(RowWriter writer, c.rf_claim *claim, list rows, getitems, context, on_error, bint last_try) except -1:
    """Fill some rows; False where they are to be tried one at a time."""
    cdef uint32_t row
    cdef Py_ssize_t count = 0
    cdef int64_t began_ns = c.rf_now_ns(), write_ns = 0, since_ns = 0
    cdef bint lazily  # samples are read while they are asked for, one after another
    indices = [claim.indices[row] for row in rows]
    faults = []
    if last_try:
        c.rf_blame(claim, rows[0])
    else:
        blame_none(claim, rows[0])
    try:
        samples = getitems(list(indices))
        lazily = type(samples) is not list and type(samples) is not tuple
        since_ns = c.rf_now_ns()
        for sample in samples:  # one by one: a generator may fill the same buffer again
            if lazily:
                since_ns = c.rf_now_ns()
            if count == len(rows):
                raise ValueError(f"__getitems__ returned more than {len(rows)} samples for as many indices")
            try:
                writer.write(sample, claim.base, claim.first_row + <uint32_t>rows[count], indices[count])
                if writer.change is not None:
                    writer.change_alone(claim, rows[count], context)
            except BaseException as error:
                faults.append((rows[count], indices[count], error))
            if lazily:
                write_ns += c.rf_now_ns() - since_ns
            count += 1
        if not lazily:
            write_ns = c.rf_now_ns() - since_ns
        rf_note_times(claim, count, c.rf_now_ns() - began_ns - write_ns, write_ns)
        if count != len(rows):
            raise ValueError(f"__getitems__ returned {count} samples for {len(rows)} indices")
    except BaseException as error:
        if not last_try and not isinstance(error, KeyboardInterrupt):
            return False
        faults = [(row, claim.indices[row], error) for row in rows]
    for row, index, error in faults:
        on_error(row, index, error)
    return True


cdef void blame_none(c.rf_claim *claim, uint32_t row) noexcept:
    """Tell that the worker is at a row and those behind it, without a blame for any of them."""
    cdef c.rf_claim beside = claim[0]
    beside.first_row = 0xfffffffe - row  # no row of a batch: a death here says only that the next try goes row by row
    c.rf_blame(&beside, row)
