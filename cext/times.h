/* How long samples take, counted in the line of the worker that fills them. */
#ifndef RF_TIMES_H
#define RF_TIMES_H

#include "layout.h"

/* The row of a ticket that is timed, where one is: spread by the golden ratio, since batches of as
 * many tickets would make a pattern of any simple rule, and some places in a batch would never have
 * their turn. */
static inline uint32_t rf_timed_row(const struct rf_claim *claim)
{
    if (!RF_STATISTICS)
        return UINT32_MAX;
    uint64_t spread = (claim->ticket * UINT64_C(0x9e3779b97f4a7c15)) >> 32;
    return (uint32_t)(spread * claim->rows >> 32);
}

/* Count `rows` rows that took read_ns inside the dataset and write_ns on their way into the slot,
 * all together. Relaxed: these are totals for observers, and nothing is read on their account. */
static inline void rf_note_times(const struct rf_claim *claim, uint64_t rows, int64_t read_ns,
                                 int64_t write_ns)
{
    atomic_fetch_add_explicit(&claim->line->timed, rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&claim->line->read_ns, (uint64_t)read_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&claim->line->write_ns, (uint64_t)write_ns, memory_order_relaxed);
}

#endif
