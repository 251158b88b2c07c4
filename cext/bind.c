/* The consumer gives planned batches slots, holds and releases them. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the binder's lock: of one process; releases try it, breaks and reaps wait for it ---- */

bool rf_try_lock(struct rf_binder *binder)
{
    return atomic_exchange_explicit(&binder->lock, 1, memory_order_seq_cst) == 0;
}

void rf_lock(struct rf_binder *binder)
{
    for (unsigned attempt = 0; !rf_try_lock(binder); attempt++)
        rf_yield(attempt);
}

/* ---- binding ---- */

static void collect_released(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    /* F: acquire, pairs with R in release_slot(): what the old views read is read. */
    uint32_t slot = atomic_exchange_explicit(&binder->released, RF_NO_SLOT, memory_order_seq_cst);
    while (slot != RF_NO_SLOT) {
        uint32_t next = atomic_load_explicit(&binder->holds[slot].next, memory_order_relaxed);
        rf_set_free(ring, slot);
        slot = next;
    }
}

/* Whether no worker is in the slot any more. AVAIL cells are cancelled on the way, so that
 * no worker enters. */
static bool is_drained(struct rf_ring *ring, uint32_t slot)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    bool drained = true;
    for (uint32_t cell = 0; cell < binding->tickets; cell++) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        uint64_t word = atomic_load_explicit(&place->word, memory_order_seq_cst);
        if (!rf_is_possible(ring, binding, cell, word))
            /* Or it might never drain, or while it is written to. */
            rf_note_damage(ring, RF_DAMAGED_CELL, slot, cell);
        while (rf_word_state(word) == RF_AVAIL) {
            uint64_t cancelled = (word & ~UINT64_C(0xf)) | RF_CANCELLED;
            if (atomic_compare_exchange_weak_explicit(&place->word, &word, cancelled,
                                                      memory_order_seq_cst, memory_order_seq_cst))
                word = cancelled;
        }
        drained &= rf_word_final(word);
    }
    return drained;
}

static void empty_cells(struct rf_ring *ring, uint32_t slot)
{
    for (uint32_t cell = 0; cell < rf_binding_of(ring, slot)->tickets; cell++) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        uint64_t word = atomic_load_explicit(&place->word, memory_order_relaxed);
        /* B orders the rebind. */
        atomic_store_explicit(&place->word, word & ~UINT64_C(0xf), memory_order_relaxed);
    }
}

static void collect_drained(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    for (uint32_t slot = 0; binder->draining > 0 && slot < ring->geometry.slots; slot++) {
        if (rf_slot_state(ring, slot) != RF_SLOT_DRAINING || !is_drained(ring, slot))
            continue;
        if (rf_is_damaged(ring))
            return;
        empty_cells(ring, slot);
        rf_set_free(ring, slot);
        binder->draining -= 1;
    }
}

/* Enough rows for the work worth a ticket, few enough that the slots in flight keep all busy that
 * work at a time. */
static uint32_t rows_per_ticket(const struct rf_ring *ring, uint32_t rows)
{
    const struct rf_binder *binder = ring->binder;
    uint64_t row_ns = atomic_load_explicit(&binder->row_ns, memory_order_relaxed);
    uint64_t at_once =
        (uint64_t)atomic_load_explicit(&binder->crew, memory_order_relaxed) + binder->more;
    /* One is in the consumer's hands. */
    uint32_t open = rf_open_slots(ring), ahead = open > 1 ? open - 1 : 1;
    uint64_t wanted =
        row_ns ? ((uint64_t)rows * ahead + at_once - 1) / at_once : (rows + at_once - 1) / at_once;
    if (row_ns && wanted > binder->ticket_ns / row_ns)
        wanted = binder->ticket_ns / row_ns;
    if (row_ns && wanted < binder->ticket_ns / RF_LEAST_PART / row_ns)
        wanted = binder->ticket_ns / RF_LEAST_PART / row_ns;
    if (binder->ticket_rows && wanted > binder->ticket_rows)
        wanted = binder->ticket_rows;
    uint32_t least = (rows + ring->geometry.cells - 1) / ring->geometry.cells;
    return wanted < least ? least : wanted > rows ? rows : (uint32_t)wanted;
}

bool rf_keep_indices(struct rf_ring *ring, uint32_t slot)
{
    struct rf_binder *binder = ring->binder;
    uint64_t batch = atomic_load_explicit(&binder->plan_read, memory_order_relaxed);
    uint64_t bound = atomic_load_explicit(&binder->plan_bound, memory_order_relaxed);
    for (; batch < bound; batch++) {
        struct rf_planned *planned = &binder->planned[batch % binder->capacity];
        if (planned->source != slot || planned->saved)
            continue;
        planned->saved = malloc(planned->rows * sizeof *planned->saved);
        if (!planned->saved)
            return false;
        memcpy(planned->saved, rf_indices_of(ring, slot), planned->rows * sizeof *planned->saved);
    }
    return true;
}

/* A free slot for the batch: the one that its indices stand in, if it was bound before. */
static uint32_t choose_slot(struct rf_binder *binder, const struct rf_planned *planned)
{
    uint32_t *last = &binder->free_slots[--binder->free_count];
    for (uint32_t place = 0; planned->source != RF_NO_SLOT && place < binder->free_count; place++)
        if (binder->free_slots[place] == planned->source) {
            binder->free_slots[place] = *last;
            *last = planned->source;
        }
    return *last;
}

/* Write the batch's indices into its slot, and what they sum up to, ticket by ticket. False where
 * they are not those that they were when it was bound before. */
static bool write_indices(struct rf_ring *ring, uint32_t slot, uint64_t read,
                          struct rf_planned *planned)
{
    struct rf_binder *binder = ring->binder;
    struct rf_binding *binding = &binder->bindings[slot];
    bool again = planned->source != RF_NO_SLOT;
    const int64_t *from = &binder->indices[read % binder->window * ring->geometry.rows];
    int64_t *to = rf_indices_of(ring, slot);
    uint64_t sum = 0;
    if (again)
        from = planned->saved ? planned->saved : rf_indices_of(ring, planned->source);
    if (from != to)
        memcpy(to, from, planned->rows * sizeof *to);
    /* Of private memory, the first time. */
    for (uint32_t cell = 0; cell < binding->tickets; cell++) {
        uint32_t first = cell * binding->rows_per_ticket;
        binding->sum[cell] =
            rf_sum_indices((again ? to : from) + first, first, rf_rows_of(binding, cell));
        sum += binding->sum[cell];
    }
    if (again && sum != planned->sum)
        return false;
    planned->sum = sum;
    planned->source = slot;
    free(planned->saved);
    planned->saved = NULL;
    return true;
}

static void write_record(struct rf_ring *ring, uint32_t slot)
{
    struct rf_record *record = &ring->records[slot];
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    /* Workers read it after B. */
    atomic_store_explicit(&record->batch, binding->batch, memory_order_relaxed);
    atomic_store_explicit(&record->epoch, binding->epoch, memory_order_relaxed);
    record->version = binding->version;
    atomic_store_explicit(&record->rows, binding->rows, memory_order_relaxed);
    record->rows_per_ticket = binding->rows_per_ticket;
    atomic_store_explicit(&record->tickets, binding->tickets, memory_order_relaxed);
    memset(rf_slot_base(ring, slot) + ring->geometry.marks_at, RF_ROW_OK, binding->rows);
    if (ring->binder->holds[slot].blamed)
        rf_forget_deaths(ring->binder, slot);
}

static uint32_t add(uint32_t some, uint32_t more)
{
    return some > RF_ALL - more ? RF_ALL : some + more;
}

static void write_binding(const struct rf_ring *ring, struct rf_binding *binding, uint64_t batch,
                          const struct rf_planned *planned)
{
    uint32_t per_ticket = rows_per_ticket(ring, planned->rows);
    binding->batch = batch;
    binding->epoch = planned->epoch;
    binding->version = planned->version;
    binding->rows = planned->rows;
    binding->rows_per_ticket = per_ticket;
    binding->tickets = (planned->rows + per_ticket - 1) / per_ticket;
    binding->stream = planned->stream;
}

/* Give the next planned batch a slot, and say how many workers to wake for it; false where that
 * cannot be now. */
static bool bind_batch(struct rf_ring *ring, uint32_t *wakes)
{
    struct rf_binder *binder = ring->binder;
    struct rf_control *control = ring->control;
    uint64_t read = atomic_load_explicit(&binder->plan_read, memory_order_relaxed);
    struct rf_planned *planned = &binder->planned[read % binder->capacity];
    uint64_t batch = rf_bound(ring);
    uint32_t slot = choose_slot(binder, planned), stream = planned->stream;
    if (planned->source != slot && !rf_keep_indices(ring, slot)) {
        binder->free_count += 1;
        return false;
    }
    write_binding(ring, &binder->bindings[slot], batch, planned);
    uint32_t tickets = binder->bindings[slot].tickets;
    if (!write_indices(ring, slot, read, planned)) {
        rf_note_damage(ring, RF_DAMAGED_INDICES, slot, RF_MAX_CELLS);
        return false;
    }
    write_record(ring, slot);
    rf_set_state(ring, slot, RF_SLOT_BOUND);
    binder->slot_of[batch % ring->geometry.slots] = slot;
    atomic_store_explicit(&ring->slot_of[batch % ring->geometry.slots],
                          (uint64_t)tickets << 32 | slot, memory_order_relaxed);
    /* B: release, pairs with C in rf_claim_next(). */
    for (uint32_t cell = 0; cell < tickets; cell++)
        atomic_store_explicit(&rf_cell_of(ring, slot, cell)->word,
                              rf_word(batch * ring->geometry.cells + cell, 0, stream, RF_AVAIL),
                              memory_order_release);
    /* Its place in the window is free; before `bound`, so that the thread that has taken
     * all finds room. */
    if (read == atomic_load_explicit(&binder->plan_bound, memory_order_relaxed))
        /* Pairs with rf_plan_room(). */
        atomic_store_explicit(&binder->plan_bound, read + 1, memory_order_release);
    /* Pairs with rf_bound(). */
    atomic_store_explicit(&binder->bound, batch + 1, memory_order_release);
    atomic_store_explicit(&control->bound, batch + 1, memory_order_seq_cst);
    /* Read under the lock. */
    atomic_store_explicit(&binder->plan_read, read + 1, memory_order_relaxed);
    *wakes = add(*wakes, stream ? RF_ALL : tickets); /* a sleeper of another stream is no help */
    return true;
}

/* Everything that can be done under the lock; returns how many workers to wake. */
static uint32_t bind_all(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    uint32_t wakes = 0;
    collect_released(ring);
    if (binder->draining)
        collect_drained(ring);
    while (binder->free_count && !rf_is_damaged(ring) &&
           atomic_load_explicit(&binder->plan_write, memory_order_acquire) !=
               atomic_load_explicit(&binder->plan_read, memory_order_relaxed))
        if (!bind_batch(ring, &wakes))
            break;
    return wakes;
}

void rf_unlock(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    uint32_t wakes = 0;
    do {
        wakes = add(wakes, bind_all(ring));
        atomic_store_explicit(&binder->lock, 0, memory_order_seq_cst);
    } while (atomic_load_explicit(&binder->released, memory_order_seq_cst) != RF_NO_SLOT &&
             rf_try_lock(binder));
    if (wakes)
        rf_wake_workers(ring, wakes);
}

void rf_bind(struct rf_ring *ring)
{
    if (rf_try_lock(ring->binder))
        rf_unlock(ring);
}

/* ---- holds ---- */

void rf_hold(struct rf_ring *ring, uint32_t slot)
{
    /* We hold it already. */
    atomic_fetch_add_explicit(&ring->binder->holds[slot].count, 1, memory_order_relaxed);
}

static void release_slot(struct rf_ring *ring, uint32_t slot)
{
    struct rf_binder *binder = ring->binder;
    struct rf_hold *hold = &binder->holds[slot];
    rf_set_state(ring, slot, RF_SLOT_FREE);
    uint32_t top = atomic_load_explicit(&binder->released, memory_order_relaxed);
    do
        atomic_store_explicit(&hold->next, top, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&binder->released, &top, slot,
                                                  memory_order_seq_cst,
                                                  /* R: pairs with F in collect_released(). */
                                                  memory_order_relaxed));
    rf_bind(ring);
    /* After the attempt to bind, also when the lock was busy: the sleeper looks again. */
    rf_wake_consumer(ring);
}

void rf_drop(struct rf_ring *ring, uint32_t slot)
{
    if (rf_is_copy(ring))
        return;
    /* acq_rel: the last to drop must come after every other view's last access. */
    if (atomic_fetch_sub_explicit(&ring->binder->holds[slot].count, 1, memory_order_acq_rel) == 1)
        release_slot(ring, slot);
}
