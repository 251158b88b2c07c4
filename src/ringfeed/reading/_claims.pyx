# cython: language_level=3, boundscheck=False, wraparound=False
"""What a worker that holds several claims asks of each, and says of them: see cext/several.h.

A claim is named by its address, `WorkerEnd.claim_address`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from ringfeed.ring cimport _cring as c


cdef extern from "several.h" nogil:
    void rf_show(const c.rf_claim *claim, uint32_t row)
    void rf_discount(const c.rf_claim *claim, int64_t until_ns)
    bint rf_is_stopped(const c.rf_claim *claim)


cdef extern from "times.h" nogil:
    uint32_t rf_timed_row(const c.rf_claim *claim)
    void rf_note_times(const c.rf_claim *claim, uint64_t rows, int64_t read_ns, int64_t write_ns)


cdef inline c.rf_claim *at(uintptr_t address) noexcept:
    return <c.rf_claim *>address


def rows_to_read(uintptr_t address):
    """Return (row, index) of each row of the claim that was not given up."""
    cdef c.rf_claim *claim = at(address)
    cdef uint32_t row
    rows = [row for row in range(claim.rows) if claim.marks[row] != c.RF_ROW_KILLED]
    return [(row, claim.indices[row]) for row in rows]


def attempt_of(uintptr_t address):
    """Return how many workers have died that held the ticket."""
    return at(address).attempt


def timed_row(uintptr_t address):
    """Return the row whose times go into the statistics; beyond the claim's rows: no row does."""
    return rf_timed_row(at(address))


def is_cancelled(uintptr_t address):
    """Return whether the epoch of the ticket was broken off."""
    return bool(c.rf_cancelled(at(address)))


def is_stopped(uintptr_t address):
    """Return whether the ring has stopped."""
    return rf_is_stopped(at(address))


def show(uintptr_t address, uint32_t row):
    """Have the worker's line show this claim, at this row: a death blames none."""
    rf_show(at(address), row)


def blame(uintptr_t address, uint32_t row):
    """Have the worker's line show this claim, and a death blame this row of it."""
    rf_show(at(address), row)
    c.rf_blame(at(address), row)


def note_read(uintptr_t address, int64_t read_ns):
    """Count for how long the row was read whose writing counts the row."""
    rf_note_times(at(address), 0, read_ns, 0)


def discount(uintptr_t address, int64_t until_ns):
    """Count the time up to then for other claims alone; after the claim's publication."""
    rf_discount(at(address), until_ns)


def move(uintptr_t source, uintptr_t target):
    """Have another end of the same worker hold the claim."""
    at(target)[0] = at(source)[0]
