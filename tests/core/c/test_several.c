/* Workers that hold several tickets: they sleep until those are broken off, leave others to workers
 * that sleep, and fill one claim in several threads. */
#include "check.h"
#include "hooks.h"
#include "place.h"
#include "several.h"
#include "times.h"

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

/* ---- threads that fill one claim ---- */

#define PART_ROWS 24u
#define PART_THREADS 3u

struct filler {
    struct rf_claim *claim;
    pthread_mutex_t *failing;
    uint32_t first;
};

/* Fill every third row, the last first. Of the rows that are 2 of 5, all fail. */
static void *fill_parts(void *argument)
{
    struct filler *filler = argument;
    for (uint32_t row = PART_ROWS - PART_THREADS + filler->first; row < PART_ROWS;
         row -= PART_THREADS) {
        struct rf_claim part;
        rf_begin_part(filler->claim, row, 1, false, &part);
        rf_blame(&part, 0);
        ((int64_t *)part.base)[part.first_row] = part.indices[0] + 1;
        rf_note_times(&part, 1, 2, 3);
        if (row % 5 == 2) {
            pthread_mutex_lock(filler->failing);
            rf_forget_later(&part, 0);
            rf_fail(&part, 0, &row, sizeof row);
            pthread_mutex_unlock(filler->failing);
        }
        rf_end_part(&part, filler->claim);
    }
    return NULL;
}

/* Each row is written once, the first row's failure is kept, all is counted in the worker's line,
 * and that line blames no row. */
static void threads_fill_one_claim(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, PART_ROWS);
    struct rf_claim claim;
    struct filler fillers[PART_THREADS];
    pthread_t threads[PART_THREADS];
    pthread_mutex_t failing = PTHREAD_MUTEX_INITIALIZER;
    bind_batches(ring, 1, PART_ROWS);
    CHECK(claim_as(ring, 0, &claim));
    rf_show(&claim, 0);
    for (uint32_t first = 0; first < PART_THREADS; first++) {
        fillers[first] = (struct filler){&claim, &failing, first};
        pthread_create(&threads[first], NULL, fill_parts, &fillers[first]);
    }
    for (uint32_t first = 0; first < PART_THREADS; first++)
        pthread_join(threads[first], NULL);
    CHECK_EQ(atomic_load(&claim.line->row), RF_NO_ROW);
    CHECK_EQ(atomic_load(&claim.line->timed), PART_ROWS);
    CHECK_EQ(atomic_load(&claim.line->read_ns), 2 * PART_ROWS);
    CHECK_EQ(atomic_load(&claim.line->write_ns), 3 * PART_ROWS);
    rf_publish(ring, &claim, false);
    struct rf_taken taken = taken_of(ring);
    CHECK_EQ(taken.rows, PART_ROWS);
    CHECK_EQ(taken.failed, true);
    for (uint32_t row = 0; row < PART_ROWS; row++) {
        CHECK_EQ(((int64_t *)rf_slot_base(ring, taken.slot))[row], row + 1);
        CHECK_EQ(rf_slot_marks(ring, taken.slot)[row], row % 5 == 2 ? RF_ROW_RAISED : RF_ROW_OK);
    }
    struct rf_failure failure;
    CHECK(rf_read_failure(ring, taken.slot, 0, &failure));
    CHECK_EQ(failure.row, 2);
    CHECK_EQ(failure.payload[0], 2);
    rf_drop(ring, taken.slot);
    rf_unreference(ring);
}

/* A part that is all of a claim says how many rows it delivers; smaller ones do not. */
static void the_whole_claim_says_its_rows(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 4);
    struct rf_claim claim, part;
    bind_batches(ring, 1, 4);
    CHECK(claim_as(ring, 0, &claim));
    rf_begin_part(&claim, 1, 1, true, &part);
    rf_end_part(&part, &claim);
    CHECK_EQ(claim.rows_delivered, 4);
    rf_begin_part(&claim, 0, 4, true, &part);
    part.rows_delivered = 3;
    rf_end_part(&part, &claim);
    CHECK_EQ(claim.rows_delivered, 3);
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
    RUN(threads_fill_one_claim);
    RUN(the_whole_claim_says_its_rows);
    return check_end("test_several");
}
