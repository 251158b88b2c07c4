/* A sleep that begins after any instruction of an event is ended by it, and nothing else that
 * happens then is missed. The event is a process that is stepped; the other side acts here, between
 * two of its instructions. Only whole instructions interleave: what a weaker memory may do is not
 * seen. */
#include "check.h"
#include "scene.h"
#include "trace.h"

static uint32_t seen;               /* the value slept on */
static void (*check_finally)(void); /* what must hold when both sides are done */

/* The stepped process is another thread of the consumer, or a worker. */
static int act_there(void *act)
{
    scene.ring->generation = rf_fork_generation();
    (*(void (**)(void))act)();
    return 0;
}

/* As a consumer that goes to sleep here would; whether it sleeps. */
static bool sleep_on_the_cell(void)
{
    atomic_store(&scene.ring->control->consumer_wait, scene.claim.ticket + 1);
    seen = atomic_load(&scene.ring->control->news_seq);
    return !rf_word_final(word_at(scene.ring, scene.claim.slot, 0));
}

static bool sleep_for_a_slot(void)
{
    struct rf_control *control = scene.ring->control;
    atomic_store(&control->consumer_wait, RF_WAIT_FREE);
    seen = atomic_load(&control->news_seq);
    rf_bind(scene.ring);
    return atomic_load(&control->head) == atomic_load(&control->bound);
}

/* As a worker; it takes what there is. */
static bool sleep_for_a_ticket(void)
{
    struct rf_claim claim;
    atomic_fetch_or(&scene.ring->control->sleepers[0], 4);
    seen = atomic_load(&scene.ring->control->work_seq);
    return !claim_as(scene.ring, 2, &claim);
}

static void check_both_bound(void) { CHECK_EQ(atomic_load(&scene.ring->control->bound), 4); }

/* No sleep, but a second release: whoever holds the lock must find it. */
static bool release_the_other(void)
{
    check_finally = check_both_bound;
    rf_drop(scene.ring, 1);
    return false;
}

static void check_still_claimed(void)
{
    CHECK_EQ(word_at(scene.ring, 0, 0), rf_word(0, 0, 2, RF_CLAIMED));
    CHECK_EQ(rf_slot_state(scene.ring, 0), RF_SLOT_DRAINING);
}

/* No sleep, but the claim of a worker that looked at head before the break; if it succeeds, it
 * must be respected. */
static bool claim_late(void)
{
    uint64_t word = rf_word(0, 0, 0, RF_AVAIL);
    bool claimed = atomic_compare_exchange_strong(&rf_cell_of(scene.ring, 0, 0)->word, &word,
                                                  rf_word(0, 0, 2, RF_CLAIMED));
    check_finally = claimed ? check_still_claimed : NULL;
    return false;
}

/* No sleep, but a look at the cell. */
static bool look_for_a_ticket(void)
{
    uint64_t word = word_at(scene.ring, scene.claim.slot, 0);
    if (rf_word_state(word) == RF_AVAIL && rf_word_ticket(word) == (uint32_t)scene.claim.ticket)
        check_report(__FILE__, __LINE__, "a cancelled ticket is not available");
    return false;
}

/* No sleep, but a look: with a batch planned or bound, the epoch is not over. */
static bool look_for_the_end(void)
{
    if (rf_look(scene.ring) == RF_DRY)
        check_report(__FILE__, __LINE__, "rf_look(scene.ring) != RF_DRY");
    return false;
}

/* For every instruction of `act`: stop there, go to sleep here, and expect a bump of `seq` if that
 * sleep has begun. */
static void check_events(void (*set)(void), void (*act)(void), bool (*sleep)(void), size_t seq)
{
    begin_scene(set);
    bool ended = false;
    int64_t began_ns = rf_now_ns();
    for (uint32_t steps = 0; !ended && check_ok; steps = trace_next(steps, began_ns)) {
        restore_scene();
        check_finally = NULL;
        pid_t pid = trace_start(act_there, &act);
        for (uint32_t step = 0; !ended && step < steps; step++)
            ended = !trace_step(pid);
        bool asleep = !ended && sleep();
        if (!ended)
            trace_finish(pid);
        if (check_finally)
            check_finally();
        _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)((uint8_t *)scene.ring->control + seq);
        if (asleep && atomic_load(word) == seen)
            check_report(__FILE__, __LINE__, "a sleep that begins after this instruction is ended");
    }
    end_scene();
}

#define NEWS offsetof(struct rf_control, news_seq)
#define WORK offsetof(struct rf_control, work_seq)

/* ---- tests ---- */

/* A publish finds a consumer that goes to sleep for its cell, whatever instruction
 * that comes after. */
static void publish_misses_no_sleep_for_its_cell(void)
{
    check_events(unfinished_batch, publish_here, sleep_on_the_cell, NEWS);
}

/* The publish that ends a draining slot finds a consumer that sleeps for a slot. */
static void publish_misses_no_sleep_for_a_slot(void)
{
    check_events(one_draining, publish_here, sleep_for_a_slot, NEWS);
}

/* So does a release. */
static void release_misses_no_sleep_for_a_slot(void)
{
    check_events(all_held, release_here, sleep_for_a_slot, NEWS);
}

/* A release finds its way into another that holds the lock: no slot is left lying. */
static void release_misses_no_other_release(void)
{
    check_events(all_held_and_two_planned, release_here, release_the_other, NEWS);
}

/* While a release binds the last batch, the consumer never finds that there is none. */
static void release_never_hides_the_last_batch(void)
{
    check_events(all_held, release_here, look_for_the_end, NEWS);
}

/* A break respects a claim that comes in between: the slot drains until the worker has left it. */
static void break_misses_no_claim(void) { check_events(one_bound, cancel_here, claim_late, NEWS); }

/* A reap after a break never makes a cancelled ticket available, not for a moment. */
static void reap_makes_no_cancelled_ticket_available(void)
{
    check_events(one_draining, reap_here, look_for_a_ticket, NEWS);
}

/* Binding finds a worker that goes to sleep. */
static void bind_misses_no_sleeping_worker(void)
{
    check_events(one_planned, bind_here, sleep_for_a_ticket, WORK);
}

/* So does a reap. */
static void reap_misses_no_sleeping_worker(void)
{
    check_events(unfinished_batch, reap_here, sleep_for_a_ticket, WORK);
}

int main(void)
{
    check_begin();
    if (!trace_is_allowed()) {
        printf("left out: a process may not be traced here\n");
        return check_end("step_events");
    }
    RUN(publish_misses_no_sleep_for_its_cell);
    RUN(publish_misses_no_sleep_for_a_slot);
    RUN(release_misses_no_sleep_for_a_slot);
    RUN(release_misses_no_other_release);
    RUN(release_never_hides_the_last_batch);
    RUN(break_misses_no_claim);
    RUN(reap_makes_no_cancelled_ticket_available);
    RUN(bind_misses_no_sleeping_worker);
    RUN(reap_misses_no_sleeping_worker);
    return check_end("step_events");
}
