/* Slots and their states; how many are open, and how many workers there are, while it runs; what
 * observers are told. */
#include "internal.h"

/* ---- slots ---- */

void rf_set_state(struct rf_ring *ring, uint32_t slot, enum rf_slot_state state)
{
    atomic_store_explicit(&ring->binder->holds[slot].state, state, memory_order_relaxed);
    if (RF_STATISTICS)
        atomic_store_explicit(&ring->records[slot].state, state, memory_order_relaxed);
}

enum rf_slot_state rf_slot_state(const struct rf_ring *ring, uint32_t slot)
{
    return (enum rf_slot_state)atomic_load_explicit(&ring->binder->holds[slot].state,
                                                    memory_order_relaxed);
}

uint32_t rf_open_slots(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->open, memory_order_relaxed);
}

void rf_set_free(struct rf_ring *ring, uint32_t slot)
{
    struct rf_binder *binder = ring->binder;
    bool open = slot < rf_open_slots(ring);
    rf_set_state(ring, slot, open ? RF_SLOT_FREE : RF_SLOT_PARKED);
    if (open)
        binder->free_slots[binder->free_count++] = slot;
}

void rf_set_open(struct rf_ring *ring, uint32_t slots)
{
    struct rf_binder *binder = ring->binder;
    rf_lock(binder);
    uint32_t before = binder->free_count;
    slots = slots < 1 ? 1 : slots > ring->geometry.slots ? ring->geometry.slots : slots;
    atomic_store_explicit(&binder->open, slots, memory_order_relaxed);
    atomic_store_explicit(&ring->control->open_slots, slots, memory_order_relaxed);
    binder->free_count = 0;
    for (uint32_t place = 0; place < before; place++)
        rf_set_free(ring, binder->free_slots[place]); /* at or below the place that is read */
    for (uint32_t slot = 0; slot < slots; slot++)
        if (rf_slot_state(ring, slot) == RF_SLOT_PARKED)
            rf_set_free(ring, slot);
    rf_unlock(ring);
}

/* ---- what is left to be filled ---- */

bool rf_has_room(const struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        if (state == RF_SLOT_FREE || state == RF_SLOT_BOUND)
            return true;
    }
    return false;
}

bool rf_leaves_room(const struct rf_ring *ring, bool lets_go)
{
    uint32_t room = 0, held = 0;
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        room += state == RF_SLOT_FREE || state == RF_SLOT_BOUND;
        held += state == RF_SLOT_HELD;
        if (room > 1)
            return true;
    }
    return lets_go && held == 1;
}

bool rf_all_held(const struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        if (rf_slot_state(ring, slot) != RF_SLOT_HELD &&
            rf_slot_state(ring, slot) != RF_SLOT_PARKED)
            return false;
    return true; /* the first is never parked */
}

/* ---- the crew, and what observers see ---- */

void rf_set_worker_count(struct rf_ring *ring, uint32_t workers)
{
    workers = workers < 1 ? 1 : workers > ring->geometry.workers ? ring->geometry.workers : workers;
    atomic_store_explicit(&ring->binder->crew, workers, memory_order_relaxed);
}

void rf_set_pace(struct rf_ring *ring, int64_t ticket_ns, uint32_t ticket_rows, uint32_t more)
{
    struct rf_binder *binder = ring->binder;
    rf_lock(binder);
    binder->ticket_ns = ticket_ns > 0 ? (uint64_t)ticket_ns : RF_TICKET_NS;
    binder->ticket_rows = ticket_rows;
    binder->more = more;
    rf_unlock(ring);
}

void rf_retire(struct rf_ring *ring, uint32_t worker)
{
    atomic_store_explicit(&ring->workers[worker].leave, 1, memory_order_seq_cst);
    rf_wake_workers(ring, RF_ALL);
}

void rf_note_pid(struct rf_ring *ring, uint32_t worker, uint32_t pid)
{
    atomic_store_explicit(&ring->workers[worker].pid, pid, memory_order_relaxed);
}

void rf_note_rank(struct rf_ring *ring, uint32_t rank, uint32_t world_size)
{
    atomic_store_explicit(&ring->control->rank, rank, memory_order_relaxed);
    atomic_store_explicit(&ring->control->world_size, world_size, memory_order_relaxed);
}

void rf_note_stall(struct rf_ring *ring, int64_t stall_ns)
{
    rf_lock_taking(ring);
    if (RF_STATISTICS)
        atomic_store_explicit(&ring->control->wait_ns, 0, memory_order_relaxed);
    rf_count(&ring->binder->ledger.stall_ns, &ring->control->ledger.stall_ns, (uint64_t)stall_ns);
    ring->binder->stalled_ns += (uint64_t)stall_ns;
    rf_unlock_taking(ring);
}

void rf_note_undelivered(struct rf_ring *ring, uint32_t batches, uint32_t samples)
{
    struct rf_ledger *own = &ring->binder->ledger, *shown = &ring->control->ledger;
    rf_lock_taking(ring);
    rf_count(&own->undelivered_batches, &shown->undelivered_batches, batches);
    rf_count(&own->undelivered_samples, &shown->undelivered_samples, samples);
    rf_unlock_taking(ring);
}
