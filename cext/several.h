/* A worker that holds several claims at a time. Its line has room for one, and shows the oldest.
 * The ring needs no more: rf_reap() takes back all that a worker had claimed, and a claim knows its
 * own cell. */
#ifndef RF_SEVERAL_H
#define RF_SEVERAL_H

#include "layout.h"

#define RF_NO_ROW UINT32_MAX /* of no batch: a death in it blames none */

/* Have the worker's line show a claim, and that it is at a row of it. A death then blames no row,
 * as any row of any claim may be at fault; a call of rf_blame() after this names the
 * one that is. */
static inline void rf_show(const struct rf_claim *claim, uint32_t row)
{
    struct rf_worker *line = claim->line;
    atomic_store_explicit(&line->row, RF_NO_ROW, memory_order_relaxed);
    atomic_store_explicit(&line->ticket, claim->ticket, memory_order_relaxed);
    atomic_store_explicit(&line->attempt, claim->attempt, memory_order_relaxed);
    atomic_store_explicit(&line->index, (uint64_t)claim->indices[row], memory_order_relaxed);
    atomic_store_explicit(&line->since_ns, (uint64_t)claim->claimed_ns, memory_order_relaxed);
}

/* Take off what the worker was busy for the time that other claims, published until then, have
 * counted as well. */
static inline void rf_discount(const struct rf_claim *claim, int64_t until_ns)
{
    if (until_ns > claim->claimed_ns)
        atomic_fetch_sub_explicit(&claim->line->busy_ns, (uint64_t)(until_ns - claim->claimed_ns),
                                  memory_order_relaxed);
}

/* ---- parts of a claim, for threads that fill it together ---- */

/* The line of all parts of this process, which no other process sees. */
static inline struct rf_worker *rf_aside(void)
{
    static struct rf_worker aside;
    return &aside;
}

/* Have a thread fill some rows of a claim while others fill the rest. A part is filled as a claim
 * is, but never published, and a death blames none of its rows unless it `blames`. */
static inline void rf_begin_part(const struct rf_claim *claim, uint32_t row, uint32_t rows,
                                 bool blames, struct rf_claim *part)
{
    *part = *claim;
    part->first_row += row;
    part->rows = part->rows_delivered = rows;
    part->indices += row;
    part->marks += row;
    if (!blames)
        part->line = rf_aside();
}

static inline void rf_move_total(_Atomic uint64_t *from, _Atomic uint64_t *to)
{
    uint64_t total = atomic_exchange_explicit(from, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(to, total, memory_order_relaxed);
}

/* Count for the claim what was counted for parts until now. A part that is all of its claim also
 * says how many rows that delivers: no other thread fills the claim then. */
static inline void rf_end_part(const struct rf_claim *part, struct rf_claim *claim)
{
    struct rf_worker *aside = rf_aside();
    rf_move_total(&aside->timed, &claim->line->timed);
    rf_move_total(&aside->read_ns, &claim->line->read_ns);
    rf_move_total(&aside->write_ns, &claim->line->write_ns);
    if (part->rows == claim->rows)
        claim->rows_delivered = part->rows_delivered;
}

/* Make room for a failure of this row if the record is of a later one: threads fail in any order.
 * One thread at a time calls this and rf_fail(). */
static inline void rf_forget_later(const struct rf_claim *part, uint32_t row)
{
    if (part->failure->size && part->failure->row > part->first_row + row)
        part->failure->size = 0;
}

static inline bool rf_is_stopped(const struct rf_claim *claim)
{
    return atomic_load_explicit(&claim->control->stop, memory_order_relaxed);
}

#endif
