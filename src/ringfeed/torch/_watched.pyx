# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Reads samples, and sees beside each whether a state in memory has changed, in nanoseconds.

    StateWatch      some bytes of generators, as they were at the last look
    WatchedSamples  a dataset whose ``[index]`` looks at them after each sample
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

import sys


cdef enum:
    MOST_PLACES = 6
    MOST_BYTES = 32


cdef struct place:
    const void *at
    size_t size
    char was[MOST_BYTES]


def word_at(uintptr_t address):
    """Return the 32 bits at an address."""
    return (<uint32_t *>address)[0]


def find(uintptr_t address, size_t size, uint64_t value):
    """Return the offset of 64 bits, at a multiple of 8 bytes, in the memory at an address; None where it is not."""
    for offset in range(0, size - 7, 8):
        if (<uint64_t *>(address + <size_t>offset))[0] == value:
            return offset
    return None


def state_of(bit_generator):
    """Return where the state of a bit generator of NumPy's begins."""
    return <uintptr_t>(<void **>PyCapsule_GetPointer(bit_generator.capsule, "BitGenerator"))[0]


@cython.final
@cython.auto_pickle(False)
cdef class StateWatch:
    """Some bytes of memory that others write, and what they were at the last look."""

    cdef place places[MOST_PLACES]
    cdef int count
    cdef list owners  # of the memory: it stays as long as this
    cdef dict modules
    cdef readonly tuple missing
    """Modules that were not imported when it was made: to import one is a change, too."""
    cdef public bint settled
    """Whether the last look was at what a sample begins with."""

    def __cinit__(self, missing=()):
        self.owners = []
        self.modules = sys.modules
        self.missing = tuple(missing)

    def add(self, owner, uintptr_t address, size_t size):
        """Watch some more bytes, which are the owner's."""
        if self.count == MOST_PLACES or size > MOST_BYTES:
            raise ValueError(f"{size} bytes at place {self.count}, expected {MOST_BYTES} at {MOST_PLACES} places")
        cdef place *new = &self.places[self.count]
        new.at, new.size = <const void *>address, size
        memcpy(new.was, new.at, size)
        self.owners.append(owner)
        self.count += 1

    cpdef bint changed(self):
        """Whether any of it has changed since the last look; looks."""
        cdef bint found = False
        cdef place *one
        for number in range(self.count):
            one = &self.places[number]
            if memcmp(one.was, one.at, one.size):
                memcpy(one.was, one.at, one.size)
                found = True
        for name in self.missing:
            if name in self.modules:
                return True
        return found


@cython.auto_pickle(False)
cdef class WatchedSamples:
    """Gives the samples of a dataset. A subclass `read`s the first, and those that change what is watched."""

    cdef object sample_of  # of the dataset, once it is watched
    cdef StateWatch watch
    cdef object context
    cdef object epoch

    def watch_over(self, dataset, StateWatch watch not None, context not None):
        """Read from a dataset at once, from now on, in this epoch."""
        self.sample_of = dataset.__getitem__
        self.context = context
        self.epoch = context.epoch
        self.watch = watch

    def __getitem__(self, index):
        if self.watch is None or not self.watch.settled or self.context.epoch != self.epoch:
            return self.read(index)
        try:
            sample = self.sample_of(index)
        except Exception:
            if not self.watch.changed():
                raise
        else:
            if not self.watch.changed():
                return sample
        self.watch.settled = False
        return self.read(index)
