"""The feed in C, as far as Python uses it; the ring's extension has a table of its functions."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from ringfeed.ring._cring cimport rf_ring


cdef extern from "export/feed.h" nogil:
    enum:
        RF_OVER

    struct rf_feed:
        pass

    enum rf_reply:
        RF_REPLY_BATCH
        RF_REPLY_END
        RF_REPLY_ERROR

    struct rf_part:
        uint64_t offset
        uint64_t row_size
        int32_t axes
        int32_t type
        int64_t shape[33]

    struct rf_handout:
        pass

    enum rf_question:
        RF_BEGIN
        RF_TAKE
        RF_LEFT

    struct rf_callbacks:
        rf_reply (*ask)(
            rf_feed *feed, rf_question question, int64_t *number, rf_handout *handout, char **error
        ) noexcept nogil
        uint32_t (*interrupted)(uint32_t told, int64_t now_ns) noexcept nogil

    struct rf_feed_calls:
        rf_feed *(*make)(const rf_callbacks *asks, uint32_t rows, uint32_t parts) noexcept nogil
        rf_part *(*part)(rf_feed *feed, uint32_t part) noexcept nogil
        uint64_t (*number)(const rf_feed *feed) noexcept nogil
        void (*end)(rf_feed *feed) noexcept nogil
        void (*attach)(rf_feed *feed, rf_ring *ring, int64_t timeout_ns) noexcept nogil
        void (*detach)(rf_feed *feed) noexcept nogil
        void (*give)(
            rf_handout *handout, rf_ring *ring, uint32_t slot, uint32_t rows
        ) noexcept nogil
        uint32_t (*leave)() noexcept nogil
