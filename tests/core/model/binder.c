/* What every thread of the consumer process does under the binder's lock: rf_bind, rf_unlock; and the two wakes. */
#include "model.h"

#include <string.h>

#define T (&s->thread[number])

/* ---- the words on which others sleep ---- */

void bump_news(struct state *s) { s->changed |= s->armed; }

void bump_work(struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        s->worker[number].changed |= s->worker[number].armed && !s->worker[number].claimed &&
                                     !is_asleep(&s->worker[number]) && is_alive(&s->worker[number]);
    for (unsigned number = 0; number < configuration->workers && !broken(YIELDER_PASSES_ONCE); number++)
        s->worker[number].passed = 0;
}

void bump_reaps(struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        s->worker[number].reaped = is_alive(&s->worker[number]);
}

void bump_breaks(struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        s->worker[number].broke |= s->worker[number].watches && is_alive(&s->worker[number]);
}

void wake_holders(struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++)
        if (s->worker[number].step == AWAY_ASLEEP)
            go_away(&s->worker[number]);
}

/* The subset of `sleepers` with `count` members that is number `choice`; 0 where there are fewer. */
static unsigned subset(unsigned sleepers, unsigned count, unsigned choice)
{
    for (unsigned some = sleepers; some; some = (some - 1) & sleepers)
        if ((unsigned)__builtin_popcount(some) == count && choice-- == 0)
            return some;
    return 0;
}

bool wake_workers(struct state *s, unsigned count, unsigned choice)
{
    unsigned sleepers = 0;
    for (unsigned number = 0; number < configuration->workers; number++)
        sleepers |= (unsigned)is_asleep(&s->worker[number]) << number;
    unsigned all = (unsigned)__builtin_popcount(sleepers);
    if (!all)
        return choice == 0;
    unsigned woken = subset(sleepers, count < all ? count : all, choice);
    for (unsigned number = 0; number < configuration->workers; number++)
        if (woken >> number & 1)
            worker_wakes(s, number);
    return woken;
}

bool wake_consumers(struct state *s, unsigned choice)
{
    unsigned sleepers = 0;
    for (unsigned number = CONSUMER_0; number <= CONSUMER_1; number++)
        sleepers |= (unsigned)(s->thread[number].step == REST_ASLEEP) << number;
    if (!sleepers)
        return choice == 0;
    unsigned all = (unsigned)__builtin_popcount(sleepers);
    unsigned woken = subset(sleepers, broken(NEWS_WAKE_ONE) ? 1 : all, choice);
    for (unsigned number = CONSUMER_0; number <= CONSUMER_1; number++)
        if (woken >> number & 1)
            s->thread[number].step = REST_OVER;
    return woken;
}

/* ---- collecting ---- */

void go_bind(struct thread *thread, enum thread_step then)
{
    thread->tickets = 0;
    thread->then = (uint8_t)then;
    thread->step = BIND_TRY;
}

static void begin_sweep(struct state *s, struct thread *thread, unsigned from)
{
    thread->cell = 0;
    thread->flag = 1; /* drained, as far as we have seen */
    for (thread->slot = (uint8_t)from; thread->slot < configuration->slots; thread->slot++)
        if (s->draining && s->slot[thread->slot].state == DRAINING) {
            thread->step = BIND_SWEEP;
            return;
        }
    thread->slot = thread->flag = 0;
    thread->step = BIND_NEXT;
}

static void push_free(struct state *s, uint8_t slot)
{
    if (s->free_count == configuration->slots)
        wrong("a slot is free twice");
    else
        s->free_slots[s->free_count++] = slot;
}

static void collect_released(struct state *s, struct thread *thread)
{
    while (s->released != NO_SLOT) {
        struct slot *slot = &s->slot[s->released];
        push_free(s, s->released);
        s->released = slot->next;
        slot->next = NO_SLOT;
    }
    begin_sweep(s, thread, 0);
}

static void swept(struct state *s, struct thread *thread, const struct cell *cell)
{
    bool claimed = !is_final(cell);
    if (claimed && !(broken(DRAINED_WHILE_CLAIMED) && cell->state == CLAIMED))
        thread->flag = 0;
    if (++thread->cell < tickets_of(s->slot[thread->slot].plan))
        thread->step = BIND_SWEEP;
    else if (thread->flag)
        thread->step = BIND_DRAINED;
    else
        begin_sweep(s, thread, thread->slot + 1u);
}

/* Load and compare-exchange are one step: where they were two, the loser would begin again. */
static void sweep(struct state *s, struct thread *thread)
{
    struct cell *cell = &s->slot[thread->slot].cell[thread->cell];
    if (cell->state == AVAIL && broken(SWEEP_BY_STORE)) {
        thread->step = BIND_SWEEP_STORE;
        return;
    }
    if (cell->state == AVAIL && !broken(NO_SWEEP))
        finish_cell(cell, CANCELLED);
    swept(s, thread, cell);
}

void forget_rows(struct slot *slot)
{
    slot->batch = slot->plan = 0;
    memset(slot->content, WRONG, sizeof slot->content);
    memset(slot->mark, ROW_OK, sizeof slot->mark);
    memset(slot->died, 0, sizeof slot->died);
    memset(slot->failure, 0, sizeof slot->failure);
    if (!broken(DEATHS_KEPT))
        memset(slot->deaths, 0, sizeof slot->deaths);
}

static void empty_slot(struct state *s, struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    for (unsigned cell = 0; cell < CELLS; cell++)
        empty_cell(&slot->cell[cell]);
    forget_rows(slot);
    slot->state = FREE;
    push_free(s, thread->slot);
    s->draining--;
    begin_sweep(s, thread, thread->slot + 1u);
}

/* ---- binding ---- */

/* The order in which a batch is bound; `then` what follows `step`. */
static uint8_t bind_order(enum thread_step step, bool moves)
{
    static const uint8_t ordinary[] = {BIND_RECORD, BIND_ENTRY, BIND_CELLS, BIND_BOUND, BIND_PLAN, BIND_NEXT};
    static const uint8_t moving[] = {BIND_RECORD, BIND_ENTRY, BIND_CELLS, BIND_MOVED, BIND_NEXT};
    static const uint8_t entry_late[] = {BIND_RECORD, BIND_BOUND, BIND_ENTRY, BIND_CELLS, BIND_PLAN, BIND_NEXT};
    static const uint8_t cells_late[] = {BIND_RECORD, BIND_ENTRY, BIND_BOUND, BIND_CELLS, BIND_PLAN, BIND_NEXT};
    static const uint8_t record_late[] = {BIND_ENTRY, BIND_CELLS, BIND_BOUND, BIND_RECORD, BIND_PLAN, BIND_NEXT};
    static const uint8_t plan_early[] = {BIND_RECORD, BIND_PLAN, BIND_ENTRY, BIND_CELLS, BIND_BOUND, BIND_NEXT};
    const uint8_t *order = moves                        ? moving
                           : broken(BOUND_BEFORE_ENTRY) ? entry_late
                           : broken(BOUND_BEFORE_CELLS) ? cells_late
                           : broken(RECORD_AFTER_CELLS) ? record_late
                           : broken(DRY_BY_ROOM)        ? plan_early
                                                        : ordinary;
    if (step == BIND_NEXT)
        return *order;
    while (*order != step)
        order++;
    return order[1];
}

static void leave_hole(struct state *s)
{
    s->homeless = s->bound; /* the first batch of the plan gets the next free slot, the second one this */
    s->homeless_plan = s->plan_read++;
    s->slot_of[place_of(s->bound++)] = (struct entry){.slot = NO_SLOT};
}

/* choose_slot: the one in which the batch's indices stand, if it is free. */
static uint8_t choose_slot(struct state *s, unsigned plan)
{
    uint8_t *last = &s->free_slots[--s->free_count], slot;
    for (unsigned place = 0; place < s->free_count; place++)
        if (s->slot[s->free_slots[place]].indices == plan + 1) {
            slot = s->free_slots[place];
            s->free_slots[place] = *last;
            *last = slot;
        }
    slot = *last;
    *last = NO_SLOT;
    return slot;
}

/* write_indices, rf_keep_indices: a batch that was bound before has its indices in its old slot, or they are kept. */
static void write_indices(struct state *s, const struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    unsigned plan = thread->plan, others = slot->indices ? slot->indices - 1u : plan;
    bool found = plan >= s->plan_bound || s->saved >> plan & 1;
    for (unsigned number = 0; number < configuration->slots; number++)
        if (s->slot[number].indices == plan + 1) {
            found = true;
            s->slot[number].indices = 0;
        }
    if (!found)
        wrong("a batch is bound again, and its indices are gone");
    if (others > plan && others < s->plan_bound && !broken(FENCE_LOSES_INDICES))
        s->saved |= (uint8_t)(1u << others);
    s->saved &= (uint8_t)~(1u << plan);
    slot->indices = (uint8_t)(plan + 1);
    if (plan >= s->plan_bound)
        s->plan_bound = (uint8_t)(plan + 1); /* before `bound`: a thread that has taken all has room to plan */
}

static void find_batch(struct state *s, struct thread *thread)
{
    bool moves = s->homeless != NO_BATCH && !(broken(LATE_SLOT_CHOICE) && s->plan_read != s->plan_write);
    if (!s->free_count || (!moves && s->plan_read == s->plan_write)) {
        thread->step = BIND_UNLOCK;
        return;
    }
    if (broken(LATE_SLOT_CHOICE) && !moves && s->homeless == NO_BATCH && s->plan_write - s->plan_read > 1)
        leave_hole(s);
    unsigned next = moves ? s->homeless_plan : s->plan_read;
    thread->slot = choose_slot(s, next);
    thread->batch = moves ? s->homeless : s->bound;
    thread->plan = (uint8_t)next;
    thread->flag = moves;
    thread->step = bind_order(BIND_NEXT, moves);
}

static void write_record(struct state *s, const struct thread *thread)
{
    struct slot *slot = &s->slot[thread->slot];
    check_write(slot);
    forget_rows(slot);
    slot->batch = thread->batch;
    slot->plan = thread->plan;
    write_indices(s, thread);
}

static void write_entry(struct state *s, const struct thread *thread)
{
    s->slot[thread->slot].state = BOUND;
    s->slot_of[place_of(thread->batch)] =
        (struct entry){.slot = thread->slot, .tickets = tickets_of(thread->plan)};
}

/* B. All cells in one step: nobody looks at a ticket of a batch that is not below `bound`. */
static void write_cells(struct state *s, struct thread *thread)
{
    for (unsigned cell = 0; cell < tickets_of(thread->plan); cell++)
        s->slot[thread->slot].cell[cell] = (struct cell){.state = AVAIL, .batch = thread->batch, .owner = NO_OWNER};
    thread->tickets += tickets_of(thread->plan);
}

static void end_move(struct state *s)
{
    bump_reaps(s);
    s->homeless = NO_BATCH;
    s->homeless_plan = 0;
}

static void bind_batch(struct state *s, struct thread *thread)
{
    enum thread_step step = thread->step;
    thread->step = bind_order(step, thread->flag);
    switch (step) {
    case BIND_RECORD: write_record(s, thread); break;
    case BIND_ENTRY: write_entry(s, thread); break;
    case BIND_CELLS: write_cells(s, thread); break;
    case BIND_BOUND: s->bound++; break;
    case BIND_PLAN: s->plan_read++; break;
    default: end_move(s); break;
    }
    if (thread->step == BIND_NEXT)
        thread->slot = thread->batch = thread->plan = thread->flag = 0;
}

/* ---- unlocking and waking ---- */

void go_wake_workers(struct thread *thread, uint8_t count, enum thread_step then)
{
    thread->tickets = count;
    thread->then = (uint8_t)then;
    thread->step = broken(WAKE_BEFORE_BUMP) ? WORK_LOOK : WORK_BUMP;
}

static void leave(struct thread *thread)
{
    thread->slot = thread->cell = thread->flag = thread->batch = thread->plan = 0;
    thread->step = thread->then;
    if (thread->tickets && !broken(BIND_WAKES_NONE))
        go_wake_workers(thread, thread->tickets, thread->then);
}

static uint8_t after_wake(const struct thread *thread) { return broken(WAKE_BEFORE_BUMP) ? WORK_BUMP : thread->then; }

static void bump_for_workers(struct state *s, struct thread *thread)
{
    bump_work(s);
    thread->step = broken(WAKE_BEFORE_BUMP) ? thread->then : WORK_LOOK;
}

/* While tickets are quick, one that is awake is enough: it looks before it sleeps. Where none is, one: no more than
 * there are processors. */
static void look_at_sleepers(const struct state *s, struct thread *thread)
{
    unsigned asleep = (unsigned)__builtin_popcount(s->sleepers);
    unsigned needed = broken(BRISK_WAKES_NONE) ? asleep + 1 : crew();
    bool sparing = thread->tickets != ALL && !(thread->tickets & HOWEVER_BRISK) && s->pace;
    if (sparing)
        thread->tickets = 1;
    else if (thread->tickets != ALL)
        thread->tickets &= (uint8_t)~HOWEVER_BRISK;
    bool enough = sparing && asleep < needed;
    thread->step = asleep && !enough ? WORK_WAKE : after_wake(thread);
}

static enum outcome wake(struct state *s, struct thread *thread, unsigned choice)
{
    bool workers = thread->step == WORK_WAKE;
    if (workers ? !wake_workers(s, thread->tickets, choice) : !wake_consumers(s, choice))
        return NO_MORE;
    thread->step = workers ? after_wake(thread) : thread->then;
    return STEPPED;
}

static void try_lock(struct state *s, unsigned number)
{
    bool again = T->step == BIND_RETRY, busy = s->lock && !broken(BIND_WITHOUT_LOCK);
    if (busy && again) {
        leave(T);
    } else if (busy) {
        T->step = T->then;
        if (broken(BUSY_RELEASE_LOST) && T->then == DROP_NEWS)
            T->step = IDLE;
    } else {
        s->lock = 1;
        T->step = BIND_COLLECT;
    }
}

enum outcome binder_step(struct state *s, unsigned number, unsigned choice)
{
    if (T->step == WORK_WAKE || T->step == NEWS_WAKE)
        return wake(s, T, choice);
    if (choice)
        return NO_MORE;
    switch (T->step) {
    case BIND_TRY:
    case BIND_RETRY: try_lock(s, number); break;
    case BIND_COLLECT: collect_released(s, T); break;
    case BIND_SWEEP: sweep(s, T); break;
    case BIND_SWEEP_STORE:
        finish_cell(&s->slot[T->slot].cell[T->cell], CANCELLED);
        swept(s, T, &s->slot[T->slot].cell[T->cell]);
        break;
    case BIND_DRAINED: empty_slot(s, T); break;
    case BIND_NEXT: find_batch(s, T); break;
    case BIND_PLAN:
    case BIND_RECORD:
    case BIND_ENTRY:
    case BIND_CELLS:
    case BIND_BOUND:
    case BIND_MOVED: bind_batch(s, T); break;
    case BIND_UNLOCK:
        s->lock = 0;
        T->step = BIND_AGAIN;
        if (broken(NO_LOOK_AFTER_UNLOCK) || broken(BUSY_RELEASE_LOST))
            leave(T);
        break;
    case BIND_AGAIN:
        if (s->released != NO_SLOT)
            T->step = BIND_RETRY;
        else
            leave(T);
        break;
    case WORK_BUMP: bump_for_workers(s, T); break;
    case WORK_LOOK: look_at_sleepers(s, T); break;
    case NEWS_BUMP:
        bump_news(s);
        T->step = NEWS_LOOK;
        break;
    default: T->step = s->consumer_wait == WAIT_NONE ? T->then : NEWS_WAKE; /* NEWS_LOOK */
    }
    return STEPPED;
}
