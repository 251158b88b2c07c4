"""What other extensions of ringfeed see of the ring: its classes, and the table of the feed's functions."""

from ringfeed cimport _cring as c

cdef const c.rf_feed_calls *feed_calls


cdef class Ring:
    cdef c.rf_ring *ring


cdef class Lease:
    cdef c.rf_ring *ring
    cdef c.rf_taken taken
