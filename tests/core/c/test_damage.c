/* Whatever is written over the control block or behind a slot's fields: no call of the consumer or
 * of a worker crashes or loops, and a batch that is handed out is right. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "place.h"
#include "reap.h"

enum { SLOTS = 3, CELLS = 2, WORKERS = 3, ROWS = 4, PATTERNS = 5 };

static uint64_t delivered, damaged;

static void scribble(uint8_t *place, uint64_t size, int pattern)
{
    static const int bytes[] = {0, 1, 255, 0x03};
    for (uint64_t byte = 0; byte < size; byte++)
        place[byte] = pattern < 4 ? (uint8_t)bytes[pattern] : (uint8_t)rand();
}

static void plan_next(struct rf_ring *ring, int64_t number)
{
    int64_t indices[ROWS];
    for (int64_t row = 0; row < ROWS; row++)
        indices[row] = 100 * number + row;
    rf_plan(ring, indices, ROWS, 7, 0);
}

/* Write each row's index into it; a worker that is told too many rows would write
 * beyond the slot. */
static void fill(struct rf_ring *ring, const struct rf_claim *claim)
{
    int64_t *rows = (int64_t *)(void *)claim->base;
    CHECK(claim->first_row + claim->rows <= ROWS && claim->slot < ring->geometry.slots);
    for (uint32_t row = 0; row < claim->rows; row++)
        rows[claim->first_row + row] = claim->indices[row];
}

/* One batch is held, the next is published but for a claim that a dead worker has, one has failed,
 * one is to be claimed. */
static void make_busy(struct rf_ring *ring)
{
    struct rf_claim claim;
    for (int64_t number = 0; number < 5; number++)
        plan_next(ring, number);
    rf_bind(ring);
    for (uint32_t ticket = 0; ticket < 3; ticket++) {
        CHECK(claim_as(ring, ticket, &claim));
        fill(ring, &claim);
        rf_publish(ring, &claim, false);
    }
    CHECK_EQ(taken_of(ring).batch, 0);
    CHECK(claim_as(ring, 0, &claim));
    rf_blame(&claim, 1);
    CHECK(claim_as(ring, 1, &claim));
    fill(ring, &claim);
    rf_fail(&claim, 1, "because", 7);
    rf_publish(ring, &claim, false);
}

static void check_batch(const struct rf_ring *ring, const struct rf_taken *taken, uint64_t *number)
{
    const int64_t *rows = (const int64_t *)(const void *)rf_slot_base(ring, taken->slot);
    const uint8_t *marks = rf_slot_marks(ring, taken->slot);
    delivered += 1;
    CHECK_EQ(taken->epoch, 7);
    CHECK_EQ(taken->rows, ROWS);
    for (uint32_t row = 0; row < ROWS; row++)
        if (!(taken->failed_cells >> row / taken->rows_per_ticket & 1) || marks[row] == RF_ROW_OK)
            CHECK_EQ((uint64_t)rows[row], 100 * *number + row);
    *number += 1;
}

/* Go on as a consumer and its workers do, from the batch after the one that is held. */
static void go_on(struct rf_ring *ring, uint64_t number)
{
    for (uint32_t step = 0; step < 40 && rf_look(ring) != RF_DAMAGED; step++) {
        struct rf_claim claim;
        for (uint32_t worker = 0; worker < WORKERS; worker++)
            if (claim_as(ring, worker, &claim)) {
                fill(ring, &claim);
                rf_publish(ring, &claim, rf_cancelled(&claim));
            }
        if (rf_look(ring) == RF_TAKEABLE) {
            struct rf_taken taken = taken_of(ring);
            if (!taken.damaged) {
                check_batch(ring, &taken, &number);
                rf_drop(ring, taken.slot);
            }
        } else if (rf_look(ring) == RF_PENDING) {
            rf_check(ring);
        }
    }
    CHECK(number == 5 || rf_look(ring) == RF_DAMAGED); /* never a wait without an end */
    damaged += rf_look(ring) == RF_DAMAGED;
}

static void check_calls(struct rf_ring *ring)
{
    struct rf_taken taken;
    (void)rf_damage_of(ring);
    const struct rf_terms terms = {.room = RF_ANY_ROOM};
    (void)rf_next(ring, &terms, &taken);
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        (void)rf_report_worker(ring, worker);
        rf_reap(ring, worker, true);
    }
    rf_set_open(ring, 2);
    rf_requeue(ring);
    rf_wake_claimers(ring);
    rf_wake_another(ring);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        (void)rf_report_slot(ring, slot);
    (void)rf_report_consumer(ring);
    rf_cancel(ring);
    CHECK(rf_wait_head(ring, 0, soon_ns(1)) != RF_TAKEABLE);
    rf_stop(ring);
}

static void check_scribble(bool in_control, uint64_t at, uint64_t size, int pattern)
{
    struct rf_ring *ring = ring_of(SLOTS, CELLS, WORKERS, ROWS);
    make_busy(ring);
    scribble((in_control ? (uint8_t *)ring->control : rf_slot_base(ring, 1)) + at, size, pattern);
    if (rf_look(ring) != RF_STOPPED) {
        rf_reap(ring, 0, true); /* the claim of the dead worker */
        rf_bind(ring);
        go_on(ring, 1);
    }
    rf_drop(ring, 0);
    check_calls(ring);
    rf_unreference(ring);
}

static void scribble_over(bool in_control, uint64_t from, uint64_t to, uint64_t size)
{
    for (uint64_t at = from; at + size <= to; at += size)
        for (int pattern = 0; pattern < PATTERNS; pattern++)
            check_scribble(in_control, at, size, pattern);
}

/* Each word, line and cell of the control block. */
static void control_block_may_be_overwritten(void)
{
    uint64_t size = rf_control_size(SLOTS, CELLS, WORKERS);
    srand(1);
    scribble_over(true, 0, size, 4);
    scribble_over(true, 0, size, 64);
    scribble_over(true, 0, size, 128);
    scribble_over(true, 0, size, size);
    CHECK(delivered > 1000 && damaged > 100);
}

/* What lies behind the fields: failure records, indices, marks. */
static void slots_may_be_overrun(void)
{
    struct rf_geometry geometry = geometry_of(SLOTS, CELLS, WORKERS, ROWS, sizeof(int64_t));
    delivered = damaged = 0;
    scribble_over(false, geometry.failures_at, geometry.failures_at + 64, 4);
    scribble_over(false, geometry.failures_at, geometry.indices_at, 1024);
    scribble_over(false, geometry.indices_at, geometry.marks_at + ROWS, 1);
    scribble_over(false, geometry.failures_at, geometry.slot_size,
                  geometry.slot_size - geometry.failures_at);
    CHECK(delivered > 100 && damaged > 50);
}

/* What a worker has read is sealed: indices that were overwritten while it read are not
 * delivered as others. */
static void indices_are_sealed(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, ROWS);
    plan_next(ring, 3);
    rf_bind(ring);
    rf_indices_of(ring, 0)[2] = 5;
    CHECK_EQ(fill_all(ring, 0), 1);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    CHECK(taken_of(ring).damaged);
    CHECK_EQ(rf_look(ring), RF_DAMAGED);
    struct rf_damage_report report = rf_damage_of(ring);
    CHECK_EQ(report.what, RF_DAMAGED_INDICES);
    CHECK(report.rows == ROWS && report.first_row == 0 && report.batch == 0 && !report.indices);
    rf_unreference(ring);
}

/* An error names the indices of its ticket: none that were overwritten since the ticket was
 * published as failed. */
static void indices_of_a_failure_are_looked_at_again(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, ROWS);
    struct rf_claim claim = {0};
    plan_next(ring, 3);
    rf_bind(ring);
    CHECK(claim_as(ring, 0, &claim));
    rf_fail(&claim, 1, "why", 3);
    rf_publish(ring, &claim, false);
    rf_indices_of(ring, 0)[2] = 5;
    CHECK(taken_of(ring).damaged);
    CHECK_EQ(rf_damage_of(ring).what, RF_DAMAGED_INDICES);
    rf_unreference(ring);
}

/* Nobody cancels a ticket of a slot that stays bound. */
static void a_bound_slot_has_no_cancelled_cell(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, ROWS);
    plan_next(ring, 3);
    rf_bind(ring);
    rf_check(ring);
    CHECK_EQ(rf_damage_of(ring).what, RF_INTACT);
    place_word(ring, 0, 0, rf_word(0, 0, 0, RF_CANCELLED));
    rf_check(ring);
    CHECK_EQ(rf_damage_of(ring).what, RF_DAMAGED_CELL);
    rf_unreference(ring);
}

/* A mark without a failure behind it is not a failure. */
static void marks_need_a_failure(void)
{
    for (uint8_t mark = 1; mark != 4; mark++) {
        struct rf_ring *ring = ring_of(2, 1, 1, ROWS);
        plan_next(ring, 3);
        rf_bind(ring);
        rf_slot_base(ring, 0)[ring->geometry.marks_at + 1] = mark;
        CHECK_EQ(fill_all(ring, 0), 1);
        CHECK(taken_of(ring).damaged);
        struct rf_damage_report report = rf_damage_of(ring);
        CHECK_EQ(report.what, RF_DAMAGED_FAILURE);
        CHECK(report.indices);
        rf_unreference(ring);
    }
}

int main(void)
{
    check_begin();
    RUN(control_block_may_be_overwritten);
    RUN(slots_may_be_overrun);
    RUN(indices_are_sealed);
    RUN(indices_of_a_failure_are_looked_at_again);
    RUN(a_bound_slot_has_no_cancelled_cell);
    RUN(marks_need_a_failure);
    return check_end("test_damage");
}
