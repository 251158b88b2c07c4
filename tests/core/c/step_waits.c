/* An event after any instruction of a wait is not lost. The one who waits is a process that is
 * stepped; the event happens here, between two of its instructions. Only whole instructions
 * interleave: what a weaker memory may do is not seen. */
#include "check.h"
#include "hooks.h"
#include "scene.h"
#include "trace.h"

#define LONG_MS 60000 /* a sleep that lasts so long has lost its wake */

static int64_t deadline_ns;

/* The stepped process is about to sleep. For the cell of a batch that has come meanwhile: it
 * has missed nothing. */
static void note_sleep(struct rf_ring *ring)
{
    (void)ring;
    if (scene.unbound && atomic_load(&scene.ring->control->consumer_wait) != RF_WAIT_FREE)
        _exit(RF_TAKEABLE);
    atomic_store(scene.asleep, 1);
    before_sleep = note_sleep;
}

/* The consumer waits for the head batch, or for anything else to do. */
static int wait_as_consumer(void *unused)
{
    (void)unused;
    /* It plays a thread of the consumer, not a forked copy. */
    scene.ring->generation = rf_fork_generation();
    enum rf_answer answer = rf_wait_head(scene.ring, 0, deadline_ns);
    return atomic_load(&sleeps_in_vain) ? RF_PENDING : (int)answer;
}

static int wait_as_worker(void *unused)
{
    (void)unused;
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    return (int)rf_claim_wait(scene.ring, scene.ring->geometry.workers - 1, &cursor, &claim,
                              deadline_ns);
}

/* For every instruction of `wait` up to its sleep: stop there, act here, and expect the answer
 * without a sleep in vain. */
static void check_waits(void (*set)(void), int (*wait)(void *), void (*act)(void), int expected)
{
    begin_scene(set);
    int64_t began_ns = rf_now_ns();
    for (uint32_t steps = 0; !atomic_load(scene.asleep) && check_ok;
         steps = trace_next(steps, began_ns)) {
        restore_scene();
        deadline_ns = soon_ns(LONG_MS);
        before_sleep = note_sleep;
        pid_t pid = trace_start(wait, NULL);
        before_sleep = NULL;
        for (uint32_t step = 0; step < steps && !atomic_load(scene.asleep); step++)
            trace_step(pid);
        bool asleep = atomic_load(scene.asleep);
        act();
        int answer = trace_finish(pid);
        if (answer != expected)
            check_report_numbers(__FILE__, __LINE__, "the answer to a wait", (uint64_t)answer,
                                 (uint64_t)expected);
        atomic_store(scene.asleep, asleep);
    }
    end_scene();
}

/* ---- tests ---- */

/* The consumer's wait for a cell misses no publish, whatever instruction it comes after. */
static void wait_for_a_cell_misses_no_publish(void)
{
    check_waits(unfinished_batch, wait_as_consumer, publish_here, RF_TAKEABLE);
}

/* Nor an alarm. */
static void wait_for_a_cell_misses_no_alarm(void)
{
    check_waits(unfinished_batch, wait_as_consumer, alarm_here, RF_ALARMED);
}

/* Nor a stop. */
static void wait_for_a_cell_misses_no_stop(void)
{
    check_waits(unfinished_batch, wait_as_consumer, stop_here, RF_STOPPED);
}

/* The consumer's wait for a slot misses no release. */
static void wait_for_a_slot_misses_no_release(void)
{
    check_waits(all_held, wait_as_consumer, release_here, RF_TAKEABLE);
}

/* Nor an alarm. */
static void wait_for_a_slot_misses_no_alarm(void)
{
    check_waits(all_held, wait_as_consumer, alarm_here, RF_ALARMED);
}

/* Nor a stop. */
static void wait_for_a_slot_misses_no_stop(void)
{
    check_waits(all_held, wait_as_consumer, stop_here, RF_STOPPED);
}

/* Nor the publish that ends a draining slot. */
static void wait_for_a_slot_misses_no_end_of_draining(void)
{
    check_waits(one_draining, wait_as_consumer, publish_here, RF_TAKEABLE);
}

/* A worker's wait misses no batch that is bound. */
static void wait_for_a_ticket_misses_no_batch(void)
{
    check_waits(one_planned, wait_as_worker, bind_here, RF_TAKEABLE);
}

/* Nor while the pace is fast, when a bind wakes only the last to sleep. */
static void wait_for_a_ticket_misses_no_brisk_batch(void)
{
    check_waits(one_planned_briskly, wait_as_worker, bind_here, RF_TAKEABLE);
}

/* Nor a ticket that is reaped. */
static void wait_for_a_ticket_misses_no_reap(void)
{
    check_waits(unfinished_batch, wait_as_worker, reap_here, RF_TAKEABLE);
}

/* Nor a stop. */
static void wait_for_a_ticket_misses_no_stop(void)
{
    check_waits(unfinished_batch, wait_as_worker, stop_here, RF_STOPPED);
}

int main(void)
{
    check_begin();
    if (!trace_is_allowed()) {
        printf("left out: a process may not be traced here\n");
        return check_end("step_waits");
    }
    RUN(wait_for_a_cell_misses_no_publish);
    RUN(wait_for_a_cell_misses_no_alarm);
    RUN(wait_for_a_cell_misses_no_stop);
    RUN(wait_for_a_slot_misses_no_release);
    RUN(wait_for_a_slot_misses_no_alarm);
    RUN(wait_for_a_slot_misses_no_stop);
    RUN(wait_for_a_slot_misses_no_end_of_draining);
    RUN(wait_for_a_ticket_misses_no_batch);
    RUN(wait_for_a_ticket_misses_no_brisk_batch);
    RUN(wait_for_a_ticket_misses_no_reap);
    RUN(wait_for_a_ticket_misses_no_stop);
    return check_end("step_waits");
}
