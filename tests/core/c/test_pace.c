/* Brisk tickets: looking again instead of sleeping, and waking nobody while somebody is awake. */
#include "check.h"
#include "hooks.h"
#include "place.h"

#include <pthread.h>

#define SPIN_NS 20000u

/* A ring of two workers, where waiters may look again. */
static struct rf_ring *spinning_ring(bool pace)
{
    int why;
    struct rf_geometry geometry = geometry_of(2, 2, 2, 2, 8);
    geometry.spin_ns = SPIN_NS;
    struct rf_ring *ring = open_as(&geometry, &why);
    if (ring && rf_become_consumer(ring, PLACE_CAPACITY, PLACE_ATTEMPTS) == 0)
        atomic_store(&ring->control->pace, pace);
    return ring;
}

/* Bind and fill a batch of one ticket whose row took so long, and take it; whether the pace
 * is fast then. */
static uint32_t brisk_after(struct rf_ring *ring, uint64_t busy_ns)
{
    bind_batches(ring, 1, 1);
    fill_all(ring, 0);
    rf_cell_of(ring, (uint32_t)atomic_load(&ring->slot_of[atomic_load(&ring->control->head) % 2]),
               0)
        ->busy_ns = busy_ns;
    rf_drop(ring, taken_of(ring).slot);
    return atomic_load(&ring->control->pace);
}

/* Taking learns from the work in the batches whether the pace is fast. */
static void take_learns_the_pace(void)
{
    struct rf_ring *ring = spinning_ring(false);
    CHECK_EQ(brisk_after(ring, 1000), RF_PACE_FASTEST);
    CHECK_EQ(brisk_after(ring, 1000), RF_PACE_FASTEST);
    CHECK_EQ(brisk_after(ring, 20000), RF_PACE_FAST);
    CHECK_EQ(brisk_after(ring, 1000000), 0);
    rf_unreference(ring);
}

/* Where no waiter may look again, the pace is slow. */
static void nothing_is_brisk_without_spinning(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    CHECK_EQ(brisk_after(ring, 1), 0);
    rf_unreference(ring);
}

/* A waiter looks again for as long as the geometry says, and only while the pace is fast. */
static void looking_again_ends(void)
{
    struct rf_ring *ring = spinning_ring(true);
    struct rf_waiter now = {.began_ns = soon_ns(60000)}, late = {.began_ns = rf_now_ns() - SPIN_NS};
    CHECK(rf_look_again(ring, &now));
    CHECK(!rf_look_again(ring, &late));
    atomic_store(&ring->control->pace, 0);
    CHECK(!rf_look_again(ring, &now));
    rf_unreference(ring);
}

/* After a yield that nobody wanted a waiter keeps its processor for longer, up to a bound; after
 * one that let somebody run, the next comes at once. */
static void yields_become_rare_where_nobody_wants_them(void)
{
    static const int64_t kept_ns[] = {500, 1000, 2000, 4000, 4000};
    int64_t keep_ns = 0;
    for (unsigned yield = 0; yield < sizeof kept_ns / sizeof *kept_ns; yield++) {
        keep_ns = rf_keep_after(keep_ns, 400);
        CHECK_EQ(keep_ns, kept_ns[yield]);
    }
    CHECK_EQ(rf_keep_after(keep_ns, 1500), 0);
    CHECK_EQ(rf_keep_after(0, 1500), 0);
}

/* A waiter yields only when its time to keep the processor is over, and begins the next wait with
 * what it has learned. */
static void waiter_yields_when_its_time_is_over(void)
{
    struct rf_ring *ring = spinning_ring(true);
    atomic_store(&ring->keep_ns, 3000);
    struct rf_waiter waiter = rf_begin_wait(ring, false);
    CHECK_EQ(waiter.yield_ns - waiter.began_ns, 3000);
    waiter = (struct rf_waiter){.began_ns = soon_ns(60000), .yield_ns = soon_ns(60000)};
    CHECK(rf_look_again(ring, &waiter));
    CHECK_EQ(atomic_load(&ring->keep_ns), 3000);
    waiter.yield_ns = 0;
    CHECK(rf_look_again(ring, &waiter));
    /* Whether anybody wanted it is not for us to say. */
    int64_t keep_ns = atomic_load(&ring->keep_ns);
    CHECK(keep_ns == 0 || keep_ns == 4000);
    CHECK(waiter.yield_ns > keep_ns);
    rf_unreference(ring);
}

/* A worker whose last yield somebody wanted sleeps at once while tickets are light; the consumer
 * never does, nor does a worker whose tickets are longer, nor the same worker the next time. */
static void one_worker_fewer_fills_light_tickets(void)
{
    struct rf_ring *ring = spinning_ring(true);
    struct rf_waiter worker = {.began_ns = soon_ns(60000), .spare = true},
                     consumer = {.began_ns = soon_ns(60000)};
    atomic_store(&ring->keep_ns, 0);
    CHECK(rf_look_again(ring, &worker));
    atomic_store(&ring->control->pace, RF_PACE_FASTEST);
    atomic_store(&ring->keep_ns, 0);
    CHECK(rf_look_again(ring, &consumer));
    atomic_store(&ring->keep_ns, 0);
    worker.yield_ns = 0;
    CHECK(!rf_look_again(ring, &worker));
    CHECK_EQ(atomic_load(&ring->keep_ns), RF_KEEP_NS);
    CHECK(rf_look_again(ring, &worker));
    rf_unreference(ring);
}

static uint32_t wakes; /* calls of the kernel */
static void count_wake(struct rf_ring *ring)
{
    (void)ring;
    wakes += 1;
}

/* How many wakes a bind gives when these workers of two sleep. */
static uint32_t wakes_of_a_bind(bool pace, uint64_t sleepers)
{
    struct rf_ring *ring = spinning_ring(pace);
    atomic_store(&ring->control->sleepers[0], sleepers);
    wakes = 0;
    before_wake = count_wake;
    bind_batches(ring, 1, 1);
    before_wake = NULL;
    bool bumped = atomic_load(&ring->control->work_seq) == 1;
    rf_unreference(ring);
    return bumped ? wakes : UINT32_MAX;
}

/* While the pace is fast a bind wakes a worker only if all sleep; otherwise if any does. It bumps
 * all the same. */
static void brisk_bind_wakes_nobody_while_one_is_awake(void)
{
    CHECK_EQ(wakes_of_a_bind(true, 0), 0);
    CHECK_EQ(wakes_of_a_bind(true, 1), 0);
    CHECK_EQ(wakes_of_a_bind(true, 3), 1);
    CHECK_EQ(wakes_of_a_bind(false, 0), 0);
    CHECK_EQ(wakes_of_a_bind(false, 1), 1);
}

/* A ring of four workers, of batches of two tickets, on so many processors. */
static struct rf_ring *wide_ring(uint32_t slots, uint32_t cpus, bool pace)
{
    int why;
    struct rf_geometry geometry = geometry_of(slots, 2, 4, 2, 8);
    geometry.spin_ns = SPIN_NS;
    struct rf_ring *ring = open_as(&geometry, &why);
    if (ring && rf_become_consumer(ring, PLACE_CAPACITY, PLACE_ATTEMPTS) == 0) {
        ring->binder->cpus = cpus;
        atomic_store(&ring->control->pace, pace);
    }
    return ring;
}

/* For how many sleepers a bind of two batches asks while all sleep. */
static int asked_by_a_bind(bool pace, uint32_t cpus)
{
    struct rf_ring *ring = wide_ring(2, cpus, pace);
    atomic_store(&ring->control->sleepers[0], 0xf);
    bind_batches(ring, 2, 2);
    rf_unreference(ring);
    return atomic_exchange(&wake_count, 0);
}

/* While the pace is fast a bind wakes no more workers than there are processors; otherwise
 * one a ticket. */
static void brisk_bind_wakes_no_more_than_processors(void)
{
    CHECK_EQ(asked_by_a_bind(true, 1), 1);
    CHECK_EQ(asked_by_a_bind(true, 3), 3);
    CHECK_EQ(asked_by_a_bind(true, 16), 4);
    CHECK_EQ(asked_by_a_bind(false, 1), 4);
}

/* Before it sleeps on a ticket that nobody has claimed, the consumer wakes as many as there are of
 * them, whoever is awake; all where only one of them may be any help. */
static void consumer_wakes_a_worker_for_each_unclaimed_ticket(void)
{
    struct rf_ring *ring = spinning_ring(true);
    bind_batches(ring, 2, 2); /* of two tickets each */
    struct rf_claim claim;
    CHECK(claim_as(ring, 0, &claim));
    atomic_store(&ring->control->sleepers[0], 2);
    rf_wake_claimers(ring);
    CHECK_EQ(atomic_load(&wake_count), 3);
    rf_publish(ring, &claim, false);
    ring->binder->bindings[0].stream = 1;
    rf_wake_claimers(ring);
    CHECK_EQ(atomic_load(&wake_count), RF_ALL);
    rf_unreference(ring);
}

/* For how many a consumer asks that begins to wait for the batch `head` after the last wake, where
 * so many of four are awake, and so many of two tickets are unclaimed. */
static int asked_by_a_wait(uint32_t pace, uint32_t awake, uint64_t head, uint32_t unclaimed)
{
    struct rf_ring *ring = wide_ring(1, 2, false);
    place_batches(ring, 5000);
    bind_batches(ring, 1, 2);
    struct rf_claim claim;
    for (uint32_t claimed = unclaimed; claimed < 2; claimed++)
        claim_as(ring, 0, &claim);
    ring->binder->last_wake_head = 5000 - head;
    atomic_store(&ring->control->pace, pace);
    atomic_store(&ring->control->sleepers[0], UINT64_C(0xf) << awake & 0xf);
    rf_wake_another(ring);
    rf_wake_another(ring); /* once is enough */
    int count = atomic_exchange(&wake_count, 0);
    bool noted = ring->binder->last_wake_head == 5000;
    rf_unreference(ring);
    return noted == (count > 0) ? count : -1;
}

/* It does while fewer are awake than there are processors, and not again before he is up; rarely
 * for light tickets. */
static void waiting_consumer_wakes_one_more(void)
{
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 1, 4, 2), 1);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 1, 4, 1), 1);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 0, 4, 1), 1);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 1, 3, 1), 0);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 1, 4, 0), 0);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 2, 4, 1), 0);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FAST, 4, 4, 1), 0);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FASTEST, 1, 1023, 1), 0);
    CHECK_EQ(asked_by_a_wait(RF_PACE_FASTEST, 1, 1024, 1), 1);
    CHECK_EQ(asked_by_a_wait(0, 1, 4, 1), 0);
}

/* A consumer does so when it begins to wait, whatever the head batch's own worker does. */
static void wait_for_the_head_begins_with_it(void)
{
    struct rf_ring *ring = wide_ring(2, 2, true);
    place_batches(ring, 5000);
    bind_batches(ring, 2, 2);
    struct rf_claim claim;
    CHECK(claim_as(ring, 0, &claim) && claim_as(ring, 0, &claim));
    atomic_store(&ring->control->sleepers[0], 0xe);
    CHECK_EQ(rf_wait_head(ring, 0, soon_ns(10)), RF_PENDING);
    CHECK_EQ(atomic_exchange(&wake_count, 0), 1);
    rf_unreference(ring);
}

static void *sleep_as_worker(void *ring)
{
    struct rf_cursor cursor = {0};
    static struct rf_claim claim;
    return rf_claim_wait(ring, 0, &cursor, &claim, soon_ns(5000)) == RF_TAKEABLE ? ring : NULL;
}

/* Whoever was awake may be long in coming: the consumer sleeps on no ticket that is unclaimed
 * before it has woken. */
static void consumer_sleeps_on_no_unclaimed_ticket(void)
{
    struct rf_ring *ring = spinning_ring(true);
    pthread_t sleeper;
    void *claimed = NULL;
    uint32_t before = atomic_load(&sleeps_begun);
    CHECK(pthread_create(&sleeper, NULL, sleep_as_worker, ring) == 0);
    wait_for_sleeps(before + 1);
    bind_batches(ring, 1, 1); /* for all it knows, worker 1 is awake */
    CHECK_EQ(rf_word_state(word_at(ring, 0, 0)), RF_AVAIL);
    CHECK_EQ(rf_wait_head(ring, 0, soon_ns(30)), RF_PENDING);
    CHECK(pthread_join(sleeper, &claimed) == 0);
    CHECK(claimed == ring);
    rf_unreference(ring);
}

/* A reap and a stop wake all, whatever the pace. */
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
    RUN(yields_become_rare_where_nobody_wants_them);
    RUN(waiter_yields_when_its_time_is_over);
    RUN(one_worker_fewer_fills_light_tickets);
    RUN(brisk_bind_wakes_nobody_while_one_is_awake);
    RUN(brisk_bind_wakes_no_more_than_processors);
    RUN(consumer_wakes_a_worker_for_each_unclaimed_ticket);
    RUN(waiting_consumer_wakes_one_more);
    RUN(wait_for_the_head_begins_with_it);
    RUN(consumer_sleeps_on_no_unclaimed_ticket);
    RUN(reap_and_stop_wake_all);
    return check_end("test_pace");
}
