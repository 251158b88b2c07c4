/* A worker between its claim and its wake: the filling of rows, rf_publish. */
#include "model.h"

#define W (&s->worker[number])

static struct slot *claimed_slot(struct state *s, unsigned number) { return &s->slot[W->slot]; }
static struct cell *claimed_cell(struct state *s, unsigned number) { return &claimed_slot(s, number)->cell[W->cell]; }

static bool is_mine(const struct cell *cell, const struct worker *worker, unsigned number)
{
    return cell->state == CLAIMED && cell->batch == worker->batch && cell->attempt == worker->attempt &&
           cell->owner == number;
}

static void fill_record(struct state *s, unsigned number)
{
    struct slot *slot = claimed_slot(s, number);
    if (slot->batch != W->batch)
        wrong("a claim finds the record of another batch");
    check_write(slot);
    W->plan = slot->plan;
    slot->failure[W->cell] = 0;
    unsigned first = W->cell * rows_per_ticket(W->plan);
    for (unsigned row = first; W->attempt && row < first + rows_of_ticket(W->plan, W->cell); row++)
        if (slot->mark[row] == ROW_RAISED && !broken(MARKS_KEPT))
            slot->mark[row] = ROW_OK;
    W->step = FILL_TICKET;
}

/* ---- filling ---- */

unsigned row_in_batch(const struct worker *worker)
{
    return worker->cell * rows_per_ticket(worker->plan) + worker->row;
}

static void next_row(struct worker *worker)
{
    worker->row++;
    worker->index = 0;
    unsigned rows = rows_of_ticket(worker->plan, worker->cell);
    bool last = worker->row == rows || (broken(READY_TOO_EARLY) && worker->row + 1u == rows);
    worker->step = last ? PUBLISH_OWN : ROW_CANCELLED;
}

static void look_at_cancel(struct state *s, unsigned number)
{
    bool cancelled = broken(CANCEL_IS_A_FLAG) ? s->cancel_upto > 0 : W->batch < s->cancel_upto;
    bool given_up = claimed_slot(s, number)->mark[row_in_batch(W)] == ROW_KILLED;
    if (cancelled) {
        W->cancelled = 1;
        W->step = PUBLISH_OWN;
    } else if (given_up && !broken(KILLED_ROW_RUNS)) {
        next_row(W);
    } else {
        W->step = broken(BLAME_AFTER_SAMPLE) ? ROW_SAMPLE : ROW_BLAME;
    }
}

static void blame(struct state *s, unsigned number)
{
    const struct slot *slot = claimed_slot(s, number);
    unsigned row = row_in_batch(W);
    if (slot->mark[row] == ROW_KILLED)
        wrong("a row that was given up is run again");
    W->line.row = (uint8_t)(row + 1);
    if (broken(BLAME_FIRST_ROW))
        W->line.row = (uint8_t)(row - W->row + 1);
    W->step = broken(BLAME_AFTER_SAMPLE) ? ROW_WHOLE : ROW_SAMPLE;
}

/* Choice 1: a flaky sample raises this time. */
static enum outcome sample(struct state *s, unsigned number, unsigned choice)
{
    struct slot *slot = claimed_slot(s, number);
    unsigned index = index_of(slot->plan, row_in_batch(W)); /* as it stands in the slot now */
    if (choice > (has(configuration->flaky, index) ? 1u : 0u))
        return NO_MORE;
    if (has(configuration->poison, index)) {
        worker_dies(s, number);
        return STEPPED;
    }
    if (choice || has(configuration->raises, index)) {
        W->step = ROW_FAIL;
        return STEPPED;
    }
    check_write(slot);
    W->index = (uint8_t)index;
    slot->content[row_in_batch(W)] = TORN;
    W->step = broken(BLAME_AFTER_SAMPLE) ? ROW_BLAME : ROW_WHOLE;
    return STEPPED;
}

static void write_rest(struct state *s, unsigned number)
{
    struct slot *slot = claimed_slot(s, number);
    unsigned row = row_in_batch(W);
    check_write(slot);
    slot->content[row] = W->index == index_of(slot->plan, row) ? RIGHT : WRONG;
    W->step = ROW_CLEAR;
}

static void fail_row(struct state *s, unsigned number)
{
    struct slot *slot = claimed_slot(s, number);
    unsigned row = row_in_batch(W);
    check_write(slot);
    slot->mark[row] = ROW_RAISED;
    if (!slot->failure[W->cell])
        slot->failure[W->cell] = (uint8_t)(row + 1);
    W->step = ROW_CLEAR;
}

/* ---- publishing ---- */

static void decide(struct state *s, unsigned number)
{
    const struct slot *slot = claimed_slot(s, number);
    if (!is_mine(claimed_cell(s, number), W, number)) {
        look_for_work(W); /* taken for dead */
        return;
    }
    unsigned first = W->cell * rows_per_ticket(W->plan);
    W->final = W->cancelled ? CANCELLED : READY;
    for (unsigned row = first; !W->cancelled && row < first + rows_of_ticket(W->plan, W->cell); row++)
        if (slot->mark[row] != ROW_OK && !broken(FAILED_AS_READY))
            W->final = FAILED;
    W->plan = W->row = W->index = W->cancelled = 0;
    W->step = PUBLISH_BLAME;
}

/* P: pairs with the loads of take and look. */
static void publish(struct state *s, unsigned number)
{
    struct cell *cell = claimed_cell(s, number);
    if (!is_mine(cell, W, number)) {
        look_for_work(W);
        return;
    }
    finish_cell(cell, W->final);
    W->claimed = W->final = W->attempt = 0;
    W->step = PUBLISH_FLAG;
    if (broken(WAKE_BEFORE_PUBLISH)) {
        W->step = W->index ? PUBLISH_BUMP : WAIT_STOP;
        forget_claim(W);
    }
}

static void load_flag(struct state *s, struct worker *worker)
{
    bool free = s->consumer_wait == WAIT_FREE && !broken(PUBLISHER_IGNORES_FREE);
    bool wake = free || s->consumer_wait == ticket_of(worker->batch, worker->cell) + 1;
    if (broken(WAKE_BEFORE_PUBLISH)) {
        worker->index = wake;
        worker->step = PUBLISH_SWAP;
        return;
    }
    look_for_work(worker);
    if (wake)
        worker->step = PUBLISH_BUMP;
}

/* ---- a step ---- */

static void clear_row(struct worker *worker)
{
    if (!broken(BLAME_NOT_CLEARED) && !broken(BLAME_ENDS_LATE))
        worker->line.row = 0;
    next_row(worker);
}

static void clear_line(struct worker *worker)
{
    if (!broken(BLAME_NOT_CLEARED))
        worker->line = (struct line){0};
    worker->step = broken(WAKE_BEFORE_PUBLISH) ? PUBLISH_FLAG : PUBLISH_SWAP;
}

static void write_ticket(struct worker *worker)
{
    worker->line.batch = worker->batch;
    worker->line.cell = worker->cell;
    worker->step = FILL_ATTEMPT;
}

enum outcome row_step(struct state *s, unsigned number, unsigned choice)
{
    if (W->step == ROW_SAMPLE)
        return sample(s, number, choice);
    if (choice && W->step != PUBLISH_WAKE)
        return NO_MORE;
    switch (W->step) {
    case FILL_RECORD: fill_record(s, number); break;
    case FILL_TICKET: write_ticket(W); break;
    case FILL_ATTEMPT:
        W->line.attempt = W->attempt;
        if (W->armed)
            W->step = SLEEP_OVER;
        else
            begin_rows(s, number);
        break;
    case AWAY_SEQ:
    case AWAY_LOOK:
    case AWAY_FUTEX: away_step(s, number); break;
    case AWAY_ASLEEP: return NO_MORE;
    case ROW_CANCELLED: look_at_cancel(s, number); break;
    case ROW_BLAME: blame(s, number); break;
    case ROW_WHOLE: write_rest(s, number); break;
    case ROW_FAIL: fail_row(s, number); break;
    case ROW_CLEAR: clear_row(W); break;
    case PUBLISH_OWN: decide(s, number); break;
    case PUBLISH_BLAME: clear_line(W); break;
    case PUBLISH_SWAP: publish(s, number); break;
    case PUBLISH_FLAG: load_flag(s, W); break;
    case PUBLISH_BUMP:
        bump_news(s);
        W->step = PUBLISH_LOOK;
        break;
    case PUBLISH_LOOK: W->step = s->consumer_wait == WAIT_NONE ? WAIT_STOP : PUBLISH_WAKE; break;
    default: /* PUBLISH_WAKE */
        if (!wake_consumers(s, choice))
            return NO_MORE;
        W->step = WAIT_STOP;
    }
    return STEPPED;
}
