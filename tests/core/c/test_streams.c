/* Streams: batches that only one worker may claim, because they are to be read in order. */
#include "check.h"
#include "place.h"

static void plan_for(struct rf_ring *ring, uint32_t stream)
{
    rf_set_stream(ring, stream);
    bind_batches(ring, 1, 1);
}

static bool claim_in(struct rf_ring *ring, uint32_t stream, struct rf_claim *claim)
{
    struct rf_cursor cursor = {.reaps = UINT32_MAX, .stream = stream};
    return rf_claim_next(ring, stream, &cursor, claim);
}

/* A worker passes by the batches of other streams, and takes its own and those of no stream. */
static void worker_claims_its_own_stream(void)
{
    struct rf_ring *ring = ring_of(3, 1, 4, 1);
    struct rf_claim claim;
    plan_for(ring, 1);
    plan_for(ring, 2);
    plan_for(ring, 0);
    CHECK(claim_in(ring, 2, &claim));
    CHECK_EQ(claim.batch, 1);
    CHECK(claim_in(ring, 2, &claim));
    CHECK_EQ(claim.batch, 2);
    CHECK(!claim_in(ring, 2, &claim));
    CHECK(claim_in(ring, 1, &claim));
    CHECK_EQ(claim.batch, 0);
    rf_unreference(ring);
}

/* One without a stream claims everything, in order. */
static void worker_without_a_stream_claims_all(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    plan_for(ring, 1);
    plan_for(ring, 2);
    CHECK_EQ(fill_all(ring, 0), 2);
    rf_unreference(ring);
}

/* What a dead worker had claimed is its stream's again. */
static void reap_keeps_the_stream(void)
{
    struct rf_ring *ring = ring_of(2, 1, 4, 1);
    struct rf_claim claim;
    plan_for(ring, 2);
    CHECK(claim_in(ring, 2, &claim));
    rf_reap(ring, 2, true);
    CHECK_EQ(word_at(ring, claim.slot, 0), rf_word(0, 1, 2, RF_AVAIL));
    CHECK(!claim_in(ring, 1, &claim));
    CHECK(claim_in(ring, 2, &claim));
    CHECK_EQ(claim.attempt, 1);
    rf_unreference(ring);
}

/* What is bound again is its stream's still. */
static void requeue_keeps_the_stream(void)
{
    struct rf_ring *ring = ring_of(2, 1, 4, 1);
    struct rf_claim claim;
    plan_for(ring, 2);
    rf_set_stream(ring, 1);
    rf_requeue(ring);
    CHECK(!claim_in(ring, 1, &claim));
    CHECK(claim_in(ring, 2, &claim));
    rf_unreference(ring);
}

/* A cursor that goes back to the head stays in its stream. */
static void cursor_keeps_the_stream(void)
{
    struct rf_ring *ring = ring_of(2, 1, 4, 1);
    struct rf_cursor cursor = {.reaps = UINT32_MAX, .stream = 1};
    struct rf_claim claim;
    plan_for(ring, 2);
    CHECK(!rf_claim_next(ring, 1, &cursor, &claim));
    CHECK_EQ(cursor.stream, 1);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(worker_claims_its_own_stream);
    RUN(worker_without_a_stream_claims_all);
    RUN(reap_keeps_the_stream);
    RUN(requeue_keeps_the_stream);
    RUN(cursor_keeps_the_stream);
    return check_end("test_streams");
}
