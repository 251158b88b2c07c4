# cython: language_level=3, boundscheck=False, wraparound=False
"""Words of shared memory by which the reader of a stream and its workers tell each other of it.

See cext/words.h. A claim is named by its address, `WorkerEnd.claim_address`.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Ring


cdef extern from "ring.h" nogil:
    struct rf_worker:
        pass
    struct rf_control:
        int stop
    struct ring_of_lines "rf_ring":
        rf_worker *workers
        rf_control *control


cdef extern from "words.h" nogil:
    uint64_t rf_get_word(void *word)
    void rf_set_word(void *word, uint64_t value)
    void rf_add_to_word(void *word)
    void rf_wait_word(void *word, uint64_t seen, int64_t deadline_ns)
    void rf_wake_word(void *word)
    void rf_show_reading(rf_worker *line, uint64_t index)
    void rf_show_read(rf_worker *line)
    void rf_begin_wait(c.rf_claim *claim)
    void rf_end_wait(c.rf_claim *claim)
    bint rf_is_over(const c.rf_claim *claim)


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

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t number):
        return rf_get_word(self.at(number))

    def __setitem__(self, Py_ssize_t number, uint64_t value):
        rf_set_word(self.at(number), value)

    def add(self, Py_ssize_t number):
        """Add 1 to a word; also while others do."""
        rf_add_to_word(self.at(number))

    def wake(self, Py_ssize_t number):
        """Wake all that sleep on a word."""
        rf_wake_word(self.at(number))

    def wait(self, Py_ssize_t number, uint64_t seen, int64_t timeout_ns):
        """Sleep while a word is ``seen``, until a wake, a signal or the end of the time."""
        cdef uint64_t *word = self.at(number)
        with nogil:
            rf_wait_word(word, seen, c.rf_now_ns() + timeout_ns)


cdef rf_worker *line_of(Ring ring, uint32_t worker) except NULL:
    if worker >= ring.ring.geometry.ids:
        raise ValueError(f"worker {worker} of {ring.ring.geometry.ids}")
    return (<ring_of_lines *>ring.ring).workers + worker


def show_reading(Ring ring, uint32_t worker, uint64_t index):
    """Have a worker's line show that it reads an element."""
    rf_show_reading(line_of(ring, worker), index)


def show_read(Ring ring, uint32_t worker):
    """Have a worker's line show that it is at nothing."""
    rf_show_read(line_of(ring, worker))


def is_stopped(Ring ring):
    """Return whether the ring has stopped."""
    return bool((<ring_of_lines *>ring.ring).control.stop)


def is_over(uintptr_t claim):
    """Return whether the epoch of a claim was broken off, or the ring has stopped."""
    return rf_is_over(<c.rf_claim *>claim)


def begin_wait(uintptr_t claim):
    """Have the worker's line show that it is at nothing, while a claim is held."""
    rf_begin_wait(<c.rf_claim *>claim)


def end_wait(uintptr_t claim):
    """Have the worker's line show that it is at its claim, from now on."""
    rf_end_wait(<c.rf_claim *>claim)
