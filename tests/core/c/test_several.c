/* Workers that hold several tickets: they sleep until those are broken off, and leave others to
 * workers that sleep. */
#include "check.h"
#include "hooks.h"
#include "place.h"

#include <errno.h>
#include <pthread.h>

/* ---- what a break tells ---- */

struct holder {
    struct rf_ring *ring;
    uint32_t seen;
    uint32_t found;
};

static void *sleep_until_a_break(void *argument)
{
    struct holder *holder = argument;
    holder->found = rf_break_wait(holder->ring, holder->seen, soon_ns(60000));
    return NULL;
}

/* Whether this ends the sleep of a worker that holds a ticket. */
static bool is_told(struct rf_ring *ring, void (*act)(struct rf_ring *ring))
{
    struct holder holder = {ring, rf_breaks(ring), 0};
    uint32_t sleeps = atomic_load(&sleeps_begun), in_vain = atomic_load(&sleeps_in_vain);
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_until_a_break, &holder);
    wait_for_sleeps(sleeps + 1);
    act(ring);
    pthread_join(thread, NULL);
    return holder.found != holder.seen && atomic_load(&sleeps_in_vain) == in_vain;
}

/* A break, a fence and the stop wake it. */
static void breaks_are_told(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    CHECK(is_told(ring, rf_cancel));
    CHECK(is_told(ring, rf_requeue));
    CHECK(is_told(ring, rf_stop));
    rf_unreference(ring);
}

/* One that came before the sleep ends it at once, and without one it ends by its deadline. */
static void break_before_the_sleep_is_seen(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    uint32_t seen = rf_breaks(ring);
    CHECK_EQ(rf_break_wait(ring, seen, soon_ns(1)), seen);
    hooked_ring = ring;
    before_sleep = rf_cancel;
    CHECK_EQ(rf_break_wait(ring, seen, soon_ns(60000)), seen + 1);
    CHECK_EQ(rf_break_wait(ring, seen, soon_ns(60000)), seen + 1);
    rf_unreference(ring);
}

static struct rf_claim held;
static bool was_cancelled;

static void look_at_held(struct rf_ring *ring)
{
    (void)ring;
    was_cancelled = rf_cancelled(&held);
}

/* When it is told, its tickets are cancelled already; published so, they free their slots. */
static void tickets_are_cancelled_before_it_is_told(void)
{
    struct rf_ring *ring = ring_of(1, 1, 1, 1);
    bind_batches(ring, 2, 1);
    CHECK(claim_as(ring, 0, &held));
    was_cancelled = false;
    hooked_ring = ring;
    before_wake = look_at_held;
    rf_cancel(ring);
    CHECK(was_cancelled);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_DRAINING);
    rf_publish(ring, &held, true);
    bind_batches(ring, 1, 1);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    CHECK_EQ(fill_all(ring, 0), 1);
    CHECK_EQ(taken_of(ring).batch, 1);
    rf_unreference(ring);
}

/* ---- what is left to others ---- */

/* The time that the core reads while it decides what to leave; 0: the machine's own. A slow machine
 * is late for all of it. */
static int64_t stopped_ns;

int64_t __real_rf_now_ns(void);
int64_t __wrap_rf_now_ns(void);
int64_t __wrap_rf_now_ns(void) { return stopped_ns ? stopped_ns : __real_rf_now_ns(); }

static void place_asleep(struct rf_ring *ring, uint32_t worker)
{
    ring->control->sleepers[worker / 64] |= UINT64_C(1) << worker % 64;
}

/* A batch of four tickets, and the cursor of worker 3, which yields; time stands still. */
static struct rf_ring *yielding_ring(struct rf_cursor *cursor)
{
    stopped_ns = __real_rf_now_ns();
    struct rf_ring *ring = ring_of(2, 4, 4, 4);
    *cursor = (struct rf_cursor){0};
    rf_set_yielding(ring, 3, cursor);
    bind_batches(ring, 1, 4);
    return ring;
}

static uint32_t claim_all(struct rf_ring *ring, struct rf_cursor *cursor)
{
    struct rf_claim claim;
    uint32_t claimed = 0;
    while (rf_claim_next(ring, 3, cursor, &claim))
        claimed++;
    return claimed;
}

/* It claims all there is, but for a ticket for each worker that sleeps. */
static void tickets_are_left_to_sleepers(void)
{
    for (uint32_t asleep = 0; asleep < 4; asleep++) {
        struct rf_cursor cursor;
        struct rf_ring *ring = yielding_ring(&cursor);
        for (uint32_t worker = 0; worker < asleep; worker++)
            place_asleep(ring, worker);
        place_asleep(ring, 3);
        CHECK_EQ(claim_all(ring, &cursor), 4 - asleep);
        CHECK_EQ(fill_all(ring, 0), asleep);
        rf_unreference(ring);
    }
}

/* Those that yield as well are no workers to leave tickets to; nor is one that was reaped. */
static void yielders_leave_nothing_to_each_other(void)
{
    struct rf_cursor cursor, other = {0};
    struct rf_ring *ring = yielding_ring(&cursor);
    rf_set_yielding(ring, 2, &other);
    place_asleep(ring, 2);
    CHECK_EQ(claim_all(ring, &cursor), 4);
    rf_reap(ring, 2, false);
    rf_reap(ring, 3, false);
    place_asleep(ring, 2);
    CHECK_EQ(claim_all(ring, &cursor), 3);
    CHECK_EQ(ring->control->yielders[0], 0);
    rf_unreference(ring);
}

/* What the sleepers do not take within milliseconds, it takes: a ticket is left that long, and not
 * the next one less. */
static void tickets_are_not_left_for_ever(void)
{
    struct rf_cursor cursor;
    struct rf_ring *ring = yielding_ring(&cursor);
    struct rf_claim claim;
    for (uint32_t worker = 0; worker < 3; worker++)
        place_asleep(ring, worker);
    CHECK_EQ(claim_all(ring, &cursor), 1);
    stopped_ns += RF_YIELD_NS - 1;
    CHECK(!rf_claim_next(ring, 3, &cursor, &claim));
    stopped_ns++;
    CHECK(rf_claim_next(ring, 3, &cursor, &claim));
    CHECK_EQ(claim.ticket, 1);
    CHECK(!rf_claim_next(ring, 3, &cursor, &claim));
    CHECK_EQ(cursor.left, 3);
    CHECK_EQ(cursor.left_ns, stopped_ns);
    stopped_ns = 0;
    CHECK_EQ(rf_claim_wait(ring, 3, &cursor, &claim, soon_ns(60000)), RF_TAKEABLE);
    CHECK_EQ(claim.ticket, 2);
    rf_unreference(ring);
}

/* Before it sleeps on what it leaves it wakes all others, once for each work_seq: it may have used
 * up their wake. */
static void wakes_are_passed_on(void)
{
    struct rf_cursor cursor;
    struct rf_ring *ring = yielding_ring(&cursor);
    struct rf_claim claim;
    for (uint32_t worker = 0; worker < 3; worker++)
        place_asleep(ring, worker);
    CHECK_EQ(claim_all(ring, &cursor), 1);
    atomic_store(&wake_count, 0);
    CHECK_EQ(rf_claim_wait(ring, 3, &cursor, &claim, soon_ns(0)), RF_PENDING);
    CHECK_EQ(atomic_load(&wake_count), RF_ALL);
    atomic_store(&wake_count, 0);
    CHECK_EQ(rf_claim_wait(ring, 3, &cursor, &claim, soon_ns(0)), RF_PENDING);
    CHECK_EQ(atomic_load(&wake_count), 0);
    atomic_fetch_add(&ring->control->work_seq, 1);
    CHECK_EQ(rf_claim_wait(ring, 3, &cursor, &claim, soon_ns(0)), RF_PENDING);
    CHECK_EQ(atomic_load(&wake_count), RF_ALL);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(breaks_are_told);
    RUN(break_before_the_sleep_is_seen);
    RUN(tickets_are_cancelled_before_it_is_told);
    RUN(tickets_are_left_to_sleepers);
    RUN(yielders_leave_nothing_to_each_other);
    RUN(tickets_are_not_left_for_ever);
    RUN(wakes_are_passed_on);
    return check_end("test_several");
}
