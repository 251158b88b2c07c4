/* Taking back what a dead worker had claimed. */
#include "check.h"
#include "place.h"

/* A ring with one batch of one ticket of `rows` rows, which worker 0 has claimed. */
static struct rf_ring *claimed_ring(uint32_t rows, struct rf_claim *claim)
{
    struct rf_ring *ring = ring_of(2, 1, 2, rows);
    atomic_store(&ring->binder->row_ns, 1); /* all rows in one ticket */
    bind_batches(ring, 1, rows);
    *claim = (struct rf_claim){0};
    claim_as(ring, 0, claim);
    return ring;
}

/* A claim comes back to the same cell, available, as the next attempt. */
static void reap_makes_the_next_attempt_available(void)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(2, &claim);
    struct rf_reaped reaped = rf_reap(ring, 0, true);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, 1, 0, RF_AVAIL));
    CHECK_EQ(reaped.claims, 1);
    CHECK_EQ(reaped.deaths, 0);
    CHECK(reaped.index == -1 && !reaped.given_up);
    CHECK(claim_as(ring, 1, &claim));
    CHECK_EQ(claim.attempt, 1);
    rf_unreference(ring);
}

/* Others' claims, and what is available or final, stay as they are. */
static void reap_leaves_all_else(void)
{
    struct rf_ring *ring = ring_of(2, 4, 4, 4);
    bind_batches(ring, 1, 4);
    const uint64_t words[4] = {rf_word(0, 0, 1, RF_CLAIMED), rf_word(1, 2, 0, RF_READY),
                               rf_word(2, 0, 0, RF_AVAIL), rf_word(3, 0, 0, RF_FAILED)};
    for (uint32_t cell = 0; cell < 4; cell++)
        place_word(ring, 0, cell, words[cell]);
    CHECK_EQ(rf_reap(ring, 0, true).claims, 0);
    for (uint32_t cell = 0; cell < 4; cell++)
        CHECK_EQ(word_at(ring, 0, cell), words[cell]);
    rf_unreference(ring);
}

/* Below cancel_upto a claim does not come back: it is cancelled, and its slot freed. */
static void reap_below_cancel_upto_cancels(void)
{
    struct rf_ring *ring = ring_of(2, 2, 3, 2);
    struct rf_claim claim;
    bind_batches(ring, 1, 2);
    CHECK(claim_as(ring, 0, &claim) && claim_as(ring, 1, &claim));
    rf_cancel(ring);
    CHECK_EQ(rf_reap(ring, 0, true).claims, 1);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, 1, 0, RF_CANCELLED));
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_DRAINING);
    CHECK_EQ(rf_reap(ring, 1, true).claims, 1);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_FREE);
    rf_unreference(ring);
}

/* A reap bumps what cursors, workers and the consumer look at, ends the id's sleep, and
 * clears its line. */
static void reap_tells_everyone(void)
{
    struct rf_ring *ring = ring_of(2, 1, 256, 1);
    struct rf_control *control = ring->control;
    struct rf_claim claim;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 70, &claim));
    rf_blame(&claim, 0);
    atomic_store(&control->sleepers[1], UINT64_C(0x50)); /* workers 68 and 70 */
    uint32_t reaps = atomic_load(&control->reap_seq), work = atomic_load(&control->work_seq);
    uint32_t news = atomic_load(&control->news_seq);
    rf_reap(ring, 70, true);
    CHECK_EQ(atomic_load(&control->sleepers[1]), 0x10);
    CHECK(atomic_load(&control->reap_seq) != reaps);
    CHECK(atomic_load(&control->work_seq) != work);
    CHECK(atomic_load(&control->news_seq) != news);
    struct rf_worker_report report = rf_report_worker(ring, 70);
    CHECK(!report.in_row && report.since_ns == 0);
    rf_unreference(ring);
}

/* ---- blame ---- */

/* A death inside a row counts against that row. */
static void death_in_a_row_is_blamed_on_it(void)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(4, &claim);
    rf_blame(&claim, 2);
    struct rf_reaped reaped = rf_reap(ring, 0, true);
    CHECK_EQ(reaped.deaths, 1);
    CHECK_EQ(reaped.row, 2);
    CHECK_EQ(reaped.index, 2);
    CHECK_EQ(reaped.batch, 0);
    CHECK(!reaped.given_up);
    rf_unreference(ring);
}

/* A death in a function that has all rows is blamed on none of them; when it is given up,
 * so are all. */
static void death_in_a_stage_is_blamed_on_it(void)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(4, &claim);
    rf_blame(&claim, 0);
    rf_reap(ring, 0, true);
    for (uint32_t death = 1; death <= PLACE_ATTEMPTS; death++) {
        CHECK(claim_as(ring, 0, &claim));
        rf_blame(&claim, 3);
        rf_blame_stage(&claim, RF_IN_COLLATE_FN);
        struct rf_reaped reaped = rf_reap(ring, 0, true);
        CHECK_EQ(reaped.stage, RF_IN_COLLATE_FN);
        CHECK_EQ(reaped.deaths, death);
        CHECK_EQ(reaped.row, 0);
        CHECK_EQ(reaped.index, 0);
        CHECK_EQ(reaped.given_up, death == PLACE_ATTEMPTS);
        for (uint32_t row = 0; row < 4; row++)
            CHECK_EQ(rf_slot_marks(ring, 0)[row], reaped.given_up ? RF_ROW_KILLED : RF_ROW_OK);
    }
    rf_unreference(ring);
}

/* What rf_reap() counts when the line reads so at the death of a worker in ticket 0, attempt 0. */
static uint32_t deaths_counted(uint64_t ticket, uint32_t attempt, uint32_t row, bool blame)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(4, &claim);
    atomic_store(&ring->workers[0].ticket, ticket);
    atomic_store(&ring->workers[0].attempt, attempt);
    atomic_store(&ring->workers[0].row, row);
    uint32_t deaths = rf_reap(ring, 0, blame).deaths;
    rf_unreference(ring);
    return deaths;
}

/* A line counts only if its ticket and attempt are the cell's, its row is one, and blame
 * is asked for. */
static void blame_counts_only_for_this_ticket_and_attempt(void)
{
    CHECK_EQ(deaths_counted(0, 0, 3, true), 1);
    CHECK_EQ(deaths_counted(5, 0, 3, true), 0);
    CHECK_EQ(deaths_counted(UINT64_C(1) << 32, 0, 3, true), 0); /* the same low half */
    CHECK_EQ(deaths_counted(0, 1, 3, true), 0);
    CHECK_EQ(deaths_counted(0, 0, 0, true), 0);
    CHECK_EQ(deaths_counted(0, 0, 5, true), 0); /* no such row */
    CHECK_EQ(deaths_counted(0, 0, 3, false), 0);
}

/* A row that ended max_attempts workers is marked KILLED; the rest runs again and is delivered. */
static void max_attempts_give_up_only_the_row(void)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(4, &claim);
    for (uint32_t death = 1; death <= PLACE_ATTEMPTS; death++) {
        CHECK_EQ(rf_slot_marks(ring, 0)[1], RF_ROW_OK);
        rf_blame(&claim, 1);
        struct rf_reaped reaped = rf_reap(ring, 0, true);
        CHECK_EQ(reaped.deaths, death);
        CHECK_EQ(reaped.given_up, death == PLACE_ATTEMPTS);
        CHECK(claim_as(ring, 0, &claim));
    }
    CHECK_EQ(claim.marks[1], RF_ROW_KILLED);
    CHECK_EQ(claim.marks[0], RF_ROW_OK);
    rf_publish(ring, &claim, false);
    struct rf_taken taken = taken_of(ring);
    CHECK(taken.failed && taken.rows == 4);
    rf_unreference(ring);
}

/* Deaths are forgotten with the batch: the slot's next one starts afresh. */
static void deaths_end_with_the_batch(void)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(1, &claim);
    for (uint32_t death = 1; death < PLACE_ATTEMPTS; death++) {
        rf_blame(&claim, 0);
        rf_reap(ring, 0, true);
        CHECK(claim_as(ring, 0, &claim));
    }
    rf_publish(ring, &claim, false);
    rf_drop(ring, taken_of(ring).slot);
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.slot, 0);
    rf_blame(&claim, 0);
    CHECK_EQ(rf_reap(ring, 0, true).deaths, 1);
    rf_unreference(ring);
}

/* ---- limits ---- */

/* However often a ticket comes back, its number stays right: the attempt stops at
 * its largest value. */
static void attempts_never_spill_into_the_ticket(void)
{
    struct rf_claim claim;
    struct rf_ring *ring = claimed_ring(1, &claim);
    place_word(ring, 0, 0, rf_word(0, RF_ATTEMPT_MAX, 0, RF_CLAIMED));
    rf_reap(ring, 0, true);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, RF_ATTEMPT_MAX, 0, RF_AVAIL));
    CHECK(claim_as(ring, 1, &claim));
    rf_unreference(ring);
}

/* A large max_attempts is reached. */
static void deaths_never_wrap(void)
{
    int why;
    struct rf_geometry geometry = geometry_of(2, 1, 1, 1, 8);
    struct rf_ring *ring = open_as(&geometry, &why);
    struct rf_claim claim;
    CHECK(ring && rf_become_consumer(ring, 2, 100000) == 0);
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &claim));
    rf_blame(&claim, 0);
    CHECK(!rf_reap(ring, 0, true).given_up);
    CHECK(claim_as(ring, 0, &claim));
    ring->binder->deaths[0].count = 99999;
    rf_blame(&claim, 0);
    struct rf_reaped reaped = rf_reap(ring, 0, true);
    CHECK_EQ(reaped.deaths, 100000);
    CHECK(reaped.given_up);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(reap_makes_the_next_attempt_available);
    RUN(reap_leaves_all_else);
    RUN(reap_below_cancel_upto_cancels);
    RUN(reap_tells_everyone);
    RUN(death_in_a_row_is_blamed_on_it);
    RUN(death_in_a_stage_is_blamed_on_it);
    RUN(blame_counts_only_for_this_ticket_and_attempt);
    RUN(max_attempts_give_up_only_the_row);
    RUN(deaths_end_with_the_batch);
    RUN(attempts_never_spill_into_the_ticket);
    RUN(deaths_never_wrap);
    return check_end("test_reap");
}
