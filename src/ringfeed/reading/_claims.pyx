# cython: language_level=3, boundscheck=False, wraparound=False
"""Claims whose rows wait for something: one of several in a worker, or of elements from elsewhere.

See cext/several.h and cext/words.h. A claim is named by its address, `WorkerEnd.claim_address`.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from ringfeed.ring cimport _cring as c


cdef extern from "several.h" nogil:
    void rf_begin_part(
        const c.rf_claim *claim, uint32_t row, uint32_t rows, bint blames, c.rf_claim *part
    )
    void rf_end_part(const c.rf_claim *part, c.rf_claim *claim)
    void rf_forget_later(const c.rf_claim *part, uint32_t row)
    void rf_show(const c.rf_claim *claim, uint32_t row)
    void rf_discount(const c.rf_claim *claim, int64_t until_ns)
    bint rf_is_stopped(const c.rf_claim *claim)


cdef extern from "times.h" nogil:
    uint32_t rf_timed_row(const c.rf_claim *claim)
    void rf_note_times(const c.rf_claim *claim, uint64_t rows, int64_t read_ns, int64_t write_ns)


cdef extern from "words.h" nogil:
    uint64_t rf_get_word(void *word)
    void rf_set_word(void *word, uint64_t value)
    void rf_add_to_word(void *word, uint64_t count)
    void rf_wait_word(void *word, uint64_t seen, int64_t deadline_ns)
    void rf_wake_word(void *word)
    void rf_show_reading(c.rf_worker *line, uint64_t index)
    void rf_show_read(c.rf_worker *line)
    void rf_begin_wait(c.rf_claim *claim)
    void rf_end_wait(c.rf_claim *claim)


cdef inline c.rf_claim *at(uintptr_t address) noexcept:
    return <c.rf_claim *>address


def move(uintptr_t source, uintptr_t target):
    """Have another end of the same worker hold the claim."""
    at(target)[0] = at(source)[0]


def begin_part(uintptr_t address, uint32_t row, uint32_t rows, bint blames, uintptr_t part):
    """Have another end hold these rows of the claim; 0: all.

    `blames`: a death blames the row that is filled, since nothing else is in flight.
    """
    rf_begin_part(at(address), row, rows or at(address).rows, blames, at(part))


def end_part(uintptr_t part, uintptr_t address):
    """Count for the claim what was counted for its part."""
    rf_end_part(at(part), at(address))


def forget_later(uintptr_t part, uint32_t row):
    """Make room for a failure of this row of the part, if a later one's is recorded."""
    rf_forget_later(at(part), row)


def rows_to_read(uintptr_t address):
    """Return (row, index) of each row of the claim that was not given up."""
    cdef c.rf_claim *claim = at(address)
    cdef uint32_t row
    rows = [row for row in range(claim.rows) if claim.marks[row] != c.RF_ROW_KILLED]
    return [(row, claim.indices[row]) for row in rows]


def attempt_of(uintptr_t address):
    """Return how many workers have died that held the ticket."""
    return at(address).attempt


def is_cancelled(uintptr_t address):
    """Return whether the epoch of the ticket was broken off."""
    return bool(c.rf_cancelled(at(address)))


def is_stopped(uintptr_t address):
    """Return whether the ring has stopped; also before the first claim."""
    return rf_is_stopped(at(address))


# ---- times ----


def timed_row(uintptr_t address):
    """Return the row whose times go into the statistics; beyond the claim's rows: no row does."""
    return rf_timed_row(at(address))


def note_read(uintptr_t address, int64_t read_ns):
    """Count for how long the row was read whose writing counts the row."""
    rf_note_times(at(address), 0, read_ns, 0)


def discount(uintptr_t address, int64_t until_ns):
    """Count the time up to then for other claims alone; after the claim's publication."""
    rf_discount(at(address), until_ns)


# ---- what the worker's line shows ----


def show(uintptr_t address, uint32_t row):
    """Show this claim, at this row: a death blames none."""
    rf_show(at(address), row)


def blame(uintptr_t address, uint32_t row):
    """Show this claim, and have a death blame this row of it."""
    rf_show(at(address), row)
    c.rf_blame(at(address), row)


def show_reading(uintptr_t address, uint64_t index):
    """Show that the worker reads an element; also before the first claim."""
    rf_show_reading(at(address).line, index)


def show_read(uintptr_t address):
    """Show that the worker is at nothing; also before the first claim."""
    rf_show_read(at(address).line)


def begin_wait(uintptr_t address):
    """Show that the worker is at nothing, while the claim is held."""
    rf_begin_wait(at(address))


def end_wait(uintptr_t address):
    """Show that the worker is at its claim, from now on."""
    rf_end_wait(at(address))


@cython.final
cdef class Words:
    """The 64-bit words of some memory, by their numbers. It keeps that memory open."""

    cdef uint8_t[::1] memory
    cdef uint64_t *first
    cdef Py_ssize_t count

    def __cinit__(self, memory):
        self.memory = memory
        self.count = self.memory.shape[0] // 8
        self.first = <uint64_t *>&self.memory[0] if self.count else NULL

    cdef uint64_t *at(self, Py_ssize_t number) except NULL:
        if not 0 <= number < self.count:
            raise IndexError(f"word {number} of {self.count}")
        return self.first + number

    def __getitem__(self, Py_ssize_t number):
        return rf_get_word(self.at(number))

    def __setitem__(self, Py_ssize_t number, uint64_t value):
        rf_set_word(self.at(number), value)

    def add(self, Py_ssize_t number):
        """Add 1 to a word, also while others do, and wake all that sleep on it."""
        rf_add_to_word(self.at(number), 1)
        rf_wake_word(self.at(number))

    def wait(self, Py_ssize_t number, uint64_t seen, int64_t timeout_ns):
        """Sleep while a word is ``seen``, until a wake, a signal or the end of the time."""
        cdef uint64_t *word = self.at(number)
        with nogil:
            rf_wait_word(word, seen, c.rf_now_ns() + timeout_ns)
