/* A worker: rf_claim_wait, and its death. What it does with its claim is in rows.c. */
#include "model.h"

#include <string.h>

#define W (&s->worker[number])

static struct cell *claimed_cell(struct state *s, unsigned number) { return &s->slot[W->slot].cell[W->cell]; }

void forget_claim(struct worker *worker)
{
    worker->slot = worker->tickets = worker->batch = worker->cell = worker->attempt = worker->claimed = 0;
    worker->plan = worker->row = worker->index = worker->cancelled = worker->final = 0;
}

void look_for_work(struct worker *worker)
{
    forget_claim(worker);
    worker->armed = worker->changed = 0;
    worker->step = WAIT_STOP;
}

/* ---- claiming ---- */

static void found_nothing(struct worker *worker)
{
    worker->rescan = worker->bound = 0;
    forget_claim(worker);
    worker->step = !worker->armed ? SLEEP_BIT : broken(WORKER_OBSERVES_LATE) ? SLEEP_SEQ : SLEEP_FUTEX;
}

static void next_batch(struct worker *worker)
{
    if (worker->cursor_batch < worker->bound)
        worker->step = CLAIM_ENTRY;
    else
        found_nothing(worker);
}

static void next_cell(struct worker *worker)
{
    if (worker->cursor_cell < worker->tickets) {
        worker->step = CLAIM_WORD;
        return;
    }
    worker->cursor_batch++;
    worker->cursor_cell = 0;
    next_batch(worker);
}

static void load_head(struct state *s, unsigned number)
{
    if (W->rescan || W->cursor_batch < s->head) {
        W->cursor_batch = s->head;
        W->cursor_cell = 0;
    }
    if (configuration->yields && is_away(number))
        W->step = CLAIM_SPARE;
    else
        next_batch(W);
}

/* In one step, as it decides nothing that must be so. */
static void look_for_spare(struct state *s, unsigned number)
{
    unsigned asleep = 0, available = 0;
    for (unsigned other = 0; other < configuration->workers; other++)
        asleep += (s->sleepers >> other & 1) && (!is_away(other) || broken(YIELDER_COUNTS_ITSELF));
    for (unsigned batch = W->cursor_batch; batch < W->bound; batch++)
        for (unsigned cell = batch == W->cursor_batch ? W->cursor_cell : 0; cell < entry_of(s, batch).tickets; cell++) {
            const struct cell *place = &s->slot[entry_of(s, batch).slot].cell[cell];
            available += place->state == AVAIL && place->batch == batch;
        }
    if (!asleep || !available || available > asleep) {
        next_batch(W);
        return;
    }
    found_nothing(W);
    if (W->armed && !W->passed && !broken(YIELDER_KEEPS_WAKE))
        W->step = SLEEP_PASS;
}

static void load_entry(struct state *s, struct worker *worker)
{
    struct entry entry = entry_of(s, worker->cursor_batch);
    worker->slot = entry.slot;
    worker->tickets = entry.tickets;
    next_cell(worker);
}

static void load_word(struct state *s, struct worker *worker)
{
    worker->cell = worker->cursor_cell++;
    const struct cell *cell = &s->slot[worker->slot].cell[worker->cell];
    bool same = cell->batch == worker->cursor_batch || broken(CLAIM_IGNORES_TICKET);
    if (cell->state != AVAIL || !same) {
        next_cell(worker);
        return;
    }
    worker->batch = worker->cursor_batch;
    worker->attempt = cell->attempt;
    worker->step = broken(SHARED_MUTEX) ? CLAIM_MUTEX : CLAIM_SWAP;
}

/* C: claim and owner in one step. */
static void claim(struct state *s, unsigned number)
{
    struct cell *cell = claimed_cell(s, number);
    bool same_ticket = cell->batch == W->batch || broken(CLAIM_IGNORES_TICKET);
    bool same = cell->state == AVAIL && same_ticket && cell->attempt == W->attempt;
    if (!same && !broken(CLAIM_BY_STORE)) {
        next_cell(W);
        if (broken(SHARED_MUTEX))
            s->shared_mutex = 0;
        return;
    }
    *cell = (struct cell){.state = CLAIMED, .batch = W->batch, .attempt = W->attempt, .owner = (uint8_t)number};
    W->claimed = 1;
    W->rescan = W->bound = W->tickets = W->changed = 0;
    W->step = broken(SHARED_MUTEX) ? CLAIM_MUTEX_GIVE : FILL_RECORD;
    if (broken(CLAIM_WITHOUT_OWNER)) {
        cell->owner = NO_OWNER;
        W->claimed = 0;
        W->step = CLAIM_OWNER;
    }
}

static void store_owner(struct state *s, unsigned number)
{
    claimed_cell(s, number)->owner = (uint8_t)number;
    W->claimed = 1;
    W->step = FILL_RECORD;
}

static bool take_mutex(struct state *s, unsigned number)
{
    if (s->shared_mutex)
        return false;
    s->shared_mutex = 1;
    W->step = CLAIM_SWAP;
    return true;
}

/* ---- sleeping ---- */

static void begin_loop(struct worker *worker)
{
    worker->armed = 1;
    worker->changed = 0;
    worker->step = broken(WORKER_OBSERVES_LATE) ? SLEEP_STOP : SLEEP_SEQ;
}

static void set_bit(struct state *s, unsigned number)
{
    if (!broken(SLEEP_WITHOUT_BIT))
        s->sleepers |= (uint8_t)(1u << number);
    begin_loop(W);
}

static void observe(struct worker *worker)
{
    worker->changed = 0;
    worker->step = broken(WORKER_OBSERVES_LATE) ? SLEEP_FUTEX : SLEEP_STOP;
}

static void fall_asleep(struct worker *worker)
{
    if (worker->changed && !broken(WORKER_SLEEPS_UNOBSERVED)) {
        begin_loop(worker);
        return;
    }
    worker->changed = 0;
    worker->step = SLEEP_ASLEEP;
}

void worker_wakes(struct state *s, unsigned number)
{
    if (broken(WOKEN_STAYS_AWAY))
        s->sleepers &= (uint8_t)~(1u << number);
    begin_loop(W);
}

/* ---- rows that are made elsewhere: the worker sleeps until the environment says that they have come, or a break ---- */

void go_away(struct worker *worker)
{
    worker->watches = worker->broke = 0;
    worker->step = broken(HOLDER_OBSERVES_LATE) ? AWAY_LOOK : AWAY_SEQ;
}

static void observe_breaks(struct worker *worker)
{
    worker->watches = 1;
    worker->broke = 0;
    worker->step = broken(HOLDER_OBSERVES_LATE) ? AWAY_FUTEX : AWAY_LOOK;
}

static void look_at_break(struct state *s, struct worker *worker)
{
    worker->step = broken(HOLDER_OBSERVES_LATE) ? AWAY_SEQ : AWAY_FUTEX;
    if (s->stop) {
        forget_claim(worker); /* its process ends */
        worker->step = STOPPED;
    } else if (worker->batch < s->cancel_upto) {
        worker->cancelled = 1;
        worker->step = PUBLISH_OWN;
    }
    if (worker->step != AWAY_FUTEX && worker->step != AWAY_SEQ)
        worker->watches = worker->broke = 0;
}

static void sleep_away(struct worker *worker)
{
    if (worker->broke && !broken(HOLDER_SLEEPS_UNOBSERVED)) {
        go_away(worker);
        return;
    }
    worker->broke = 0;
    worker->step = AWAY_ASLEEP;
}

void away_step(struct state *s, unsigned number)
{
    switch (W->step) {
    case AWAY_SEQ: observe_breaks(W); break;
    case AWAY_LOOK: look_at_break(s, W); break;
    default: sleep_away(W); /* AWAY_FUTEX */
    }
}

void begin_rows(struct state *s, unsigned number)
{
    W->passed = 0;
    if (is_away(number))
        go_away(W);
    else
        W->step = ROW_CANCELLED;
}

static void sleep_over(struct state *s, unsigned number)
{
    s->sleepers &= (uint8_t)~(1u << number);
    W->armed = 0;
    W->step = STOPPED;
    if (W->claimed)
        begin_rows(s, number);
}

/* ---- a step ---- */

/* Wake all that sleep: what this worker leaves is theirs. */
static bool pass_on(struct state *s, unsigned number, unsigned choice)
{
    if (!wake_workers(s, broken(YIELDER_WAKES_ONE) ? 1 : ALL, choice))
        return false;
    W->passed = !W->changed;
    W->step = SLEEP_FUTEX;
    return true;
}

static enum outcome ordinary_step(struct state *s, unsigned number)
{
    switch (W->step) {
    case WAIT_STOP: W->step = s->stop ? STOPPED : CLAIM_REAPS; break;
    case CLAIM_REAPS:
        W->rescan = W->reaped && !broken(CURSOR_IGNORES_REAPS);
        W->reaped = 0;
        W->step = CLAIM_BOUND;
        break;
    case CLAIM_BOUND:
        W->bound = s->bound;
        W->step = CLAIM_HEAD;
        break;
    case CLAIM_HEAD: load_head(s, number); break;
    case CLAIM_SPARE: look_for_spare(s, number); break;
    case CLAIM_ENTRY: load_entry(s, W); break;
    case CLAIM_WORD: load_word(s, W); break;
    case CLAIM_SWAP: claim(s, number); break;
    case CLAIM_OWNER: store_owner(s, number); break;
    case CLAIM_MUTEX: return take_mutex(s, number) ? STEPPED : NO_MORE;
    case CLAIM_MUTEX_GIVE:
        s->shared_mutex = 0;
        W->step = FILL_RECORD;
        break;
    case SLEEP_BIT: set_bit(s, number); break;
    case SLEEP_SEQ: observe(W); break;
    case SLEEP_STOP: W->step = s->stop ? SLEEP_OVER : CLAIM_REAPS; break;
    case SLEEP_FUTEX: fall_asleep(W); break;
    case SLEEP_OVER: sleep_over(s, number); break;
    default: return NO_MORE; /* asleep, gone or dead */
    }
    return STEPPED;
}

/* Whether it dies without the environment's doing: by its guard, once the consumer is dead, or given up. */
bool must_die(const struct state *s, unsigned number)
{
    bool guarded = s->consumer_dead && is_alive(W) && !broken(NO_GUARD);
    return guarded || (W->fenced && !W->frozen && is_alive(W));
}

/* Who must die does so in step number 0; until then it goes on. */
enum outcome worker_step(struct state *s, unsigned number, unsigned choice)
{
    if (must_die(s, number)) {
        if (choice == 0) {
            worker_dies(s, number);
            return STEPPED;
        }
        choice--;
    }
    if (W->frozen)
        return NO_MORE;
    if (W->step >= FILL_RECORD && W->step <= PUBLISH_WAKE)
        return row_step(s, number, choice);
    if (W->step == SLEEP_PASS)
        return pass_on(s, number, choice) ? STEPPED : NO_MORE;
    return choice ? NO_MORE : ordinary_step(s, number);
}

/* Its memory is gone; its line, its bit and its claim stay. */
void worker_dies(struct state *s, unsigned number)
{
    bool inside = W->claimed && W->step >= ROW_SAMPLE && W->step <= ROW_CLEAR;
    if (inside && ++s->slot[W->slot].died[row_in_batch(W)] > configuration->max_attempts)
        wrong("a row costs more workers than max_attempts");
    struct line line = W->line;
    uint8_t fenced = W->fenced;
    memset(W, 0, sizeof *W);
    W->line = line;
    W->fenced = fenced;
    W->step = DEAD;
}
