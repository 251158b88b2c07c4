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

static inline bool rf_is_stopped(const struct rf_claim *claim)
{
    return atomic_load_explicit(&claim->control->stop, memory_order_relaxed);
}

#endif
