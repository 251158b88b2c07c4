/* A consumer thread in next(): it plans, looks, sleeps and takes. */
#include "model.h"

#include <stddef.h>

#define T (&s->thread[number])

void end_epoch(struct state *s)
{
    s->epoch++;
    s->planned = s->waiting = s->beyond = 0;
    s->expected = s->plan_write;
}

void go_idle(struct state *s, struct thread *thread)
{
    *thread = (struct thread){.step = IDLE};
    s->take_lock = 0;
}

bool lock_taking(struct state *s)
{
    if (s->take_lock && !broken(TAKE_UNLOCKED))
        return false;
    s->take_lock = 1;
    return true;
}

void withdraw(struct state *s)
{
    s->asleep--;
    if (!s->asleep || broken(WAKER_WITHDRAWS_FOR_ALL))
        s->consumer_wait = WAIT_NONE;
}

/* Look from the beginning, with the lock. */
static void look_anew(struct thread *thread)
{
    *thread = (struct thread){.step = LOOK_BOUND, .epoch_id = thread->epoch_id};
}

/* Leave rf_wait: a thread that has waited wakes those that still wait. What that one has announced may be final, for
 * only the last that was announced is told of. */
static void leave_wait(struct state *s, struct thread *thread, enum thread_step then)
{
    bool wakes = thread->epoch_id && s->asleep && !broken(LEAVER_WAKES_NONE);
    *thread = (struct thread){.step = (uint8_t)then};
    if (wakes) {
        thread->step = NEWS_BUMP;
        thread->then = (uint8_t)then;
    }
}

static bool has_waited(const struct thread *thread) { return thread->epoch_id; }

/* ---- planning ---- */

static uint8_t *planned_next(struct state *s)
{
    if (s->planned < configuration->batches)
        return &s->planned;
    bool crosses = configuration->crosses && s->epoch + 1 < configuration->epochs;
    return crosses && s->beyond < configuration->batches ? &s->beyond : NULL;
}

/* `flag`: this call has planned already, and goes on as far ahead as it may. */
static void plan(struct state *s, struct thread *thread)
{
    unsigned ahead = thread->flag ? configuration->ahead : configuration->slots;
    bool room = !configuration->window || s->plan_write - s->plan_bound < configuration->window;
    uint8_t *planned = planned_next(s);
    if (planned && s->waiting < ahead && room) {
        ++*planned;
        s->waiting++;
        s->plan_write++;
        thread->flag = 1;
    } else if (thread->flag) {
        thread->flag = 0;
        go_bind(thread, LOOK_BOUND);
    } else {
        thread->step = LOOK_BOUND;
    }
}

/* ---- looking ---- */

/* Begin at the last cell: `cell` counts those that are left. */
static void begin_unfinished(const struct state *s, struct thread *thread, enum thread_step step)
{
    struct entry entry = entry_of(s, s->head);
    thread->slot = entry.slot;
    thread->cell = entry.tickets;
    thread->step = (uint8_t)step;
}

enum looked { UNFINISHED, GOES_ON, ALL_FINAL };

static enum looked look_at_one(const struct state *s, struct thread *thread)
{
    if (!is_final(&s->slot[thread->slot].cell[thread->cell - 1u]))
        return UNFINISHED;
    thread->cell--;
    return thread->cell > 0 && !broken(TAKE_BY_LAST_CELL) ? GOES_ON : ALL_FINAL;
}

static void look_at_cell(struct state *s, struct thread *thread)
{
    enum looked looked = look_at_one(s, thread);
    if (looked == GOES_ON)
        return;
    thread->cell = 0;
    thread->step = looked == UNFINISHED ? LOOK_STOP : TAKE_CELL;
    if (looked != UNFINISHED && has_waited(thread)) {
        s->take_lock = 0;
        leave_wait(s, thread, NEXT_LOCK);
    }
}

static void look_again(struct state *s, struct thread *thread)
{
    if (is_housed(s))
        begin_unfinished(s, thread, LOOK_CELL);
    else
        thread->step = LOOK_STOP;
}

/* DRY: the epoch is over. */
static void answer_dry(struct state *s, struct thread *thread)
{
    if (s->waiting != s->beyond || s->planned < configuration->batches)
        wrong("an epoch ends before its last batch was taken");
    s->epoch++;
    s->planned = s->beyond;
    s->beyond = 0;
    s->take_lock = 0;
    leave_wait(s, thread, IDLE);
}

/* `waiting` is the consumers' own count of what is planned and not taken. What is planned and not bound would not do:
 * another thread takes a batch off the plan before, or after, it stores `bound`. */
static void look_last(struct state *s, struct thread *thread)
{
    bool dry = broken(DRY_BY_PLAN) ? thread->flag : !s->waiting;
    thread->flag = 0;
    if (is_at_border(s))
        answer_dry(s, thread);
    else if (is_bound(s))
        thread->step = REST_BOUND; /* PENDING */
    else if (broken(DRY_BY_ROOM))
        thread->step = LOOK_ROOM;
    else if (dry)
        answer_dry(s, thread);
    else
        thread->step = LOOK_HELD;
}

static void look_at_room(struct state *s, struct thread *thread)
{
    bool dry = s->plan_read == s->plan_write;
    thread->flag = dry && broken(DRY_BY_PLAN);
    thread->step = broken(DRY_BY_PLAN) ? LOOK_LAST : LOOK_HELD;
    if (dry && broken(DRY_BY_ROOM))
        answer_dry(s, thread);
}

static void look_at_holds(const struct state *s, struct thread *thread)
{
    thread->held = 1;
    for (unsigned slot = 0; slot < configuration->slots; slot++)
        thread->held &= s->slot[slot].state == HELD;
    thread->step = REST_BOUND;
}

/* ---- sleeping ---- */

/* The order in which the consumer lies down: what follows `step`. */
static uint8_t rest_order(enum thread_step step)
{
    static const uint8_t ordinary[] = {REST_BOUND, REST_FLAG, REST_SEQ,    REST_AVAIL,
                                       REST_ENDS,  REST_NEWS, REST_UNLOCK, REST_FUTEX};
    static const uint8_t flag_late[] = {REST_BOUND, REST_SEQ,  REST_AVAIL,  REST_ENDS,
                                        REST_NEWS,  REST_FLAG, REST_UNLOCK, REST_FUTEX};
    static const uint8_t seq_late[] = {REST_BOUND, REST_FLAG, REST_AVAIL,  REST_ENDS,
                                       REST_NEWS,  REST_SEQ,  REST_UNLOCK, REST_FUTEX};
    const uint8_t *order = broken(FLAG_AFTER_LOOK)          ? flag_late
                           : broken(CONSUMER_OBSERVES_LATE) ? seq_late
                                                            : ordinary;
    while (*order != step)
        order++;
    return order[1];
}

static void begin_rest(const struct state *s, struct thread *thread)
{
    thread->slot = thread->cell = 0;
    if (is_housed(s))
        begin_unfinished(s, thread, REST_CELL);
    else
        thread->step = rest_order(REST_BOUND);
}

/* From here on `cell` is 0 where the consumer waits for a slot, else 1 + that of the cell it waits for. */
static void rest_at_cell(struct state *s, struct thread *thread)
{
    enum looked looked = look_at_one(s, thread);
    if (looked == UNFINISHED)
        thread->step = rest_order(REST_BOUND);
    else if (looked == ALL_FINAL)
        look_anew(thread);
}

static void raise_flag(struct state *s, struct thread *thread)
{
    bool free = thread->cell == 0;
    s->asleep++;
    thread->epoch_id = (uint8_t)(s->epoch + 1);
    s->consumer_wait = free ? WAIT_FREE : (uint8_t)(ticket_of(s->head, thread->cell - 1u) + 1);
    thread->step = rest_order(REST_FLAG);
}

static void observe(struct state *s, unsigned number)
{
    s->armed |= (uint8_t)(1u << number);
    s->changed &= (uint8_t)~(1u << number);
    T->step = rest_order(REST_SEQ);
    if (T->step == REST_AVAIL && !T->cell)
        T->step = rest_order(REST_AVAIL);
}

static unsigned count_unclaimed(const struct state *s)
{
    unsigned unclaimed = 0;
    for (unsigned batch = s->head; batch < s->bound; batch++) {
        struct entry entry = entry_of(s, (uint8_t)batch);
        for (unsigned cell = 0; cell < entry.tickets; cell++)
            unclaimed += s->slot[entry.slot].cell[cell].state == AVAIL;
    }
    return unclaimed;
}

/* While tickets are quick none may have been woken for it, and one that is awake may be long in coming. */
static void wake_for_available(const struct state *s, struct thread *thread)
{
    thread->step = rest_order(REST_AVAIL);
    bool available = thread->cell && s->slot[thread->slot].cell[thread->cell - 1u].state == AVAIL;
    if (available && !broken(CONSUMER_WAKES_NONE))
        go_wake_workers(thread, (uint8_t)(count_unclaimed(s) | (broken(CONSUMER_TRUSTS_THE_AWAKE) ? 0 : HOWEVER_BRISK)),
                        (enum thread_step)thread->step);
}

static void look_at_ends(const struct state *s, struct thread *thread)
{
    thread->step = s->alarm || s->stop ? REST_STAYS : rest_order(REST_ENDS);
}

static void look_for_news(struct state *s, struct thread *thread)
{
    if (thread->cell == 0 && broken(NO_LAST_BIND))
        thread->step = REST_NEWS_BOUND;
    else if (thread->cell == 0)
        go_bind(thread, REST_NEWS_BOUND);
    else if (is_final(&s->slot[thread->slot].cell[thread->cell - 1u]))
        thread->step = REST_STAYS;
    else
        thread->step = rest_order(REST_NEWS);
}

static void fall_asleep(struct state *s, unsigned number)
{
    bool differs = s->changed >> number & 1 && !broken(CONSUMER_SLEEPS_UNOBSERVED);
    s->armed &= (uint8_t)~(1u << number);
    s->changed &= (uint8_t)~(1u << number);
    T->step = differs ? REST_OVER : REST_ASLEEP;
}

/* Whether this thread's epoch is over: another has broken it off meanwhile, or taken its last batch. */
static bool is_stale(const struct state *s, const struct thread *thread) { return thread->epoch_id != s->epoch + 1; }

static void stay(struct state *s, unsigned number)
{
    s->armed &= (uint8_t)~(1u << number);
    s->changed &= (uint8_t)~(1u << number);
    withdraw(s);
    if (!is_stale(s, T)) {
        look_anew(T);
        return;
    }
    s->take_lock = 0;
    leave_wait(s, T, IDLE);
}

static bool rest_over(struct state *s, unsigned number)
{
    if (!broken(SLEEP_WITH_LOCK) && !lock_taking(s))
        return false;
    stay(s, number);
    return true;
}

/* ---- taking ---- */

static void take_cell(struct state *s, struct thread *thread)
{
    thread->slot = entry_of(s, s->head).slot;
    struct slot *slot = &s->slot[thread->slot];
    if (thread->cell == 0)
        check_taken(s, slot);
    empty_cell(&slot->cell[thread->cell]);
    if (++thread->cell == tickets_of(slot->plan))
        thread->step = TAKE_HOLD;
}

static void take_head(struct state *s, struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    slot->views = (uint8_t)(1 + configuration->exports);
    slot->indices = 0;
    forget_rows(slot);
    s->head++;
    s->expected++;
    s->waiting--;
    go_idle(s, thread);
}

/* ---- a step ---- */

static bool enter_next(struct state *s, struct thread *thread)
{
    if (!lock_taking(s))
        return false;
    thread->step = NEXT_PLAN;
    if (s->epoch == configuration->epochs)
        go_idle(s, thread);
    return true;
}

static void ring_has_ended(struct state *s, struct thread *thread)
{
    s->take_lock = 0;
    leave_wait(s, thread, OVER);
}

enum outcome consumer_step(struct state *s, unsigned number)
{
    if (T->step >= BREAK_LOCK && T->step <= FENCE_DONE)
        return cancel_step(s, T);
    switch (T->step) {
    case NEXT_LOCK: return enter_next(s, T) ? STEPPED : NO_MORE;
    case NEXT_PLAN: plan(s, T); break;
    case LOOK_BOUND:
        if (is_at_border(s))
            T->step = LOOK_STOP;
        else if (is_housed(s))
            begin_unfinished(s, T, LOOK_CELL);
        else
            go_bind(T, LOOK_AGAIN);
        break;
    case LOOK_AGAIN: look_again(s, T); break;
    case LOOK_CELL: look_at_cell(s, T); break;
    case LOOK_STOP:
        T->slot = 0;
        T->step = LOOK_ALARM;
        if (s->stop)
            ring_has_ended(s, T);
        break;
    case LOOK_ALARM:
        T->step = broken(DRY_BY_PLAN) ? LOOK_ROOM : LOOK_LAST;
        if (s->alarm)
            ring_has_ended(s, T);
        break;
    case LOOK_ROOM: look_at_room(s, T); break;
    case LOOK_LAST: look_last(s, T); break;
    case LOOK_HELD: look_at_holds(s, T); break;
    case REST_BOUND: begin_rest(s, T); break;
    case REST_CELL: rest_at_cell(s, T); break;
    case REST_FLAG: raise_flag(s, T); break;
    case REST_SEQ: observe(s, number); break;
    case REST_AVAIL: wake_for_available(s, T); break;
    case REST_ENDS: look_at_ends(s, T); break;
    case REST_NEWS: look_for_news(s, T); break;
    case REST_NEWS_BOUND:
        T->step = is_housed(s) ? REST_STAYS : rest_order(REST_NEWS);
        break;
    case REST_FUTEX: fall_asleep(s, number); break;
    case REST_STAYS: stay(s, number); break;
    case REST_UNLOCK:
        s->take_lock = broken(SLEEP_WITH_LOCK);
        T->step = rest_order(REST_UNLOCK);
        break;
    case REST_OVER: return rest_over(s, number) ? STEPPED : NO_MORE;
    case TAKE_CELL: take_cell(s, T); break;
    case TAKE_HOLD:
        s->slot[T->slot].count = 1;
        s->slot[T->slot].state = HELD;
        T->step = configuration->exports ? TAKE_EXPORT : TAKE_HEAD;
        break;
    case TAKE_EXPORT:
        s->slot[T->slot].count += configuration->exports;
        T->step = TAKE_HEAD;
        break;
    case TAKE_HEAD: take_head(s, T); break;
    default: return NO_MORE; /* idle, asleep or over */
    }
    return STEPPED;
}
