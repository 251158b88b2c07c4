#include "reap.h"

#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- deaths: few, so that they are looked for one by one ---- */

struct rf_death *rf_deaths_of(struct rf_binder *binder, uint32_t slot, uint32_t row)
{
    for (uint32_t place = 0; place < binder->death_count; place++)
        if (binder->deaths[place].slot == slot && binder->deaths[place].row == row)
            return &binder->deaths[place];
    return NULL;
}

void rf_forget_deaths(struct rf_binder *binder, uint32_t slot)
{
    uint32_t kept = 0;
    for (uint32_t place = 0; place < binder->death_count; place++)
        if (binder->deaths[place].slot != slot)
            binder->deaths[kept++] = binder->deaths[place];
    binder->death_count = kept;
    binder->holds[slot].blamed = false;
}

static struct rf_death *add_death(struct rf_binder *binder, uint32_t slot, uint32_t row)
{
    struct rf_death *death = rf_deaths_of(binder, slot, row);
    if (death)
        return death;
    if (binder->death_count == binder->death_room) {
        uint32_t room = binder->death_room ? 2 * binder->death_room : 16;
        struct rf_death *deaths = realloc(binder->deaths, room * sizeof *deaths);
        if (!deaths)
            return NULL;
        binder->deaths = deaths;
        binder->death_room = room;
    }
    death = &binder->deaths[binder->death_count++];
    *death = (struct rf_death){.slot = slot, .row = row};
    return death;
}

/* ---- reaping ---- */

/* Whether a line says, of this ticket, which row or which stage its worker was in. */
static bool is_in_ticket(const struct rf_binding *binding, uint32_t cell, uint32_t row)
{
    if (row == RF_IN_COLLATE_FN || row == RF_IN_BATCH_TRANSFORM)
        return true;
    return row != 0 && row <= binding->rows && (row - 1) / binding->rows_per_ticket == cell;
}

/* Mark a row as given up, or all rows of a ticket; B: visible with AVAIL in take_back(). */
static void give_up(struct rf_ring *ring, uint32_t slot, uint32_t cell,
                    const struct rf_reaped *reaped)
{
    uint8_t *marks = rf_slot_base(ring, slot) + ring->geometry.marks_at + reaped->row;
    memset(marks, RF_ROW_KILLED, reaped->stage ? rf_rows_of(rf_binding_of(ring, slot), cell) : 1);
}

/* Find the row, or the stage, that caused a death. The line counts only if its ticket and attempt
 * are the cell's: otherwise the worker died between its claim and its first row. */
static void blame_row(struct rf_ring *ring, const struct rf_worker *line, uint32_t slot,
                      uint64_t ticket, uint32_t attempt, struct rf_reaped *reaped)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    uint32_t row = atomic_load_explicit(&line->row, memory_order_relaxed),
             cell = ticket % ring->geometry.cells;
    if (!is_in_ticket(binding, cell, row) ||
        atomic_load_explicit(&line->ticket, memory_order_relaxed) != ticket ||
        atomic_load_explicit(&line->attempt, memory_order_relaxed) != attempt)
        return;
    struct rf_binder *binder = ring->binder;
    bool is_row = row <= binding->rows;
    struct rf_death *death = add_death(binder, slot, is_row ? row - 1 : RF_ALL_ROWS);
    if (!death)
        return; /* no memory to count it in: it is tried again */
    binder->holds[slot].blamed = true;
    death->count += 1;
    reaped->deaths = death->count;
    reaped->stage = is_row ? 0 : row;
    reaped->row = is_row ? row - 1 : cell * binding->rows_per_ticket;
    reaped->batch = binding->batch;
    reaped->epoch = binding->epoch;
    reaped->index = rf_indices_of(ring, slot)[reaped->row];
    reaped->given_up = death->count >= binder->max_attempts;
    if (reaped->given_up)
        give_up(ring, slot, cell, reaped);
}

static void take_back(struct rf_ring *ring, uint32_t slot, uint32_t cell, uint32_t worker,
                      bool blame, struct rf_reaped *reaped)
{
    struct rf_cell *place = rf_cell_of(ring, slot, cell);
    uint64_t word = atomic_load_explicit(&place->word, memory_order_acquire);
    if (rf_word_state(word) != RF_CLAIMED || rf_word_owner(word) != worker)
        return;
    uint64_t ticket = rf_binding_of(ring, slot)->batch * ring->geometry.cells + cell;
    uint32_t attempt = rf_word_attempt(word);
    if (blame)
        blame_row(ring, &ring->workers[worker], slot, ticket, attempt, reaped);
    bool cancelled = ticket < ring->binder->cancel_upto;
    /* Must not spill into the ticket. */
    uint32_t next = attempt < RF_ATTEMPT_MAX ? attempt + 1 : attempt;
    uint64_t back = rf_word(ticket, next, rf_binding_of(ring, slot)->stream,
                            cancelled ? RF_CANCELLED : RF_AVAIL);
    /* B: release, pairs with the claim's acquire. No compare-exchange: its only other
     * writer is dead. */
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
    atomic_fetch_and_explicit(&ring->control->yielders[worker / 64], ~(UINT64_C(1) << worker % 64),
                              memory_order_relaxed);
}

struct rf_reaped rf_reap(struct rf_ring *ring, uint32_t worker, bool blame)
{
    struct rf_reaped reaped = {.index = -1};
    rf_lock(ring->binder);
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        if (state != RF_SLOT_BOUND && state != RF_SLOT_DRAINING)
            continue;
        for (uint32_t cell = 0; cell < rf_binding_of(ring, slot)->tickets; cell++)
            take_back(ring, slot, cell, worker, blame, &reaped);
    }
    forget_line(ring, worker);
    atomic_fetch_add_explicit(&ring->control->reap_seq, 1, memory_order_seq_cst);
    rf_unlock(ring);
    /* It may have died between a publish and its wake: wake every thread that this wake was for. */
    rf_wake_workers(ring, RF_ALL);
    rf_wake_consumer(ring);
    return reaped;
}
