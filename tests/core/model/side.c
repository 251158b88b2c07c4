/* The other threads of the consumer process: releasers drop views, the watcher reaps the dead, the closer stops. */
#include "model.h"


#define T (&s->thread[number])

static void go_wake_consumer(struct thread *thread, enum thread_step then)
{
    thread->then = (uint8_t)then;
    thread->step = NEWS_BUMP;
}

/* ---- releasing ---- */

static void drop_count(struct state *s, struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    bool last = --slot->count == 0;
    if (last || broken(DROP_WITHOUT_COUNT))
        thread->step = DROP_STATE;
    else
        *thread = (struct thread){.step = IDLE};
}

static void drop_state(struct state *s, struct thread *thread)
{
    s->slot[thread->slot].state = FREE;
    thread->top = s->released;
    thread->step = DROP_PUSH;
}

/* R: pairs with the exchange of BIND_COLLECT. */
static void drop_push(struct state *s, struct thread *thread)
{
    if (s->released != thread->top) {
        thread->top = s->released;
        return;
    }
    s->slot[thread->slot].next = thread->top;
    s->released = thread->slot;
    *thread = (struct thread){0};
    if (broken(BUMP_BEFORE_BIND))
        go_wake_consumer(thread, DROP_NEWS);
    else
        go_bind(thread, DROP_NEWS);
}

/* After the attempt to bind, also when the lock was busy. */
static void drop_news(struct thread *thread)
{
    *thread = (struct thread){.step = IDLE};
    if (broken(BUMP_BEFORE_BIND))
        go_bind(thread, IDLE);
    else
        go_wake_consumer(thread, IDLE);
}

/* ---- reaping ---- */

static bool is_proven_dead(const struct worker *worker)
{
    return worker->step == DEAD || (broken(REAP_SUSPECTS) && worker->frozen);
}

/* Choice: which of the dead. Once the ring stops, the watcher rests. */
static enum outcome watch(struct state *s, unsigned number, unsigned choice)
{
    if (s->stop)
        return NO_MORE;
    for (unsigned worker = 0; worker < configuration->workers; worker++)
        if (is_proven_dead(&s->worker[worker]) && choice-- == 0) {
            T->worker = (uint8_t)worker;
            T->step = broken(RESPAWN_BEFORE_REAP) ? REAP_RESPAWN : REAP_LOCK;
            return STEPPED;
        }
    return NO_MORE;
}

/* All that the dead have claimed is CLAIMED still, so that one look finds it. */
static void find_claim(struct state *s, struct thread *thread)
{
    thread->step = REAP_FORGET;
    for (unsigned slot = 0; slot < configuration->slots; slot++)
        for (unsigned cell = 0; cell < CELLS && s->slot[slot].state != HELD; cell++) {
            const struct cell *place = &s->slot[slot].cell[cell];
            if (place->state != CLAIMED || place->owner != thread->worker)
                continue;
            thread->slot = (uint8_t)slot;
            thread->cell = (uint8_t)cell;
            thread->step = REAP_BACK;
        }
}

static void blame_row(const struct line *line, struct slot *slot, unsigned number)
{
    const struct cell *cell = &slot->cell[number];
    if (!line->row || line->batch != cell->batch || line->cell != number || line->attempt != cell->attempt)
        return;
    unsigned row = line->row - 1u, first = number * rows_per_ticket(slot->plan);
    slot->deaths[row]++;
    if (slot->deaths[row] < configuration->max_attempts || broken(MAX_ATTEMPTS_IGNORED))
        return;
    check_write(slot);
    slot->mark[row] = ROW_KILLED;
    for (unsigned other = first; other < first + rows_of_ticket(slot->plan, number); other++)
        if (broken(TICKET_GIVEN_UP))
            slot->mark[other] = ROW_KILLED;
}

static void take_back(struct state *s, struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    struct cell *cell = &slot->cell[thread->cell];
    blame_row(&s->worker[thread->worker].line, slot, thread->cell);
    check_blame(slot, thread->cell);
    bool cancelled = cell->batch < s->cancel_upto && !broken(REAPER_IGNORES_CANCEL);
    if (cell->batch < s->cancel_upto && !cancelled)
        wrong("a cancelled ticket is AVAIL again");
    if (cancelled) {
        finish_cell(cell, CANCELLED);
    } else {
        cell->state = AVAIL;
        cell->owner = NO_OWNER;
        cell->attempt += !broken(ATTEMPT_KEPT);
    }
    thread->slot = thread->cell = 0;
    thread->step = REAP_FORGET;
}

static void forget(struct state *s, struct thread *thread)
{
    s->worker[thread->worker].line = (struct line){0};
    s->sleepers &= (uint8_t)~(1u << thread->worker);
    thread->step = REAP_SEQ;
}

static void bump_and_unlock(struct state *s, struct thread *thread)
{
    bump_reaps(s);
    thread->tickets = 0;
    thread->then = REAP_WAKE;
    thread->step = BIND_COLLECT;
}

void fill_up(struct state *s)
{
    unsigned workers = 0;
    for (unsigned number = 0; number < configuration->workers; number++)
        workers += s->worker[number].step != ABSENT && !s->worker[number].fenced;
    for (unsigned number = 0; number < configuration->workers && workers < crew(); number++)
        if (s->worker[number].step == ABSENT) {
            s->worker[number] = (struct worker){.step = configuration->slow_starts ? STARTING : WAIT_STOP, .reaped = 1};
            workers++;
        }
}

static void respawn(struct state *s, struct thread *thread)
{
    struct worker *worker = &s->worker[thread->worker];
    if (worker->step == DEAD)
        *worker = (struct worker){.step = ABSENT};
    fill_up(s);
    thread->step = REAP_LOCK;
    if (!broken(RESPAWN_BEFORE_REAP))
        *thread = (struct thread){.step = IDLE};
}

static void reaped(struct state *s, struct thread *thread)
{
    s->reaps += configuration->alarm_after > 0;
    uint8_t worker = thread->worker;
    *thread = (struct thread){.worker = worker, .step = REAP_RESPAWN};
    if (broken(RESPAWN_BEFORE_REAP) || broken(REAP_SUSPECTS))
        *thread = (struct thread){.step = IDLE};
    if (configuration->alarm_after && s->reaps >= configuration->alarm_after)
        *thread = (struct thread){.step = REAP_ALARM};
}

static void alarm(struct state *s, struct thread *thread)
{
    s->alarm = 1;
    *thread = (struct thread){.step = OVER};
    if (!broken(ALARM_WAKES_NONE))
        go_wake_consumer(thread, OVER);
}

static void stop_workers(struct thread *thread)
{
    go_wake_workers(thread, ALL, STOP_NEWS);
    if (broken(STOP_WAKES_NO_WORKERS))
        thread->step = STOP_NEWS;
}

/* ---- a step ---- */

enum outcome side_step(struct state *s, unsigned number, unsigned choice)
{
    if (T->step == IDLE && number == WATCHER)
        return watch(s, number, choice);
    if (choice)
        return NO_MORE;
    switch (T->step) {
    case DROP_COUNT: drop_count(s, T); break;
    case DROP_STATE: drop_state(s, T); break;
    case DROP_PUSH: drop_push(s, T); break;
    case REAP_LOCK:
        if (s->lock)
            return NO_MORE;
        s->lock = 1;
        T->step = REAP_FIND;
        break;
    case REAP_FIND: find_claim(s, T); break;
    case REAP_BACK: take_back(s, T); break;
    case REAP_FORGET: forget(s, T); break;
    case REAP_SEQ: bump_and_unlock(s, T); break;
    case REAP_RESPAWN: respawn(s, T); break;
    case REAP_ALARM: alarm(s, T); break;
    case STOP_FLAG:
        s->stop = 1;
        stop_workers(T);
        if (configuration->away && !broken(STOP_TELLS_NO_HOLDER))
            T->step = TELL_BUMP;
        break;
    case TELL_BUMP:
        bump_breaks(s);
        T->step = TELL_WAKE;
        break;
    case TELL_WAKE:
        wake_holders(s);
        stop_workers(T);
        break;
    default: return NO_MORE; /* idle or over */
    }
    return STEPPED;
}

/* What comes after a call within a call: no step of its own. */
void settle(struct state *s, unsigned number)
{
    if (T->step == DROP_NEWS)
        drop_news(T);
    if (T->step == REAP_WAKE && broken(REAPER_WAKES_NO_WORKERS))
        T->step = REAP_NEWS;
    if (T->step == REAP_WAKE)
        go_wake_workers(T, ALL, REAP_NEWS);
    if (T->step == REAP_NEWS && broken(REAPER_WAKES_NO_CONSUMER))
        T->step = REAP_DONE;
    if (T->step == REAP_NEWS)
        go_wake_consumer(T, REAP_DONE);
    if (T->step == REAP_DONE)
        reaped(s, T);
    if (T->step == STOP_NEWS && broken(STOP_WAKES_NO_CONSUMER))
        T->step = OVER;
    if (T->step == STOP_NEWS)
        go_wake_consumer(T, OVER);
    if (T->step == OVER)
        *T = (struct thread){.step = OVER};
    if (T->step == IDLE)
        *T = (struct thread){.step = IDLE};
}
