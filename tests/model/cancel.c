/* A consumer thread that breaks an epoch off (rf_cancel), or gives a suspect worker up. */
#include "model.h"

/* ---- breaking off ---- */

/* `flag`: not a break, but the batches of a suspect worker are to be filled anew. */
static void cancel_plan(struct state *s, struct thread *thread)
{
    if (thread->flag)
        s->plan_read = s->expected;
    else if (!broken(BREAK_KEEPS_PLAN))
        s->plan_read = s->plan_write;
    thread->then = thread->flag ? LOOK_BOUND : BREAK_DONE;
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

static void break_done(struct state *s, struct thread *thread)
{
    end_epoch(s);
    go_idle(s, thread);
}

/* ---- quarantine of one batch ---- */

static void fence_slot(struct state *s, struct thread *thread)
{
    for (unsigned number = 0; number < configuration->workers; number++) {
        const struct worker *worker = &s->worker[number];
        struct slot *slot = &s->slot[worker->slot];
        if (!worker->frozen || !worker->claimed || slot->state != BOUND)
            continue;
        slot->state = QUARANTINED;
        s->homeless = slot->batch;
        s->homeless_plan = slot->plan;
        s->slot_of[place_of(slot->batch)] = (struct entry){.slot = NO_SLOT};
        thread->slot = worker->slot;
        thread->cell = 0;
        thread->step = FENCE_SWEEP;
        return;
    }
    thread->then = LOOK_BOUND;
    thread->step = BIND_COLLECT;
}

static void fence_sweep(struct state *s, struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    if (slot->cell[thread->cell].state == AVAIL)
        finish_cell(&slot->cell[thread->cell], CANCELLED);
    if (++thread->cell < tickets_of(slot->plan))
        return;
    thread->slot = thread->cell = 0;
    thread->then = LOOK_BOUND;
    thread->step = BIND_COLLECT;
}

/* ---- a step ---- */

static bool take_lock(struct state *s, struct thread *thread, enum thread_step next)
{
    if (s->lock && !broken(BREAK_WITHOUT_LOCK))
        return false;
    s->lock |= !broken(BREAK_WITHOUT_LOCK);
    thread->step = (uint8_t)next;
    return true;
}

static bool enter_break(struct state *s, struct thread *thread)
{
    if (!enter_loader(s))
        return false;
    thread->step = CANCEL_LOCK;
    if (s->epoch == configuration->epochs || !s->planned)
        go_idle(s, thread);
    else if (!s->waiting)
        thread->step = BREAK_DONE;
    return true;
}

enum outcome cancel_step(struct state *s, struct thread *thread)
{
    switch (thread->step) {
    case BREAK_LOCK: return enter_break(s, thread) ? STEPPED : NO_MORE;
    case CANCEL_LOCK: return take_lock(s, thread, CANCEL_UPTO) ? STEPPED : NO_MORE;
    case CANCEL_UPTO:
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
    case BREAK_DONE: break_done(s, thread); break;
    case FENCE_LOCK: return take_lock(s, thread, FENCE_SLOT) ? STEPPED : NO_MORE;
    case FENCE_SLOT: fence_slot(s, thread); break;
    default: fence_sweep(s, thread); /* FENCE_SWEEP */
    }
    return STEPPED;
}
