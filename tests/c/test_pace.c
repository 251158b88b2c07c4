/* Brisk tickets: looking again instead of sleeping, and waking nobody while somebody is awake. */
#include "check.h"
#include "hooks.h"
#include "place.h"

#include <pthread.h>

#define SPIN_NS 20000u

/* A ring of two workers, where waiters may look again. */
static struct rf_ring *spinning_ring(bool brisk)
{
    int why;
    struct rf_geometry geometry = geometry_of(2, 2, 2, 2, 8);
    geometry.spin_ns = SPIN_NS;
    struct rf_ring *ring = open_as(&geometry, &why);
    if (ring && rf_become_consumer(ring, PLACE_CAPACITY, PLACE_ATTEMPTS) == 0)
        atomic_store(&ring->control->brisk, brisk);
    return ring;
}

/* Bind and fill a batch of one ticket whose row took so long, and take it; whether tickets are brisk then. */
static uint32_t brisk_after(struct rf_ring *ring, uint64_t busy_ns)
{
    bind_batches(ring, 1, 1);
    fill_all(ring, 0);
    rf_cell_of(ring, (uint32_t)atomic_load(&ring->slot_of[atomic_load(&ring->control->head) % 2]), 0)->busy_ns =
        busy_ns;
    rf_drop(ring, rf_take(ring).slot);
    return atomic_load(&ring->control->brisk);
}

/* Taking learns from the work in the batches whether tickets are brisk. */
static void take_learns_the_pace(void)
{
    struct rf_ring *ring = spinning_ring(false);
    CHECK_EQ(brisk_after(ring, 1000), 1);
    CHECK_EQ(brisk_after(ring, 1000), 1);
    CHECK_EQ(brisk_after(ring, 1000000), 0);
    rf_unreference(ring);
}

/* Where nobody may look again, no ticket is brisk. */
static void nothing_is_brisk_without_spinning(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    CHECK_EQ(brisk_after(ring, 1), 0);
    rf_unreference(ring);
}

/* A waiter looks again for as long as the geometry says, and only while tickets are brisk. */
static void looking_again_ends(void)
{
    struct rf_ring *ring = spinning_ring(true);
    CHECK(rf_look_again(ring, soon_ns(1000)));
    CHECK(!rf_look_again(ring, rf_now_ns() - SPIN_NS));
    atomic_store(&ring->control->brisk, 0);
    CHECK(!rf_look_again(ring, soon_ns(1000)));
    rf_unreference(ring);
}

static uint32_t wakes;
static void count_wake(struct rf_ring *ring)
{
    (void)ring;
    wakes += 1;
}

/* How many wakes a bind gives when these workers of two sleep. */
static uint32_t wakes_of_a_bind(bool brisk, uint64_t sleepers)
{
    struct rf_ring *ring = spinning_ring(brisk);
    atomic_store(&ring->control->sleepers[0], sleepers);
    wakes = 0;
    before_wake = count_wake;
    bind_batches(ring, 1, 1);
    before_wake = NULL;
    bool bumped = atomic_load(&ring->control->work_seq) == 1;
    rf_unreference(ring);
    return bumped ? wakes : UINT32_MAX;
}

/* While tickets are brisk a bind wakes somebody only if all sleep; otherwise if anybody does. It bumps all the same. */
static void brisk_bind_wakes_nobody_while_one_is_awake(void)
{
    CHECK_EQ(wakes_of_a_bind(true, 0), 0);
    CHECK_EQ(wakes_of_a_bind(true, 1), 0);
    CHECK_EQ(wakes_of_a_bind(true, 3), 1);
    CHECK_EQ(wakes_of_a_bind(false, 0), 0);
    CHECK_EQ(wakes_of_a_bind(false, 1), 1);
}

static void *sleep_as_worker(void *ring)
{
    struct rf_cursor cursor = {0};
    static struct rf_claim claim;
    return rf_claim_wait(ring, 0, &cursor, &claim, soon_ns(5000)) == RF_TAKEABLE ? ring : NULL;
}

/* Whoever was awake may be long in coming: before it sleeps on a ticket that nobody has claimed, the consumer wakes all. */
static void consumer_wakes_all_for_an_unclaimed_ticket(void)
{
    struct rf_ring *ring = spinning_ring(true);
    pthread_t sleeper;
    void *claimed = NULL;
    uint32_t before = atomic_load(&sleeps_begun);
    CHECK(pthread_create(&sleeper, NULL, sleep_as_worker, ring) == 0);
    wait_for_sleeps(before + 1);
    bind_batches(ring, 1, 1); /* for all it knows, worker 1 is awake */
    CHECK_EQ(rf_word_state(word_at(ring, 0, 0)), RF_AVAIL);
    CHECK_EQ(rf_wait_head(ring, soon_ns(30)), RF_PENDING);
    CHECK(pthread_join(sleeper, &claimed) == 0);
    CHECK(claimed == ring);
    rf_unreference(ring);
}

/* A reap and a stop wake all, however brisk. */
static void reap_and_stop_wake_all(void)
{
    struct rf_ring *ring = spinning_ring(true);
    atomic_store(&ring->control->sleepers[0], 1);
    wakes = 0;
    before_wake = count_wake;
    rf_reap(ring, 1, false);
    CHECK_EQ(wakes, 1);
    before_wake = count_wake;
    rf_stop(ring);
    CHECK_EQ(wakes, 2);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(take_learns_the_pace);
    RUN(nothing_is_brisk_without_spinning);
    RUN(looking_again_ends);
    RUN(brisk_bind_wakes_nobody_while_one_is_awake);
    RUN(consumer_wakes_all_for_an_unclaimed_ticket);
    RUN(reap_and_stop_wake_all);
    return check_end("test_pace");
}
