# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which stratum comes when: see `subsets`."""

import numpy as np

from libc.stdint cimport int64_t


cdef inline bint precedes(const int64_t[::1] deadlines, int64_t one, int64_t other) noexcept nogil:
    return deadlines[one] < deadlines[other] or (deadlines[one] == deadlines[other] and one < other)


cdef void push(int64_t[::1] heap, int64_t size, const int64_t[::1] deadlines, int64_t stratum) noexcept nogil:
    """Add a stratum to a binary heap of `size` strata, the one of the first deadline on top."""
    cdef int64_t at = size
    while at and precedes(deadlines, stratum, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = stratum


cdef int64_t pop(int64_t[::1] heap, int64_t size, const int64_t[::1] deadlines) noexcept nogil:
    """Take the top out of a heap of `size` strata."""
    cdef int64_t top = heap[0], last = heap[size - 1], at = 0, child = 1
    while child < size - 1:
        if child + 1 < size - 1 and precedes(deadlines, heap[child + 1], heap[child]):
            child += 1
        if not precedes(deadlines, heap[child], last):
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = last
    return top


def schedule(const int64_t[::1] counts not None):
    """Return the stratum at each of `sum(counts)` positions, at most 2**31 of them; each count is 1 or more."""
    cdef int64_t length = np.sum(counts), strata = counts.shape[0]
    cdef int64_t position, stratum, release, waiting = 0
    order = np.empty(length, np.int64)
    cdef int64_t[::1] chosen = order
    cdef int64_t[::1] taken = np.zeros(strata, np.int64)
    cdef int64_t[::1] deadlines = np.empty(strata, np.int64)
    cdef int64_t[::1] heap = np.empty(strata, np.int64)
    cdef int64_t[::1] following = np.empty(strata, np.int64)  # of those that are released at one position
    cdef int64_t[::1] first = np.full(length, -1, np.int64)  # of these
    for stratum in range(strata - 1, -1, -1):
        following[stratum] = first[0]
        first[0] = stratum
    with nogil:
        for position in range(length):
            stratum = first[position]
            while stratum >= 0:
                deadlines[stratum] = ((taken[stratum] + 1) * length + counts[stratum] - 1) // counts[stratum]
                push(heap, waiting, deadlines, stratum)
                waiting += 1
                stratum = following[stratum]
            stratum = pop(heap, waiting, deadlines)
            waiting -= 1
            chosen[position] = stratum
            taken[stratum] += 1
            if taken[stratum] < counts[stratum]:
                release = taken[stratum] * length // counts[stratum]
                following[stratum] = first[release]
                first[release] = stratum
    return order
