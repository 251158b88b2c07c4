/* A consumer thread that breaks an epoch off (rf_cancel), or fences a worker (rf_requeue). */
#include "model.h"

/* ---- breaking off ---- */

static void drop_plan(struct state *s)
{
    s->plan_read = s->plan_bound = s->plan_write;
    s->saved = 0;
    for (unsigned slot = 0; slot < configuration->slots; slot++)
        s->slot[slot].indices = 0;
}

/* `flag`: not a break, but a fence: what is bound is to be filled anew. */
static void cancel_plan(struct state *s, struct thread *thread)
{
    if (thread->flag && !broken(FENCE_KEEPS_PLAN))
        s->plan_read = s->expected;
    else if (!thread->flag && !broken(BREAK_KEEPS_PLAN))
        drop_plan(s);
    thread->then = thread->flag ? FENCE_DONE : BREAK_DONE;
    thread->flag = thread->tickets = 0;
    thread->step = broken(BREAK_WITHOUT_LOCK) ? BIND_TRY : BIND_COLLECT;
}

static void cancel_slots(struct state *s, struct thread *thread)
{
    for (unsigned batch = s->head; batch < s->bound; batch++) {
        struct entry entry = entry_of(s, batch);
        if (entry.slot == NO_SLOT)
            continue;
        s->slot[entry.slot].state = DRAINING;
        s->draining++;
        if (broken(QUARANTINE_TOO_SHORT) && thread->flag)
            for (unsigned cell = 0; cell < tickets_of(s->slot[entry.slot].plan); cell++)
                finish_cell(&s->slot[entry.slot].cell[cell], CANCELLED);
    }
    s->homeless = NO_BATCH;
    s->homeless_plan = 0;
    thread->step = CANCEL_HEAD;
}

static void tell_early(struct state *s)
{
    bump_breaks(s);
    wake_holders(s);
}

static void wake_consumers_that_wait(struct thread *thread)
{
    bool waits = thread->flag;
    *thread = (struct thread){.step = thread->then, .then = thread->then};
    if (waits)
        thread->step = NEWS_BUMP;
    else
        thread->then = 0;
}

/* A sleeper has announced a ticket that is cancelled; and workers hold some. */
static void wake_sleepers(const struct state *s, struct thread *thread, enum thread_step then)
{
    bool is_fence = thread->step == FENCE_DONE, waits = s->asleep && !broken(BREAK_WAKES_NONE);
    bool silent = broken(is_fence ? FENCE_TELLS_NO_HOLDER : BREAK_TELLS_NO_HOLDER) || broken(BREAK_TELLS_EARLY);
    *thread = (struct thread){.step = TELL_BUMP, .then = (uint8_t)then, .flag = waits};
    if (!configuration->away || silent)
        wake_consumers_that_wait(thread);
}

static void break_done(struct state *s, struct thread *thread)
{
    end_epoch(s);
    go_idle(s, thread);
    thread->step = BREAK_DONE;
    wake_sleepers(s, thread, IDLE);
}

/* ---- a step ---- */

static bool lock_binder(struct state *s, struct thread *thread, enum thread_step next)
{
    if (s->lock && !broken(BREAK_WITHOUT_LOCK))
        return false;
    s->lock |= !broken(BREAK_WITHOUT_LOCK);
    thread->step = (uint8_t)next;
    return true;
}

static bool enter_break(struct state *s, struct thread *thread)
{
    if (!lock_taking(s))
        return false;
    thread->step = CANCEL_LOCK;
    if (s->epoch == configuration->epochs || !s->planned)
        go_idle(s, thread);
    else if (!s->waiting)
        thread->step = BREAK_DONE;
    return true;
}

/* The fence, of a thread that has slept in vain for timeout_s. */
static bool enter_fence(struct state *s, struct thread *thread)
{
    if (!lock_taking(s))
        return false;
    withdraw(s);
    *thread = (struct thread){.step = CANCEL_LOCK, .flag = 1, .epoch_id = thread->epoch_id};
    return true;
}

enum outcome cancel_step(struct state *s, struct thread *thread)
{
    switch (thread->step) {
    case BREAK_LOCK: return enter_break(s, thread) ? STEPPED : NO_MORE;
    case FENCE_LOCK: return enter_fence(s, thread) ? STEPPED : NO_MORE;
    case CANCEL_LOCK: return lock_binder(s, thread, CANCEL_UPTO) ? STEPPED : NO_MORE;
    case CANCEL_UPTO:
        if (broken(BREAK_TELLS_EARLY) && !thread->tickets++) {
            tell_early(s);
            break;
        }
        thread->tickets = 0;
        s->cancel_upto = s->bound;
        thread->step = CANCEL_SLOTS;
        break;
    case CANCEL_SLOTS: cancel_slots(s, thread); break;
    case CANCEL_HEAD:
        if (!broken(BREAK_KEEPS_HEAD))
            s->head = s->bound;
        thread->step = CANCEL_PLAN;
        break;
    case CANCEL_PLAN: cancel_plan(s, thread); break;
    case TELL_BUMP:
        bump_breaks(s);
        thread->step = TELL_WAKE;
        break;
    case TELL_WAKE:
        if (!broken(BREAK_WAKES_NO_HOLDER))
            wake_holders(s);
        wake_consumers_that_wait(thread);
        break;
    case BREAK_DONE: break_done(s, thread); break;
    default: /* FENCE_DONE */
        fill_up(s);
        s->take_lock = 0;
        wake_sleepers(s, thread, NEXT_LOCK);
    }
    return STEPPED;
}
