"""The C core, as far as several modules of Python's world use it."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "layout.h" nogil:
    ctypedef bint rf_bool "bool"

    uint32_t RF_ABI, RF_FIELD_ALIGN, RF_CONTROL_MAX
    uint32_t RF_MAX_WORKERS, RF_MAX_IDS, RF_MAX_CELLS, RF_FAILURE_SIZE
    uint32_t RF_WAIT_SHORTEST, RF_WAIT_PARTS, RF_WAIT_BUCKETS

    enum rf_mark:
        RF_ROW_OK
        RF_ROW_RAISED
        RF_ROW_KILLED

    struct rf_failure:
        uint32_t row, size
        uint8_t payload[4080]

    struct rf_geometry:
        uint32_t slots, cells, workers, rows, ids
        uint64_t slot_size, indices_at, marks_at, failures_at
        uint32_t spin_ns

    struct rf_control:
        pass

    struct rf_worker:
        pass

    struct rf_claim:
        uint64_t batch, epoch
        uint32_t attempt, version, first_row, rows
        uint8_t *base
        const int64_t *indices
        uint8_t *marks
        const rf_failure *failure
        rf_worker *line
        const rf_control *control
        int64_t claimed_ns, work_ns
        uint32_t rows_delivered

    uint32_t RF_IN_COLLATE_FN, RF_IN_BATCH_TRANSFORM

    void rf_blame(const rf_claim *claim, uint32_t row)
    void rf_blame_stage(const rf_claim *claim, uint32_t stage)
    rf_bool rf_cancelled(const rf_claim *claim)


cdef extern from "snapshot.h" nogil:
    enum rf_slot_state:
        RF_SLOT_BOUND
        RF_SLOT_HELD
        RF_SLOT_PARKED

    struct rf_cells_report:
        uint32_t claimed, final

    struct rf_slot_report:
        rf_slot_state state
        uint32_t rows, tickets
        rf_cells_report cells
        uint64_t batch, epoch, held_ns

    struct rf_worker_report:
        uint64_t index, since_ns, busy_ns, wait_ns, samples, tickets, timed, read_ns, write_ns
        uint32_t pid
        rf_bool in_row, leave

    struct rf_consumer_report:
        uint64_t batches, samples, stall_ns, wait_ns
        uint32_t open_slots, rank, world_size
        rf_bool stopped

    struct rf_waits:
        pass

    rf_bool rf_cells_are_final(rf_cells_report cells)


cdef extern from "ring.h" nogil:
    struct rf_ring:
        rf_control *control
        rf_worker *workers
        rf_geometry geometry

    struct rf_cursor:
        uint32_t stream

    enum rf_answer:
        RF_TAKEABLE
        RF_DRY
        RF_HELD
        RF_PENDING
        RF_STOPPED
        RF_ALARMED
        RF_DAMAGED
        RF_STALE
        RF_PLAN
        RF_DUE
        RF_GAPS
        RF_CROWDED

    enum rf_room:
        RF_A_SLOT
        RF_OWN_ROOM

    struct rf_terms:
        int64_t epoch_id
        uint32_t kept
        rf_room room

    struct rf_taken:
        uint64_t batch, epoch, place
        uint32_t slot, rows, tickets, rows_per_ticket
        rf_bool failed
        uint64_t failed_cells

    enum rf_damage:
        RF_INTACT

    struct rf_damage_report:
        rf_damage what
        uint64_t batch, epoch
        uint32_t slot, first_row, rows
        rf_bool indices

    uint64_t rf_control_size(uint32_t slots, uint32_t cells, uint32_t ids)
    rf_ring *rf_open(
        int control_fd, int slots_fd, uint64_t control_size, uint64_t slots_size,
        const rf_geometry *fresh, int *why
    )
    int rf_become_consumer(rf_ring *ring, uint32_t capacity, uint32_t max_attempts)
    void rf_reference(rf_ring *ring)
    void rf_unreference(rf_ring *ring)

    uint64_t rf_window_size(uint32_t capacity, uint32_t rows)
    uint32_t rf_plan_room(const rf_ring *ring)
    uint32_t rf_planned(const rf_ring *ring)
    uint32_t rf_left(const rf_ring *ring)
    uint64_t rf_plan_taken(const rf_ring *ring)
    rf_bool rf_plan(
        rf_ring *ring, const int64_t *indices, uint32_t rows, uint64_t epoch, uint32_t version
    )
    void rf_set_stream(rf_ring *ring, uint32_t stream)
    void rf_bind(rf_ring *ring)
    void rf_set_open(rf_ring *ring, uint32_t slots)
    uint32_t rf_open_slots(const rf_ring *ring)
    int rf_give_back(rf_ring *ring, uint32_t slot)
    void rf_set_worker_count(rf_ring *ring, uint32_t workers)
    void rf_set_pace(rf_ring *ring, int64_t ticket_ns, uint32_t ticket_rows, uint32_t more)
    void rf_retire(rf_ring *ring, uint32_t worker)
    void rf_note_pid(rf_ring *ring, uint32_t worker, uint32_t pid)
    void rf_note_rank(rf_ring *ring, uint32_t rank, uint32_t world_size)
    void rf_note_stall(rf_ring *ring, int64_t stall_ns)
    void rf_note_undelivered(rf_ring *ring, uint32_t batches, uint32_t samples)
    void rf_begin(rf_ring *ring, int64_t epoch_id)
    void rf_set_border(rf_ring *ring)
    void rf_set_low_water(rf_ring *ring, uint32_t batches)
    void rf_set_due(rf_ring *ring, int64_t due_ns)
    int64_t rf_waited_ns(rf_ring *ring)
    void rf_set_waited(rf_ring *ring, int64_t waited_ns)
    rf_answer rf_next(rf_ring *ring, const rf_terms *terms, rf_taken *taken)
    rf_answer rf_take(rf_ring *ring, rf_taken *taken)
    rf_answer rf_look(rf_ring *ring)
    rf_answer rf_wait_head(rf_ring *ring, int64_t epoch_id, int64_t deadline_ns)
    rf_answer rf_wait_slot(rf_ring *ring, int64_t deadline_ns)
    uint32_t rf_head_stream(rf_ring *ring)
    rf_bool rf_has_room(const rf_ring *ring)
    rf_bool rf_wait_room(rf_ring *ring, int64_t deadline_ns)
    void rf_check(rf_ring *ring)
    rf_damage_report rf_damage_of(const rf_ring *ring)
    void rf_alarm(rf_ring *ring)

    uint8_t *rf_slot_base(const rf_ring *ring, uint32_t slot)
    const uint8_t *rf_slot_marks(const rf_ring *ring, uint32_t slot)
    const int64_t *rf_slot_indices(const rf_ring *ring, uint32_t slot)
    rf_bool rf_read_failure(const rf_ring *ring, uint32_t slot, uint32_t cell, rf_failure *failure)
    void rf_drop(rf_ring *ring, uint32_t slot)
    rf_slot_state rf_slot_state_of "rf_slot_state" (const rf_ring *ring, uint32_t slot)
    rf_slot_report rf_report_slot(const rf_ring *ring, uint32_t slot)
    rf_worker_report rf_report_worker(const rf_ring *ring, uint32_t worker)
    rf_consumer_report rf_report_consumer(const rf_ring *ring)
    void rf_report_waits(const rf_ring *ring, rf_waits *waits)

    void rf_cancel(rf_ring *ring)
    void rf_requeue(rf_ring *ring)
    void rf_stop(rf_ring *ring)

    void rf_set_yielding(rf_ring *ring, uint32_t worker, rf_cursor *cursor)
    rf_bool rf_claim_next(rf_ring *ring, uint32_t worker, rf_cursor *cursor, rf_claim *claim)
    rf_answer rf_claim_wait(
        rf_ring *ring, uint32_t worker, rf_cursor *cursor, rf_claim *claim, int64_t deadline_ns
    )
    uint32_t rf_breaks(const rf_ring *ring)
    uint32_t rf_break_wait(rf_ring *ring, uint32_t seen, int64_t deadline_ns)
    void rf_publish(rf_ring *ring, const rf_claim *claim, rf_bool cancelled)
    void rf_fail(const rf_claim *claim, uint32_t row, const void *payload, uint32_t size)


cdef extern from "reap.h" nogil:
    struct rf_reaped:
        uint32_t claims, deaths, stage
        int64_t index
        uint64_t batch, epoch
        uint32_t row
        rf_bool given_up

    rf_reaped rf_reap(rf_ring *ring, uint32_t worker, rf_bool blame)


cdef extern from "export/dlpack.h" nogil:
    uint32_t RF_MAX_AXES

    struct rf_dlpack:  # see frameworks/_dlpack.pyx
        pass

    struct rf_field:
        pass

    rf_dlpack *rf_export(rf_ring *ring, uint32_t slot, const rf_field *field)


cdef extern from "export/feed.h" nogil:
    struct rf_feed_calls:  # see frameworks/tensorflow/_cfeed.pxd
        pass

    const rf_feed_calls rf_feed_calls_here "rf_feed_calls"


cdef extern from "os/wait.h" nogil:
    int64_t rf_now_ns()
