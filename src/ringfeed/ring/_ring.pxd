"""What other extensions see of the ring: its classes, and the feed's functions."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from ringfeed.ring cimport _cring as c

cdef const c.rf_feed_calls *feed_calls


cdef class Lease:
    cdef c.rf_ring *ring
    cdef c.rf_taken taken
    cdef public dict finished

    cdef uint8_t *base(self)
    cdef bint has_failed(self, uint32_t cell) noexcept
    cdef c.rf_dlpack *export(self, const c.rf_field *field) noexcept nogil


cdef class Ring:
    cdef c.rf_ring *ring

    cdef c.rf_slot_report slot_report(self, uint32_t slot) noexcept
    cdef c.rf_worker_report worker_report(self, uint32_t worker) noexcept
    cdef c.rf_consumer_report consumer_report(self) noexcept
    cdef void read_waits(self, c.rf_waits *waits) noexcept
    cdef c.rf_answer next(self, const c.rf_terms *terms, Lease lease) noexcept
    cpdef Lease take(self)
    cdef int wait_head(self, int64_t timeout_ns, int64_t epoch_id) except -1
    cdef c.rf_answer wait_past(
        self, c.rf_answer first, int64_t timeout_ns, int64_t epoch_id
    ) except *
