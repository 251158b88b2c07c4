/* Sleeping and waking: every wait ends by its deadline, and no wake is lost, however late it comes
 * before the sleep. */
#include "check.h"
#include "hooks.h"
#include "place.h"

#include <pthread.h>

#define LONG_MS 60000 /* a wait that should be woken; one that runs into it has lost its wake */
#define SHORT_MS 30   /* a wait without a wake */

struct sleeper {
    struct rf_ring *ring;
    uint32_t worker;
    struct rf_cursor cursor;
    struct rf_claim claim;
    enum rf_answer answer;
    pthread_t thread;
};

/* Not on the stack: a test that fails leaves its sleepers behind. */
static struct sleeper consumer, workers[2];

static void *sleep_as_worker(void *argument)
{
    struct sleeper *sleeper = argument;
    sleeper->answer = rf_claim_wait(sleeper->ring, sleeper->worker, &sleeper->cursor,
                                    &sleeper->claim, soon_ns(LONG_MS));
    return NULL;
}

static void *sleep_as_consumer(void *argument)
{
    struct sleeper *sleeper = argument;
    sleeper->answer = rf_wait_head(sleeper->ring, 0, soon_ns(LONG_MS));
    return NULL;
}

/* Start a thread and wait until it is asleep. */
static void start(struct sleeper *sleeper, struct rf_ring *ring, uint32_t worker,
                  void *(*body)(void *))
{
    uint32_t before = atomic_load(&sleeps_begun);
    *sleeper = (struct sleeper){.ring = ring, .worker = worker};
    if (pthread_create(&sleeper->thread, NULL, body, sleeper) == 0)
        wait_for_sleeps(before + 1);
}

/* An answer got at the deadline is none: the sleeper should have been woken. */
static enum rf_answer unless_in_vain(enum rf_answer answer)
{
    return atomic_exchange(&sleeps_in_vain, 0) ? RF_PENDING : answer;
}

static enum rf_answer answer_of(struct sleeper *sleeper)
{
    pthread_join(sleeper->thread, NULL);
    return unless_in_vain(sleeper->answer);
}

static void stop_it(struct rf_ring *ring) { rf_stop(ring); }
static void alarm_it(struct rf_ring *ring) { rf_alarm(ring); }
static void fill_it(struct rf_ring *ring) { fill_all(ring, 0); }
static void drop_first(struct rf_ring *ring) { rf_drop(ring, 0); }
static void bind_one(struct rf_ring *ring) { bind_batches(ring, 1, 1); }
static void reap_it(struct rf_ring *ring) { rf_reap(ring, 0, false); }

/* What rf_wait_head() answers when `act` happens at the last moment before its sleep. */
static enum rf_answer wait_while(struct rf_ring *ring, void (*act)(struct rf_ring *ring))
{
    hooked_ring = ring;
    before_sleep = act;
    enum rf_answer answer = rf_wait_head(ring, 0, soon_ns(LONG_MS));
    before_sleep = NULL;
    return unless_in_vain(answer);
}

/* A ring whose head batch, of one ticket, is bound and unfinished. */
static struct rf_ring *unfinished_ring(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    bind_batches(ring, 1, 1);
    return ring;
}

/* A ring of two slots, both held, with a batch planned. */
static struct rf_ring *held_ring(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    bind_batches(ring, 3, 1);
    fill_all(ring, 0);
    taken_of(ring);
    taken_of(ring);
    return ring;
}

/* ---- deadlines ---- */

/* The consumer's wait for an unfinished cell ends by its deadline. */
static void wait_for_a_cell_ends_by_deadline(void)
{
    struct rf_ring *ring = unfinished_ring();
    CHECK_EQ(rf_wait_head(ring, 0, soon_ns(SHORT_MS)), RF_PENDING);
    CHECK_EQ(rf_wait_head(ring, 0, 0), RF_PENDING);
    CHECK_EQ(atomic_exchange(&sleeps_in_vain, 0), 2);
    CHECK_EQ(atomic_load(&ring->control->consumer_wait), RF_WAIT_NONE);
    rf_unreference(ring);
}

/* The consumer's wait for a slot ends by its deadline. */
static void wait_for_a_slot_ends_by_deadline(void)
{
    struct rf_ring *ring = held_ring();
    CHECK_EQ(rf_wait_head(ring, 0, soon_ns(SHORT_MS)), RF_HELD);
    CHECK_EQ(rf_wait_head(ring, 0, 0), RF_HELD);
    CHECK_EQ(atomic_exchange(&sleeps_in_vain, 0), 2);
    rf_unreference(ring);
}

/* A worker's wait ends by its deadline, leaves no sleepers bit and counts its time. */
static void wait_for_a_ticket_ends_by_deadline(void)
{
    struct rf_ring *ring = ring_of(2, 1, 256, 1);
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    CHECK_EQ(rf_claim_wait(ring, 200, &cursor, &claim, soon_ns(SHORT_MS)), RF_PENDING);
    CHECK_EQ(atomic_exchange(&sleeps_in_vain, 0), 1);
    CHECK_EQ(atomic_load(&ring->control->sleepers[200 / 64]), 0);
    CHECK(rf_report_worker(ring, 200).wait_ns >= SHORT_MS * UINT64_C(1000000) / 2);
    rf_unreference(ring);
}

/* With nothing planned there is nothing to wait for. */
static void wait_for_nothing_returns_at_once(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    CHECK_EQ(rf_wait_head(ring, 0, soon_ns(LONG_MS)), RF_DRY);
    rf_unreference(ring);
}

/* ---- sleepers are woken ---- */

/* Binding wakes as many sleeping workers as there are tickets. */
static void bind_wakes_sleeping_workers(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    for (uint32_t worker = 0; worker < 2; worker++)
        start(&workers[worker], ring, worker, sleep_as_worker);
    CHECK_EQ(atomic_load(&ring->control->sleepers[0]), 3);
    bind_batches(ring, 1, 2);
    CHECK_EQ(answer_of(&workers[0]), RF_TAKEABLE);
    CHECK_EQ(answer_of(&workers[1]), RF_TAKEABLE);
    rf_unreference(ring);
}

/* The last ticket's publish wakes the consumer. */
static void publish_wakes_the_consumer(void)
{
    struct rf_ring *ring = unfinished_ring();
    start(&consumer, ring, 0, sleep_as_consumer);
    fill_all(ring, 0);
    CHECK_EQ(answer_of(&consumer), RF_TAKEABLE);
    rf_unreference(ring);
}

/* The consumer sleeps on the last unfinished cell; when others are unfinished still,
 * it sleeps on. */
static void consumer_sleeps_until_all_cells_are_final(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    struct rf_claim first, second;
    bind_batches(ring, 1, 2);
    CHECK(claim_as(ring, 0, &first) && claim_as(ring, 1, &second));
    start(&consumer, ring, 0, sleep_as_consumer);
    uint32_t sleeps = atomic_load(&sleeps_begun);
    rf_publish(ring, &second, false);
    wait_for_sleeps(sleeps + 1);
    rf_publish(ring, &first, false);
    CHECK_EQ(answer_of(&consumer), RF_TAKEABLE);
    rf_unreference(ring);
}

/* A release wakes the consumer, who sees the batch bound meanwhile; its publish wakes it again. */
static void release_wakes_the_consumer(void)
{
    struct rf_ring *ring = held_ring();
    start(&consumer, ring, 0, sleep_as_consumer);
    uint32_t sleeps = atomic_load(&sleeps_begun);
    rf_drop(ring, 1);
    wait_for_sleeps(sleeps + 1);
    CHECK_EQ(fill_all(ring, 0), 1);
    CHECK_EQ(answer_of(&consumer), RF_TAKEABLE);
    rf_unreference(ring);
}

/* Stop wakes all workers and the consumer, wherever they sleep, for ever. */
static void stop_wakes_everyone(void)
{
    struct rf_ring *ring = ring_of(2, 1, 3, 1);
    struct rf_claim claim;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 2, &claim));
    start(&consumer, ring, 0, sleep_as_consumer);
    for (uint32_t worker = 0; worker < 2; worker++)
        start(&workers[worker], ring, worker, sleep_as_worker);
    rf_stop(ring);
    CHECK_EQ(answer_of(&consumer), RF_STOPPED);
    CHECK_EQ(answer_of(&workers[0]), RF_STOPPED);
    CHECK_EQ(answer_of(&workers[1]), RF_STOPPED);
    struct rf_cursor cursor = {0};
    CHECK_EQ(rf_claim_wait(ring, 0, &cursor, &claim, soon_ns(LONG_MS)), RF_STOPPED);
    rf_unreference(ring);
}

/* Stop wakes a consumer that waits for a slot. */
static void stop_wakes_a_consumer_without_slots(void)
{
    struct rf_ring *ring = held_ring();
    start(&consumer, ring, 0, sleep_as_consumer);
    rf_stop(ring);
    CHECK_EQ(answer_of(&consumer), RF_STOPPED);
    rf_unreference(ring);
}

/* A reap wakes sleeping workers for the ticket it gives back. */
static void reap_wakes_sleeping_workers(void)
{
    struct rf_ring *ring = unfinished_ring();
    struct rf_claim claim;
    CHECK(claim_as(ring, 0, &claim));
    start(&workers[0], ring, 1, sleep_as_worker);
    rf_reap(ring, 0, false);
    CHECK_EQ(answer_of(&workers[0]), RF_TAKEABLE);
    rf_unreference(ring);
}

/* A worker that was killed between its publish and its wake owes the consumer that wake:
 * the reaper pays. */
static void reap_wakes_the_consumer(void)
{
    struct rf_ring *ring = unfinished_ring();
    start(&consumer, ring, 0, sleep_as_consumer);
    place_word(ring, 0, 0, rf_word(0, 0, 0, RF_READY));
    rf_reap(ring, 0, false);
    CHECK_EQ(answer_of(&consumer), RF_TAKEABLE);
    rf_unreference(ring);
}

/* ---- at the last moment before a sleep ---- */

/* A publish just before the consumer's sleep keeps it awake. */
static void publish_before_the_sleep_is_not_lost(void)
{
    struct rf_ring *ring = unfinished_ring();
    CHECK_EQ(wait_while(ring, fill_it), RF_TAKEABLE);
    rf_unreference(ring);
}

/* A release just before the consumer's sleep keeps it awake: it goes to sleep once more,
 * on the cell. */
static void release_before_the_sleep_is_not_lost(void)
{
    struct rf_ring *ring = held_ring();
    hooked_ring = ring;
    before_sleep = drop_first;
    /* The deadline of the second sleep. */
    CHECK_EQ(rf_wait_head(ring, 0, soon_ns(SHORT_MS)), RF_PENDING);
    CHECK_EQ(atomic_exchange(&sleeps_in_vain, 0), 1);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    CHECK_EQ(wait_while(ring, fill_it), RF_TAKEABLE);
    rf_unreference(ring);
}

/* An alarm just before the consumer's sleep keeps it awake, on a cell as for a slot. */
static void alarm_before_the_sleep_is_not_lost(void)
{
    struct rf_ring *ring = unfinished_ring(), *held = held_ring();
    CHECK_EQ(wait_while(ring, alarm_it), RF_ALARMED);
    CHECK_EQ(wait_while(held, alarm_it), RF_ALARMED);
    rf_unreference(ring);
    rf_unreference(held);
}

/* So does a stop. */
static void stop_before_the_sleep_is_not_lost(void)
{
    struct rf_ring *ring = unfinished_ring(), *held = held_ring();
    CHECK_EQ(wait_while(ring, stop_it), RF_STOPPED);
    CHECK_EQ(wait_while(held, stop_it), RF_STOPPED);
    rf_unreference(ring);
    rf_unreference(held);
}

/* So does an alarm between the consumer's look and its announcement that it will sleep. */
static void alarm_after_the_look_is_not_lost(void)
{
    struct rf_ring *ring = held_ring();
    hooked_ring = ring;
    before_is_planned = alarm_it; /* rf_look() has looked at the alarm by then */
    CHECK_EQ(unless_in_vain(rf_wait_head(ring, 0, soon_ns(LONG_MS))), RF_ALARMED);
    rf_unreference(ring);
}

/* A wait for a slot ends when one comes back, and does not go on to wait for its rows. */
static void wait_for_a_slot_ends_with_it(void)
{
    struct rf_ring *ring = held_ring();
    CHECK_EQ(rf_wait_slot(ring, soon_ns(1)), RF_HELD);
    atomic_store(&sleeps_in_vain, 0);
    hooked_ring = ring;
    before_sleep = drop_first;
    CHECK_EQ(rf_wait_slot(ring, soon_ns(LONG_MS)), RF_PENDING);
    CHECK_EQ(rf_wait_slot(ring, soon_ns(LONG_MS)), RF_PENDING);
    CHECK_EQ(atomic_load(&sleeps_in_vain), 0);
    rf_unreference(ring);
}

/* Nor does it if the slot comes back just before it would sleep. */
static void wait_for_a_slot_sees_one_that_came_meanwhile(void)
{
    struct rf_ring *ring = held_ring();
    hooked_ring = ring;
    before_is_planned = drop_first;
    CHECK_EQ(rf_wait_slot(ring, soon_ns(LONG_MS)), RF_PENDING);
    CHECK_EQ(atomic_load(&sleeps_in_vain), 0);
    rf_unreference(ring);
}

/* A release that binds the last planned batch while the consumer looks does not end the epoch
 * a batch early. */
static void look_sees_the_last_batch_bound_meanwhile(void)
{
    struct rf_ring *ring = held_ring();
    hooked_ring = ring;
    before_is_planned = drop_first;
    CHECK_EQ(rf_look(ring), RF_PENDING);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    CHECK_EQ(rf_look(ring), RF_PENDING);
    rf_unreference(ring);
}

/* What a worker's wait answers when `act` happens at the last moment before its sleep. */
static enum rf_answer claim_while(struct rf_ring *ring, void (*act)(struct rf_ring *ring))
{
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    hooked_ring = ring;
    before_sleep = act;
    return unless_in_vain(rf_claim_wait(ring, 1, &cursor, &claim, soon_ns(LONG_MS)));
}

/* A batch bound, a ticket reaped or a stop just before a worker's sleep keeps it awake. */
static void worker_misses_nothing_before_its_sleep(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    CHECK_EQ(claim_while(ring, bind_one), RF_TAKEABLE);
    rf_reap(ring, 1, false);
    struct rf_claim claim;
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim_while(ring, reap_it), RF_TAKEABLE);
    CHECK_EQ(claim_while(ring, stop_it), RF_STOPPED);
    rf_unreference(ring);
}

/* ---- room: a slot left to be filled ---- */

/* A ring of which both slots are held, with nothing planned. */
static struct rf_ring *full_ring(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    bind_batches(ring, 2, 1);
    fill_all(ring, 0);
    taken_of(ring);
    taken_of(ring);
    return ring;
}

/* What rf_wait_room() returns when `act` happens at the last moment before its sleep; nobody may
 * sleep in vain. */
static bool room_while(struct rf_ring *ring, void (*act)(struct rf_ring *ring))
{
    hooked_ring = ring;
    before_sleep = act;
    bool over = rf_wait_room(ring, soon_ns(LONG_MS));
    before_sleep = NULL;
    return over && !atomic_exchange(&sleeps_in_vain, 0);
}

static void *sleep_for_room(void *argument)
{
    struct sleeper *sleeper = argument;
    bool over = rf_wait_room(sleeper->ring, soon_ns(LONG_MS));
    sleeper->answer = over && rf_has_room(sleeper->ring) ? RF_TAKEABLE : RF_PENDING;
    return NULL;
}

/* There is room while some slot is free or bound; one that drains is none. */
static void room_is_a_slot_that_can_be_filled(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct rf_claim claim;
    CHECK(rf_has_room(ring));
    bind_batches(ring, 2, 1);
    CHECK(rf_has_room(ring));
    CHECK(claim_as(ring, 0, &claim));
    rf_publish(ring, &claim, false);
    taken_of(ring);
    CHECK(rf_has_room(ring));
    CHECK(claim_as(ring, 0, &claim));
    rf_cancel(ring);
    CHECK_EQ(rf_slot_state(ring, 1), RF_SLOT_DRAINING);
    CHECK(!rf_has_room(ring));
    rf_drop(ring, 0);
    CHECK(rf_has_room(ring));
    rf_unreference(ring);
}

/* The wait for room ends by its deadline, and leaves no trace. */
static void wait_for_room_ends_by_deadline(void)
{
    struct rf_ring *ring = full_ring();
    CHECK(!rf_wait_room(ring, soon_ns(SHORT_MS)));
    CHECK(!rf_wait_room(ring, 0));
    CHECK_EQ(atomic_exchange(&sleeps_in_vain, 0), 2);
    CHECK_EQ(atomic_load(&ring->control->consumer_wait), RF_WAIT_NONE);
    rf_unreference(ring);
}

/* A release wakes whoever waits for room, though no batch is planned that could be bound. */
static void release_wakes_a_wait_for_room(void)
{
    struct rf_ring *ring = full_ring();
    start(&consumer, ring, 0, sleep_for_room);
    rf_drop(ring, 1);
    CHECK_EQ(answer_of(&consumer), RF_TAKEABLE);
    rf_unreference(ring);
}

/* A release, an alarm or a stop just before the sleep keeps it awake; the last two
 * leave no room. */
static void wait_for_room_misses_nothing_before_its_sleep(void)
{
    struct rf_ring *ring = full_ring(), *alarmed = full_ring(), *stopped = full_ring();
    CHECK(room_while(ring, drop_first));
    CHECK(rf_has_room(ring));
    CHECK(room_while(alarmed, alarm_it));
    CHECK(!rf_has_room(alarmed));
    CHECK(room_while(stopped, stop_it));
    CHECK(!rf_has_room(stopped));
    CHECK(rf_wait_room(stopped, soon_ns(LONG_MS)));
    rf_unreference(ring);
    rf_unreference(alarmed);
    rf_unreference(stopped);
}

static struct rf_claim last;
static void cancel_last(struct rf_ring *ring) { rf_publish(ring, &last, true); }

/* A slot that drains is room once its worker has looked up. */
static void drained_slot_ends_a_wait_for_room(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    bind_batches(ring, 2, 1);
    CHECK(claim_as(ring, 0, &last));
    rf_publish(ring, &last, false);
    taken_of(ring);
    CHECK(claim_as(ring, 0, &last));
    rf_cancel(ring);
    CHECK(room_while(ring, cancel_last));
    CHECK_EQ(rf_slot_state(ring, 1), RF_SLOT_FREE);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(wait_for_a_cell_ends_by_deadline);
    RUN(wait_for_a_slot_ends_by_deadline);
    RUN(wait_for_a_ticket_ends_by_deadline);
    RUN(wait_for_nothing_returns_at_once);
    RUN(bind_wakes_sleeping_workers);
    RUN(publish_wakes_the_consumer);
    RUN(consumer_sleeps_until_all_cells_are_final);
    RUN(release_wakes_the_consumer);
    RUN(stop_wakes_everyone);
    RUN(stop_wakes_a_consumer_without_slots);
    RUN(reap_wakes_sleeping_workers);
    RUN(reap_wakes_the_consumer);
    RUN(publish_before_the_sleep_is_not_lost);
    RUN(release_before_the_sleep_is_not_lost);
    RUN(alarm_before_the_sleep_is_not_lost);
    RUN(stop_before_the_sleep_is_not_lost);
    RUN(alarm_after_the_look_is_not_lost);
    RUN(wait_for_a_slot_ends_with_it);
    RUN(wait_for_a_slot_sees_one_that_came_meanwhile);
    RUN(look_sees_the_last_batch_bound_meanwhile);
    RUN(worker_misses_nothing_before_its_sleep);
    RUN(room_is_a_slot_that_can_be_filled);
    RUN(wait_for_room_ends_by_deadline);
    RUN(release_wakes_a_wait_for_room);
    RUN(wait_for_room_misses_nothing_before_its_sleep);
    RUN(drained_slot_ends_a_wait_for_room);
    return check_end("test_wait");
}
