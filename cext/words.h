/* 64-bit words that several processes share: each is read and written as a whole, in one order for
 * all (seq_cst), and its low half is what a sleeper sleeps on. */
#ifndef RF_WORDS_H
#define RF_WORDS_H

#include "layout.h"
#include "os/wait.h"

static inline _Atomic uint64_t *rf_atomic(void *word) { return (_Atomic uint64_t *)word; }

static inline uint64_t rf_get_word(void *word) { return atomic_load(rf_atomic(word)); }

static inline void rf_set_word(void *word, uint64_t value) { atomic_store(rf_atomic(word), value); }

static inline void rf_add_to_word(void *word, uint64_t count)
{
    atomic_fetch_add(rf_atomic(word), count);
}

/* Sleep until woken, while the word is `seen`, at most until deadline_ns. */
static inline void rf_wait_word(void *word, uint64_t seen, int64_t deadline_ns)
{
    if (rf_get_word(word) == seen)
        rf_futex_wait((_Atomic uint32_t *)word, (uint32_t)seen, deadline_ns);
}

static inline void rf_wake_word(void *word) { rf_futex_wake((_Atomic uint32_t *)word, INT32_MAX); }

/* ---- what the lines of workers say, where one reads for the others ---- */

/* Have a line show the element that is being read, as the row that a worker is in: there is no
 * claim to go with it. */
static inline void rf_show_reading(struct rf_worker *line, uint64_t index)
{
    atomic_store_explicit(&line->index, index, memory_order_relaxed);
    atomic_store_explicit(&line->row, 1, memory_order_relaxed);
    atomic_store_explicit(&line->since_ns, (uint64_t)rf_now_ns(), memory_order_relaxed);
    atomic_fetch_add_explicit(&line->tickets, 1, memory_order_relaxed);
}

static inline void rf_show_read(struct rf_worker *line)
{
    atomic_store_explicit(&line->since_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&line->row, 0, memory_order_relaxed);
}

/* A claim whose elements are not there yet: its worker is at nothing, and is not to be
 * ended for it. */
static inline void rf_begin_wait(struct rf_claim *claim)
{
    atomic_store_explicit(&claim->line->since_ns, 0, memory_order_relaxed);
}

/* They are there: the work on the claim begins now. */
static inline void rf_end_wait(struct rf_claim *claim)
{
    claim->claimed_ns = rf_now_ns();
    atomic_store_explicit(&claim->line->since_ns, (uint64_t)claim->claimed_ns,
                          memory_order_relaxed);
}

#endif
