/* Claim and publish: each test places a state, calls one function and looks. */
#include "check.h"
#include "place.h"

#include <string.h>

/* ---- claim ---- */

/* One step makes the cell CLAIMED and names its owner. */
static void claim_sets_owner_in_one_step(void)
{
    struct rf_ring *ring = ring_of(2, 4, 3, 8);
    struct rf_claim claim;
    bind_batches(ring, 1, 8);
    CHECK(claim_as(ring, 2, &claim));
    CHECK_EQ(word_at(ring, claim.slot, claim.cell), rf_word(claim.ticket, 0, 2, RF_CLAIMED));
    rf_unreference(ring);
}

/* Nothing can be claimed before something is bound. */
static void claim_of_an_empty_ring_fails(void)
{
    struct rf_ring *ring = ring_of(2, 4, 3, 8);
    struct rf_claim claim;
    CHECK(!claim_as(ring, 0, &claim));
    rf_unreference(ring);
}

/* A claim takes the first available ticket, past all that others have. */
static void claim_takes_the_first_available_ticket(void)
{
    struct rf_ring *ring = ring_of(2, 4, 4, 8);
    struct rf_claim claim;
    bind_batches(ring, 1, 8);
    place_word(ring, 0, 0, rf_word(0, 0, 1, RF_READY));
    place_word(ring, 0, 1, rf_word(1, 0, 1, RF_CLAIMED));
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.ticket, 2);
    rf_unreference(ring);
}

/* An AVAIL cell with another ticket's number belongs to another batch, and is left alone. */
static void claim_skips_stale_ticket_numbers(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    struct rf_claim claim;
    bind_batches(ring, 1, 2);
    place_word(ring, 0, 0, rf_word(77, 0, 0, RF_AVAIL));
    CHECK(claim_as(ring, 1, &claim));
    CHECK_EQ(claim.ticket, 1);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(77, 0, 0, RF_AVAIL));
    rf_unreference(ring);
}

/* Claims go on to the next batch, in the slot that slot_of names. */
static void claim_goes_on_to_the_next_batch(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 2);
    struct rf_claim claim;
    bind_batches(ring, 2, 2);
    place_word(ring, 0, 0, rf_word(0, 0, 0, RF_READY));
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.batch, 1);
    CHECK_EQ(claim.slot, 1);
    rf_unreference(ring);
}

/* A claim says which rows of which batch it covers, and where they are. */
static void claim_tells_its_rows(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 8);
    struct rf_claim first, second;
    int64_t indices[8] = {10, 11, 12, 13, 14, 15, 16, 17};
    CHECK(rf_plan(ring, indices, 8, 5, 3));
    rf_bind(ring);
    CHECK(claim_as(ring, 0, &first) && claim_as(ring, 1, &second));
    CHECK_EQ(second.epoch, 5);
    CHECK_EQ(second.version, 3);
    CHECK_EQ(second.first_row, 4);
    CHECK_EQ(second.rows, 4);
    CHECK_EQ(second.indices[0], 14);
    CHECK(second.base == rf_slot_base(ring, 0) && second.marks == rf_slot_marks(ring, 0) + 4);
    CHECK(second.failure == rf_slot_failure(ring, 0, 1));
    rf_unreference(ring);
}

/* The last ticket of a batch has the rows that are left. */
static void last_ticket_has_the_rest_of_the_rows(void)
{
    struct rf_ring *ring = ring_of(2, 4, 3, 7);
    struct rf_claim claim;
    bind_batches(ring, 1, 7); /* 3 + 3 + 1 */
    place_word(ring, 0, 0, rf_word(0, 0, 0, RF_READY));
    place_word(ring, 0, 1, rf_word(1, 0, 0, RF_READY));
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.first_row, 6);
    CHECK_EQ(claim.rows, 1);
    rf_unreference(ring);
}

/* The largest worker id fits the word. */
static void worker_255_owns_its_claim(void)
{
    struct rf_ring *ring = ring_of(2, 1, 256, 1);
    struct rf_claim claim;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 255, &claim));
    CHECK_EQ(rf_word_owner(word_at(ring, 0, 0)), 255);
    rf_publish(ring, &claim, false);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, 0, 255, RF_READY));
    rf_unreference(ring);
}

/* No field of the word spills into another at its largest value. */
static void word_keeps_its_fields_apart(void)
{
    uint64_t word = rf_word(UINT64_C(0x1fffffffe), RF_ATTEMPT_MAX, RF_OWNER_MASK, RF_CANCELLED);
    CHECK_EQ(rf_word_ticket(word), 0xfffffffe);
    CHECK_EQ(rf_word_attempt(word), RF_ATTEMPT_MAX);
    CHECK_EQ(rf_word_owner(word), RF_OWNER_MASK);
    CHECK_EQ(rf_word_state(word), RF_CANCELLED);
}

/* Below its cursor a worker looks again only after a reap. */
static void cursor_goes_back_after_a_reap(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    bind_batches(ring, 1, 2);
    CHECK(rf_claim_next(ring, 0, &cursor, &claim) && rf_claim_next(ring, 0, &cursor, &claim));
    place_word(ring, 0, 0, rf_word(0, 1, 0, RF_AVAIL));
    CHECK(!rf_claim_next(ring, 0, &cursor, &claim));
    atomic_fetch_add(&ring->control->reap_seq, 1);
    CHECK(rf_claim_next(ring, 0, &cursor, &claim));
    CHECK_EQ(claim.ticket, 0);
    CHECK_EQ(claim.attempt, 1);
    rf_unreference(ring);
}

/* A worker that slept through whole batches goes on at the head. */
static void cursor_catches_up_with_the_head(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    struct rf_cursor cursor = {.batch = 3, .cell = 1};
    struct rf_claim claim;
    place_batches(ring, 9);
    bind_batches(ring, 1, 2);
    CHECK(rf_claim_next(ring, 0, &cursor, &claim));
    CHECK_EQ(claim.ticket, 18);
    rf_unreference(ring);
}

/* A later attempt runs again what an earlier one saw fail, but not the row that was given up. */
static void second_attempt_keeps_only_killed_marks(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 3);
    struct rf_claim claim;
    bind_batches(ring, 1, 3);
    CHECK(claim_as(ring, 0, &claim));
    rf_fail(&claim, 0, "x", 1);
    claim.marks[2] = RF_ROW_KILLED;
    place_word(ring, 0, 0, rf_word(0, 1, 0, RF_AVAIL));
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.marks[0], RF_ROW_OK);
    CHECK_EQ(claim.marks[2], RF_ROW_KILLED);
    CHECK_EQ(claim.failure->size, 0);
    rf_unreference(ring);
}

/* A worker's line says what it is at, from its claim to its publish. */
static void report_follows_a_claim(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 3);
    struct rf_claim claim;
    bind_batches(ring, 1, 3);
    CHECK(claim_as(ring, 1, &claim));
    rf_blame(&claim, 2);
    struct rf_worker_report report = rf_report_worker(ring, 1);
    CHECK(report.in_row && report.since_ns != 0);
    CHECK_EQ(report.index, 2);
    CHECK_EQ(report.tickets, 1);
    rf_publish(ring, &claim, false);
    report = rf_report_worker(ring, 1);
    CHECK(!report.in_row && report.since_ns == 0);
    CHECK_EQ(report.samples, 3);
    rf_unreference(ring);
}

/* ---- publish ---- */

/* Bind one ticket of three rows, claim it, and publish it after `marks` were set. */
static uint64_t published_word(uint8_t mark, bool cancelled)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 3);
    struct rf_claim claim = {0};
    bind_batches(ring, 1, 3);
    if (claim_as(ring, 0, &claim))
        claim.marks[1] = mark;
    rf_publish(ring, &claim, cancelled);
    uint64_t word = word_at(ring, 0, 0);
    rf_unreference(ring);
    return word;
}

/* The final state is READY, FAILED where any row is marked, or CANCELLED. */
static void publish_decides_the_final_state(void)
{
    CHECK_EQ(rf_word_state(published_word(RF_ROW_OK, false)), RF_READY);
    CHECK_EQ(rf_word_state(published_word(RF_ROW_RAISED, false)), RF_FAILED);
    CHECK_EQ(rf_word_state(published_word(RF_ROW_KILLED, false)), RF_FAILED);
    CHECK_EQ(rf_word_state(published_word(RF_ROW_RAISED, true)), RF_CANCELLED);
}

/* Who was taken for dead changes neither the cell nor its id's line, which are others' by now. */
static void publish_after_a_reap_changes_nothing(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 3);
    struct rf_claim late, claim;
    bind_batches(ring, 1, 3);
    CHECK(claim_as(ring, 0, &late));
    rf_reap(ring, 0, false);
    CHECK(claim_as(ring, 1, &claim));
    claim.rows_delivered = 2;
    rf_publish(ring, &claim, false);
    uint64_t word = word_at(ring, 0, 0), samples = rf_report_worker(ring, 0).samples;
    atomic_store(&ring->workers[0].row, 1);
    rf_publish(ring, &late, false);
    CHECK_EQ(word_at(ring, 0, 0), word);
    CHECK_EQ(rf_cell_of(ring, 0, 0)->rows, 2);
    CHECK_EQ(rf_report_worker(ring, 0).samples, samples);
    CHECK(rf_report_worker(ring, 0).in_row);
    rf_unreference(ring);
}

/* A publish bumps the consumer's word only where the consumer waits for this ticket, or
 * for any slot. */
static void publish_wakes_whom_it_concerns(void)
{
    struct rf_ring *ring = ring_of(2, 4, 4, 4);
    struct rf_control *control = ring->control;
    struct rf_claim claim;
    bind_batches(ring, 1, 4);
    const uint64_t waits[3] = {RF_WAIT_NONE, 1 + 3, RF_WAIT_FREE};
    for (uint32_t wait = 0; wait < 3; wait++) {
        uint32_t before = atomic_load(&control->news_seq);
        atomic_store(&control->consumer_wait, waits[wait]);
        CHECK(claim_as(ring, 0, &claim));
        rf_publish(ring, &claim, false);
        CHECK_EQ(atomic_load(&control->news_seq) - before, wait == 2);
    }
    atomic_store(&control->consumer_wait, 1 + 3);
    uint32_t before = atomic_load(&control->news_seq);
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.ticket, 3);
    rf_publish(ring, &claim, false);
    CHECK_EQ(atomic_load(&control->news_seq) - before, 1);
    rf_unreference(ring);
}

/* A payload is cut where its place ends, and only the first of a ticket is kept. */
static void failure_payload_is_truncated(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 4);
    struct rf_claim first, claim;
    static uint8_t payload[2 * RF_FAILURE_SIZE];
    memset(payload, 'x', sizeof payload);
    bind_batches(ring, 1, 4);
    CHECK(claim_as(ring, 0, &first) && claim_as(ring, 1, &claim));
    rf_fail(&claim, 1, payload, sizeof payload);
    rf_fail(&claim, 0, "late", 4);
    const struct rf_failure *failure = rf_slot_failure(ring, 0, 1);
    CHECK_EQ(failure->size, sizeof failure->payload);
    CHECK_EQ(failure->row, 3); /* in the batch */
    CHECK_EQ(failure->payload[sizeof failure->payload - 1], 'x');
    CHECK_EQ(claim.marks[0], RF_ROW_RAISED);
    CHECK_EQ(rf_slot_failure(ring, 0, 0)->size, 0);
    rf_unreference(ring);
}

/* ---- counts that come round ---- */

/* Many more batches than slots: slot_of, written over and over, names the right slot each time. */
static void slot_of_comes_round(void)
{
    struct rf_ring *ring = ring_of(3, 2, 2, 2);
    for (uint64_t batch = 0; batch < 20; batch++) {
        bind_batches(ring, 1, 2);
        CHECK(fill_all(ring, 0) > 0);
        CHECK_EQ(rf_look(ring), RF_TAKEABLE);
        struct rf_taken taken = taken_of(ring);
        CHECK_EQ(taken.batch, batch);
        CHECK_EQ((uint32_t)atomic_load(&ring->slot_of[batch % 3]), taken.slot);
        rf_drop(ring, taken.slot);
    }
    rf_unreference(ring);
}

/* Past 2^32 tickets the low halves start again at 0, and nothing else changes. */
static void tickets_come_round_at_32_bits(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    /* The next two batches are tickets 2^32 - 2 to 2^32 + 1. */
    place_batches(ring, (UINT64_C(1) << 31) - 1);
    bind_batches(ring, 2, 2);
    CHECK_EQ(rf_word_ticket(word_at(ring, 0, 1)), 0xffffffff);
    CHECK_EQ(rf_word_ticket(word_at(ring, 1, 0)), 0);
    struct rf_claim claim;
    for (uint64_t ticket = (UINT64_C(1) << 32) - 2; ticket < (UINT64_C(1) << 32) + 2; ticket++) {
        CHECK(claim_as(ring, 0, &claim));
        CHECK_EQ(claim.ticket, ticket);
        rf_publish(ring, &claim, false);
    }
    CHECK_EQ(taken_of(ring).batch, (UINT64_C(1) << 31) - 1);
    CHECK_EQ(taken_of(ring).batch, UINT64_C(1) << 31);
    rf_unreference(ring);
}

/* What was worked on elsewhere counts as long as it took there, and not as long as its
 * claim was held. */
static void work_elsewhere_is_told(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 4);
    struct rf_claim claim;
    bind_batches(ring, 1, 4);
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.work_ns, 0);
    claim.work_ns = INT64_C(3600000000000);
    rf_publish(ring, &claim, false);
    CHECK_EQ(rf_cell_of(ring, 0, 0)->busy_ns, 3600000000000);
    CHECK_EQ(atomic_load(&ring->workers[0].busy_ns), 3600000000000);
    CHECK_EQ(taken_of(ring).rows, 4);
    CHECK_EQ(atomic_load(&ring->binder->row_ns), 900000000001);
    rf_unreference(ring);
}

/* A worker may hold all tickets there are, by one cursor that looks at each cell once; its reap
 * takes all of them back. */
static void worker_holds_many_claims(void)
{
    enum { SLOTS = 8 };
    struct rf_ring *ring = ring_of(SLOTS, RF_MAX_CELLS, 2, RF_MAX_CELLS);
    struct rf_claim claims[SLOTS * RF_MAX_CELLS];
    struct rf_cursor cursor = {0};
    uint32_t count = 0;
    rf_set_pace(ring, 0, 1, 0);
    bind_batches(ring, SLOTS, RF_MAX_CELLS);
    while (count < SLOTS * RF_MAX_CELLS && rf_claim_next(ring, 1, &cursor, &claims[count])) {
        CHECK_EQ(claims[count].ticket, count);
        CHECK_EQ(cursor.batch * RF_MAX_CELLS + cursor.cell, count + 1);
        count++;
    }
    CHECK_EQ(count, SLOTS * RF_MAX_CELLS);
    rf_publish(ring, &claims[7], false);
    CHECK_EQ(rf_reap(ring, 1, true).claims, count - 1);
    rf_publish(ring, &claims[9], false);
    CHECK_EQ(rf_word_state(word_at(ring, claims[9].slot, claims[9].cell)), RF_AVAIL);
    CHECK_EQ(fill_all(ring, 0), count - 1);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(claim_sets_owner_in_one_step);
    RUN(claim_of_an_empty_ring_fails);
    RUN(claim_takes_the_first_available_ticket);
    RUN(claim_skips_stale_ticket_numbers);
    RUN(claim_goes_on_to_the_next_batch);
    RUN(claim_tells_its_rows);
    RUN(last_ticket_has_the_rest_of_the_rows);
    RUN(worker_255_owns_its_claim);
    RUN(word_keeps_its_fields_apart);
    RUN(cursor_goes_back_after_a_reap);
    RUN(cursor_catches_up_with_the_head);
    RUN(second_attempt_keeps_only_killed_marks);
    RUN(report_follows_a_claim);
    RUN(publish_decides_the_final_state);
    RUN(publish_after_a_reap_changes_nothing);
    RUN(publish_wakes_whom_it_concerns);
    RUN(failure_payload_is_truncated);
    RUN(slot_of_comes_round);
    RUN(tickets_come_round_at_32_bits);
    RUN(work_elsewhere_is_told);
    RUN(worker_holds_many_claims);
    return check_end("test_ring");
}
