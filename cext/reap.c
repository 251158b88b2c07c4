#include "reap.h"

#include "binder.h"

#include <string.h>

/* Whose fault a death was. The line counts only if its ticket and attempt are the cell's: otherwise the worker
 * died between its claim and its first row. */
static void blame_row(struct rf_ring *ring, const struct rf_worker *line, uint32_t slot, uint64_t ticket,
                      uint32_t attempt, struct rf_reaped *reaped)
{
    uint32_t row = atomic_load_explicit(&line->row, memory_order_relaxed);
    if (row == 0 || row > ring->geometry.rows || atomic_load_explicit(&line->ticket, memory_order_relaxed) != ticket ||
        atomic_load_explicit(&line->attempt, memory_order_relaxed) != attempt)
        return;
    struct rf_binder *binder = ring->binder;
    uint16_t *deaths = &binder->deaths[(uint64_t)slot * ring->geometry.rows + row - 1];
    binder->holds[slot].blamed = true;
    *deaths += 1;
    reaped->deaths = *deaths;
    reaped->row = row - 1;
    reaped->batch = ring->records[slot].batch;
    reaped->epoch = ring->records[slot].epoch;
    reaped->index = (int64_t)atomic_load_explicit(&line->index, memory_order_relaxed);
    reaped->given_up = *deaths >= binder->max_attempts;
    if (reaped->given_up)
        rf_slot_base(ring, slot)[ring->geometry.marks_at + row - 1] = RF_ROW_KILLED; /* B: visible with AVAIL below */
}

static void take_back(struct rf_ring *ring, uint32_t slot, uint32_t cell, uint32_t worker, bool blame,
                      struct rf_reaped *reaped)
{
    struct rf_cell *place = rf_cell_of(ring, slot, cell);
    uint64_t word = atomic_load_explicit(&place->word, memory_order_acquire);
    if (rf_word_state(word) != RF_CLAIMED || rf_word_owner(word) != worker)
        return;
    uint64_t ticket = ring->records[slot].batch * ring->geometry.cells + cell;
    uint32_t attempt = rf_word_attempt(word);
    if (blame)
        blame_row(ring, &ring->workers[worker], slot, ticket, attempt, reaped);
    bool cancelled = ticket < atomic_load_explicit(&ring->control->cancel_upto, memory_order_relaxed);
    uint32_t next = attempt < RF_ATTEMPT_MAX ? attempt + 1 : attempt; /* must not spill into the ticket */
    uint64_t back = rf_word(ticket, next, ring->records[slot].lane, cancelled ? RF_CANCELLED : RF_AVAIL);
    /* B: release, pairs with the claim's acquire. No compare-exchange: its only other writer is dead. */
    atomic_store_explicit(&place->word, back, memory_order_seq_cst);
    reaped->claims += 1;
}

static void forget_line(struct rf_ring *ring, uint32_t worker)
{
    struct rf_worker *line = &ring->workers[worker];
    atomic_store_explicit(&line->row, 0, memory_order_relaxed);
    atomic_store_explicit(&line->since_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&line->leave, 0, memory_order_relaxed);
    atomic_store_explicit(&line->pid, 0, memory_order_relaxed);
    atomic_fetch_and_explicit(&ring->control->sleepers[worker / 64], ~(UINT64_C(1) << worker % 64),
                              memory_order_seq_cst);
}

struct rf_reaped rf_reap(struct rf_ring *ring, uint32_t worker, bool blame)
{
    struct rf_reaped reaped = {.index = -1};
    rf_lock(ring->binder);
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        if (state != RF_SLOT_BOUND && state != RF_SLOT_DRAINING)
            continue;
        for (uint32_t cell = 0; cell < ring->records[slot].tickets; cell++)
            take_back(ring, slot, cell, worker, blame, &reaped);
    }
    forget_line(ring, worker);
    atomic_fetch_add_explicit(&ring->control->reap_seq, 1, memory_order_seq_cst);
    rf_unlock(ring);
    /* It may have died between a publish and its wake, so wake whoever that wake was for. */
    rf_wake_workers(ring, RF_ALL);
    rf_wake_consumer(ring);
    return reaped;
}
