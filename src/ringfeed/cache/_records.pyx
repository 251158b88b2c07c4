# cython: language_level=3, boundscheck=False, wraparound=False
"""Finds a cache's records, and has a claim filled from them without any Python code: see `file`."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from ringfeed.ring cimport _cring as c
from ringfeed.spec._rows cimport RowWriter

from ringfeed.errors import StateError


cdef extern from "bytes/entries.h" nogil:
    struct rf_entry:
        pass

    struct rf_records:
        const uint8_t *bytes
        uint64_t size
        const rf_entry *entries
        uint64_t count, begins, run, identity
        uint64_t *seen

    void rf_fence()

    enum rf_found:
        RF_HERE, RF_ABSENT, RF_BEYOND, RF_BROKEN

    uint64_t rf_sum_of(const uint8_t *bytes, size_t size, uint64_t seed)
    uint64_t rf_mark_of(uint64_t run, uint64_t offset, uint64_t size)
    rf_found rf_find(const rf_records *records, uint64_t index, uint64_t *offset)
    bint rf_find_rows(const rf_records *records, const int64_t *indices, uint32_t rows,
                      const uint8_t *head, size_t head_size, int64_t *places)


cdef extern from "words.h" nogil:
    void rf_add_to_word(void *word, uint64_t count)


# What `Records.find` returns in the place of an offset.
ABSENT, BEYOND, BROKEN = -RF_ABSENT, -RF_BEYOND, -RF_BROKEN


@cython.final
cdef class Records:
    """A cache's file as one mapping of it shows it; keeps the mapping.

    `seen`: a word for each entry, which all mappings of this process share.
    """

    cdef readonly object memory
    cdef const uint8_t[::1] bytes
    cdef uint64_t[::1] seen
    cdef rf_records records

    def __cinit__(self, memory, seen, uint64_t first, uint64_t run, uint64_t identity):
        self.memory, self.bytes, self.seen = memory, memory, seen
        self.records.count = self.seen.shape[0]
        self.records.begins = first + self.records.count * sizeof(rf_entry)
        if <uint64_t>self.bytes.shape[0] < self.records.begins:
            raise StateError(
                "another program has cut off the file of a Cache; remove it, and start again"
            )
        self.records.bytes, self.records.size = &self.bytes[0], self.bytes.shape[0]
        self.records.entries = <const rf_entry *>(self.records.bytes + first)
        self.records.run, self.records.identity = run, identity
        self.records.seen = &self.seen[0]

    def find(self, uint64_t index):
        """Return where a record lies; else ABSENT, BEYOND this mapping, or BROKEN."""
        cdef rf_found found
        cdef uint64_t offset
        if index >= self.records.count:
            return ABSENT
        with nogil:
            found = rf_find(&self.records, index, &offset)
        return offset if found == RF_HERE else -<int>found

    def entry_of(self, uint64_t index, uint64_t offset, const uint8_t[::1] record not None):
        """Return the mark and the checksum of the entry of a record at an offset of the file."""
        cdef uint64_t size = record.shape[0], sum
        with nogil:
            sum = rf_sum_of(&record[0], size, index ^ self.records.identity)
        return rf_mark_of(self.records.run, offset, size), sum

    def gather(self, uintptr_t claim_address, RowWriter writer not None, bytes head, columns,
               context, on_error):
        """Fill the claim from `columns`, whose row at each byte is that of a record there.

        None where a row of it has no record that begins with `head`; else as `RowWriter.gather`.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef const int64_t *indices = claim.indices
        cdef const uint8_t *start = head
        cdef size_t size = len(head)
        cdef bint found
        cdef int64_t *places = <int64_t *>malloc(claim.rows * sizeof(int64_t))
        if places == NULL:
            raise MemoryError
        try:
            with nogil:
                found = rf_find_rows(&self.records, indices, claim.rows, start, size, places)
            if not found:
                return None
            claim.indices = places
            return writer.gather(claim_address, columns, context, on_error)
        finally:
            claim.indices = indices  # what the ticket is sealed with
            free(places)


def first_of(uintptr_t claim_address):
    """Return the index of a claim's first row, and how many rows it has.

    None: it has killed a worker, as a page of a cache does that a disk cannot read.
    """
    cdef c.rf_claim *claim = <c.rf_claim *>claim_address
    return None if claim.attempt else (claim.indices[0], claim.rows)


def fence():
    """W: have what was written before seen ahead of what is written next."""
    rf_fence()


def add(uint64_t[::1] counts not None, Py_ssize_t number, uint64_t count):
    """Add to a count that other processes add to, too."""
    rf_add_to_word(&counts[number % counts.shape[0]], count)
