/* What must be so: in every state, whenever somebody writes or a batch is taken, and wherever all are at rest. */
#include "model.h"

const char *violation;

void wrong(const char *what)
{
    if (!violation)
        violation = what;
}

/* ---- when an actor writes ---- */

void check_write(const struct slot *slot)
{
    if (slot->views || slot->count || slot->state == HELD)
        wrong("a held slot is written");
}

/* ---- when a ticket is taken back ---- */

void check_blame(const struct slot *slot, unsigned number)
{
    unsigned first = number * rows_per_ticket(slot->plan);
    for (unsigned row = first; row < first + rows_of_ticket(slot->plan, number); row++)
        if (slot->deaths[row] != slot->died[row])
            wrong("a death is blamed on a row that is not at fault, or on none");
}

/* ---- when a batch is taken ---- */

static void check_row(const struct slot *slot, unsigned row)
{
    unsigned index = index_of(slot->plan, row);
    bool raises = has(configuration->raises, index), may_raise = raises || has(configuration->flaky, index);
    switch (slot->mark[row]) {
    case ROW_KILLED:
        if (slot->died[row] < configuration->max_attempts)
            wrong("a row was given up that did not cost max_attempts workers");
        break;
    case ROW_RAISED:
        if (!may_raise)
            wrong("a row is marked as failed that did not fail");
        break;
    default:
        if (slot->content[row] != RIGHT)
            wrong("a row was delivered that is not there or not right");
    }
}

static void check_ticket(const struct slot *slot, unsigned number)
{
    unsigned first = number * rows_per_ticket(slot->plan), rows = rows_of_ticket(slot->plan, number), failure = 0;
    bool failed = false;
    for (unsigned row = first + rows; row-- > first;) {
        check_row(slot, row);
        failed |= slot->mark[row] != ROW_OK;
        if (slot->mark[row] == ROW_RAISED)
            failure = row + 1;
    }
    if (slot->cell[number].state == CANCELLED)
        wrong("a cancelled batch was delivered");
    else if (!is_final(&slot->cell[number]))
        wrong("a batch was taken before all of its tickets were final");
    else if (failed != (slot->cell[number].state == FAILED))
        wrong("a ticket is FAILED without a failed row, or READY with one");
    if (slot->failure[number] != failure)
        wrong("a failure record does not name the first row that raised");
}

void check_taken(const struct state *s, const struct slot *slot)
{
    if (slot->plan != s->expected || slot->batch != s->head)
        wrong("a batch was taken that is not the next one");
    if (s->waiting <= s->beyond)
        wrong("a batch of the next epoch was taken in this one");
    if (slot->state != BOUND)
        wrong("a batch was taken from a slot that is not bound");
    for (unsigned cell = 0; cell < tickets_of(slot->plan); cell++)
        check_ticket(slot, cell);
}

/* ---- in every state ---- */

/* Whether a slot is on its way from the list of free ones to a batch: taken off, and not bound yet. */
static bool is_being_bound(const struct state *s, const struct thread *thread)
{
    if (thread->step < BIND_RECORD || thread->step > BIND_BOUND)
        return false;
    if (broken(BOUND_BEFORE_ENTRY)) /* then the batch is below `bound` before it has its slot */
        return thread->step <= BIND_ENTRY || thread->step == BIND_BOUND;
    return thread->batch >= s->bound;
}

/* How often a slot counts as free: on the list, on the stack, or on its way from or to them. */
static unsigned free_places(const struct state *s, unsigned slot)
{
    unsigned places = 0;
    for (unsigned place = 0; place < s->free_count; place++)
        places += s->free_slots[place] == slot;
    for (uint8_t at = s->released, left = SLOTS; at != NO_SLOT && left; at = s->slot[at].next, left--)
        places += at == slot;
    for (unsigned number = 0; number < THREADS; number++) {
        const struct thread *thread = &s->thread[number];
        bool moves = thread->step == DROP_PUSH || is_being_bound(s, thread);
        places += moves && thread->slot == slot && s->slot[slot].state == FREE;
    }
    return places;
}

/* Under the lock, and in rf_take, a slot changes its state in steps. */
static bool is_settled(const struct state *s)
{
    bool settled = !s->lock;
    for (unsigned number = CONSUMER_0; number <= CONSUMER_1; number++)
        settled &= s->thread[number].step < TAKE_CELL || s->thread[number].step > TAKE_HEAD;
    return settled;
}

static void check_slots(const struct state *s)
{
    if (broken(LATE_SLOT_CHOICE))
        return; /* without the rule it is lawful that a batch has no slot: see what comes of it */
    unsigned bound[SLOTS] = {0}, draining = 0;
    for (unsigned batch = s->head; batch < s->bound; batch++)
        if (entry_of(s, batch).slot != NO_SLOT)
            bound[entry_of(s, batch).slot]++;
    for (unsigned slot = 0; slot < configuration->slots; slot++) {
        draining += s->slot[slot].state == DRAINING;
        if (bound[slot] > 1)
            wrong("two batches have one slot");
        if ((s->slot[slot].state == FREE) != free_places(s, slot))
            wrong("a slot is free and not to be found, or not free and yet given away");
        if (is_settled(s) && (s->slot[slot].state == BOUND) != bound[slot])
            wrong("a slot is bound without a batch, or a batch is bound to a slot that is not");
    }
    if (s->head > s->bound || s->bound - s->head > configuration->slots)
        wrong("more batches are bound than there are slots");
    if (!s->lock && draining != s->draining)
        wrong("the count of draining slots is not right");
}

static void check_claims(const struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++) {
        const struct worker *worker = &s->worker[number];
        if (!worker->claimed)
            continue;
        const struct cell *cell = &s->slot[worker->slot].cell[worker->cell];
        if (cell->state != CLAIMED || cell->owner != number || cell->batch != worker->batch)
            wrong("a ticket was taken from a worker that lives");
        else if (s->slot[worker->slot].state == FREE || s->slot[worker->slot].state == HELD)
            wrong("a worker is in a slot that is free or held");
    }
}

void check_state(const struct state *s)
{
    if (s->consumer_dead)
        return; /* what only the consumer knows is gone with it */
    check_slots(s);
    check_claims(s);
}

/* ---- where none can go on but by the user's doing, a death or a suspect's recovery ---- */

static bool has_available(const struct state *s)
{
    for (unsigned batch = s->head; batch < s->bound; batch++) {
        struct entry entry = entry_of(s, batch);
        for (unsigned cell = 0; cell < entry.tickets; cell++)
            if (s->slot[entry.slot].cell[cell].state == AVAIL)
                return true;
    }
    return false;
}

static bool has_worker(const struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        if (is_alive(&s->worker[number]) && s->worker[number].step != STARTING && !s->worker[number].frozen)
            return true;
    return false;
}

static bool has_frozen(const struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        if (s->worker[number].frozen)
            return true;
    return false;
}

/* Whether a worker waits for rows from elsewhere, which may never come. */
static bool awaits_rows(const struct state *s, const struct worker *worker)
{
    return worker->step == AWAY_ASLEEP && worker->batch >= s->cancel_upto;
}

static bool has_away(const struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        if (awaits_rows(s, &s->worker[number]))
            return true;
    return false;
}

static void check_workers_at_rest(const struct state *s)
{
    bool watched = !s->stop && !s->consumer_dead && s->thread[WATCHER].step != OVER;
    unsigned asleep = 0;
    for (unsigned number = 0; number < configuration->workers; number++) {
        const struct worker *worker = &s->worker[number];
        if (s->consumer_dead && is_alive(worker))
            wrong("a worker outlives the consumer");
        else if (worker->step == STARTING)
            continue;
        else if (s->stop && is_alive(worker) && !worker->frozen)
            wrong("a worker sleeps through the stop");
        else if (watched && worker->step == DEAD)
            wrong("a dead worker is not replaced");
        else if (worker->step == AWAY_ASLEEP && !awaits_rows(s, worker) && !worker->frozen)
            wrong("a worker holds a ticket that was broken off");
        else if (is_alive(worker) && !is_asleep(worker) && !worker->frozen && worker->step != AWAY_ASLEEP)
            wrong("a worker hangs");
        asleep += is_asleep(worker);
    }
    bool allowed = s->pace && asleep < crew(); /* then one awake is enough */
    if (!s->consumer_dead && asleep && !allowed && has_available(s))
        wrong("a worker sleeps while a ticket is AVAIL");
}

/* Whether no slot can come back but by the user's doing or a suspect's end. */
static bool is_starved(const struct state *s)
{
    bool starved = true;
    for (unsigned slot = 0; slot < configuration->slots; slot++) {
        bool claimed = false;
        for (unsigned cell = 0; cell < CELLS; cell++)
            claimed |= s->slot[slot].cell[cell].state == CLAIMED;
        bool kept = s->slot[slot].state == DRAINING && claimed;
        starved &= s->slot[slot].state == HELD || (has_frozen(s) && kept);
    }
    return starved;
}

/* The legal ends of a sleep: SlotsHeldError, and StallError where a worker stands still. */
static bool may_sleep(const struct state *s, const struct thread *thread)
{
    if (is_starved(s))
        return thread->held || has_frozen(s);
    if (!has_worker(s))
        return true;
    return has_suspect(s) || has_away(s);
}

static void check_consumers_at_rest(const struct state *s)
{
    for (unsigned number = CONSUMER_0; number <= CONSUMER_1; number++) {
        const struct thread *thread = &s->thread[number];
        if (thread->step == IDLE || thread->step == OVER)
            continue;
        if (thread->step != REST_ASLEEP)
            wrong("a consumer thread hangs");
        else if (s->stop || s->alarm)
            wrong("the consumer sleeps through a stop or an alarm");
        else if (!may_sleep(s, thread))
            wrong("the consumer sleeps for ever");
    }
}

void check_rest(const struct state *s)
{
    check_workers_at_rest(s);
    if (s->consumer_dead)
        return;
    check_consumers_at_rest(s);
    for (unsigned number = RELEASER_0; number <= RELEASER_1; number++)
        if (s->thread[number].step != IDLE)
            wrong("a release hangs");
    if (s->thread[WATCHER].step != IDLE && s->thread[WATCHER].step != OVER)
        wrong("the watcher hangs");
    if (s->lock)
        wrong("the binder's lock is never given back");
    else if (s->released != NO_SLOT && !broken(BUSY_RELEASE_LOST))
        wrong("a released slot is left lying");
}
