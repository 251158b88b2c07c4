/* Fewer states with the same faults.
 *
 * A step is private where no other actor can see or hinder it: then it does not matter when it is made, and nobody else
 * need be looked at before it is. What its worker may suffer just then (being killed, or standing still) stays possible
 * before and after it. Private are looks at what never changes in this configuration, too.
 *
 * That holds where the rules hold: where one is broken, every order is tried.
 *
 * Twins are actors that differ in their number only. Which of them does what makes no difference, so they are sorted.
 */
#include "model.h"

#include <string.h>

static bool may_be_cancelled(void) { return configuration->breaks || configuration->fences; }
static bool may_be_reaped(void) { return configuration->kills || configuration->poison || configuration->freezes; }

static bool is_private_to_worker(enum worker_step step)
{
    switch (step) {
    case WAIT_STOP:
    case SLEEP_STOP: return !configuration->closes;
    case CLAIM_REAPS: return !may_be_reaped();
    case ROW_CANCELLED: return !may_be_cancelled();
    case FILL_RECORD: /* who has claimed is alone with the slot's record, its own rows, its line and its cell */
    case FILL_TICKET:
    case FILL_ATTEMPT:
    case ROW_BLAME:
    case ROW_SAMPLE:
    case ROW_WHOLE:
    case ROW_FAIL:
    case ROW_CLEAR:
    case PUBLISH_OWN:
    case PUBLISH_BLAME: return true;
    default: return false;
    }
}

static bool is_private_to_thread(const struct thread *thread)
{
    switch (thread->step) {
    case NEXT_LOCK:
    case BREAK_LOCK:
    case FENCE_LOCK:
    case REST_UNLOCK: return configuration->consumers < 2;
    case LOOK_STOP: return !configuration->closes;
    case LOOK_ALARM: return !configuration->alarm_after;
    case REST_ENDS: return !configuration->closes && !configuration->alarm_after;
    case DROP_COUNT: return !configuration->exports;
    case BIND_ENTRY: /* whoever looks there still looks for a batch that is gone */
    case BIND_CELLS:
    case BIND_RECORD: /* the slot is free */
    case BIND_PLAN:   /* the plan's other end looks at its own count */
    case CANCEL_SLOTS: /* under the lock */
    case CANCEL_PLAN:
    case REAP_FIND:
    case TAKE_CELL: /* to whoever still scans, EMPTY is as good as final */
    case TAKE_HOLD:
    case TAKE_EXPORT: return true;
    default: return false;
    }
}

/* An actor whose next step is private, or ACTORS. */
unsigned private_actor(const struct state *s)
{
    if (configuration->dies)
        return ACTORS;
    for (unsigned number = 0; number < configuration->workers; number++)
        if (!s->worker[number].frozen && is_private_to_worker(s->worker[number].step))
            return number;
    for (unsigned number = 0; number < THREADS; number++)
        if (is_private_to_thread(&s->thread[number]))
            return FIRST_THREAD + number;
    return ACTORS;
}

/* ---- twins ---- */

static uint8_t swap_bits(uint8_t bits, unsigned one, unsigned other)
{
    unsigned differ = (bits >> one ^ bits >> other) & 1;
    return (uint8_t)(bits ^ (differ << one | differ << other));
}

static void swap_owner(uint8_t *owner, unsigned one, unsigned other)
{
    if (*owner == one)
        *owner = (uint8_t)other;
    else if (*owner == other)
        *owner = (uint8_t)one;
}

static void swap_workers(struct state *s, unsigned one, unsigned other)
{
    struct worker worker = s->worker[one];
    s->worker[one] = s->worker[other];
    s->worker[other] = worker;
    s->sleepers = swap_bits(s->sleepers, one, other);
    for (unsigned slot = 0; slot < configuration->slots; slot++)
        for (unsigned cell = 0; cell < configuration->cells; cell++)
            swap_owner(&s->slot[slot].cell[cell].owner, one, other);
    if (s->thread[WATCHER].step != IDLE && s->thread[WATCHER].step != OVER)
        swap_owner(&s->thread[WATCHER].worker, one, other);
}

static bool wrong_order(const void *one, const void *other, size_t size) { return memcmp(one, other, size) < 0; }

static void swap_threads(struct state *s, unsigned one)
{
    struct thread thread = s->thread[one];
    s->thread[one] = s->thread[one + 1];
    s->thread[one + 1] = thread;
}

void sort_twins(struct state *s)
{
    for (unsigned last = configuration->workers; last > 1; last--)
        for (unsigned one = 0; one + 1 < last; one++)
            if (is_away(one) == is_away(one + 1) &&
                wrong_order(&s->worker[one], &s->worker[one + 1], sizeof *s->worker))
                swap_workers(s, one, one + 1);
    if (configuration->releasers > 1 &&
        wrong_order(&s->thread[RELEASER_0], &s->thread[RELEASER_1], sizeof *s->thread))
        swap_threads(s, RELEASER_0);
    if (configuration->consumers > 1 &&
        wrong_order(&s->thread[CONSUMER_0], &s->thread[CONSUMER_1], sizeof *s->thread)) {
        swap_threads(s, CONSUMER_0);
        s->armed = swap_bits(s->armed, CONSUMER_0, CONSUMER_1);
        s->changed = swap_bits(s->changed, CONSUMER_0, CONSUMER_1);
    }
}
