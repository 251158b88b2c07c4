/* The consumer plans batches: what comes next, in a queue of its own. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the indices of batches without a slot; one batch may need more. */
#define WINDOW_SIZE (UINT64_C(1) << 20)

/* ---- a consumer ---- */

static uint32_t window_of(uint32_t capacity, uint32_t rows)
{
    uint64_t window = WINDOW_SIZE / sizeof(int64_t) / rows;
    return window < 1 ? 1 : window < capacity ? (uint32_t)window : capacity;
}

int rf_become_consumer(struct rf_ring *ring, uint32_t capacity, uint32_t max_attempts)
{
    uint32_t slots = ring->geometry.slots;
    struct rf_binder *binder = calloc(1, sizeof *binder);
    if (!binder)
        return ENOMEM;
    ring->binder = binder; /* freed with the ring, also when half made */
    binder->capacity = capacity;
    binder->window = window_of(capacity, ring->geometry.rows);
    binder->max_attempts = max_attempts;
    binder->cpus = rf_cpus();
    binder->ticket_ns = RF_TICKET_NS;
    binder->released = RF_NO_SLOT;
    atomic_store_explicit(&binder->border, RF_NO_BORDER, memory_order_relaxed);
    binder->holds = calloc(slots, sizeof *binder->holds);
    binder->free_slots = calloc(slots, sizeof *binder->free_slots);
    binder->bindings = calloc(slots, sizeof *binder->bindings);
    binder->slot_of = calloc(slots, sizeof *binder->slot_of);
    binder->planned = calloc(capacity, sizeof *binder->planned);
    binder->indices = calloc(1, rf_window_size(capacity, ring->geometry.rows));
    if (!binder->holds || !binder->free_slots || !binder->bindings || !binder->slot_of ||
        !binder->planned || !binder->indices)
        return ENOMEM;
    atomic_store_explicit(&binder->open, slots, memory_order_relaxed);
    atomic_store_explicit(&ring->control->open_slots, slots, memory_order_relaxed);
    atomic_store_explicit(&binder->crew, ring->geometry.workers, memory_order_relaxed);
    while (binder->free_count < slots) { /* the lowest slot is on top */
        binder->free_slots[binder->free_count] = slots - 1 - binder->free_count;
        binder->free_count += 1;
    }
    rf_enlist(ring);
    return 0;
}

/* ---- planning ---- */

uint64_t rf_window_size(uint32_t capacity, uint32_t rows)
{
    return (uint64_t)window_of(capacity, rows) * rows * sizeof(int64_t);
}

uint32_t rf_planned(const struct rf_ring *ring)
{
    const struct rf_binder *binder = ring->binder;
    return (uint32_t)(atomic_load_explicit(&binder->plan_write, memory_order_relaxed) -
                      atomic_load_explicit(&binder->plan_taken, memory_order_relaxed));
}

uint32_t rf_left(const struct rf_ring *ring)
{
    const struct rf_binder *binder = ring->binder;
    uint64_t border = atomic_load_explicit(&binder->border, memory_order_relaxed);
    return border == RF_NO_BORDER ? rf_planned(ring) : (uint32_t)(border - rf_plan_taken(ring));
}

uint64_t rf_plan_taken(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->plan_taken, memory_order_relaxed);
}

bool rf_is_planned(const struct rf_ring *ring) { return rf_planned(ring) != 0; }

uint32_t rf_plan_room(const struct rf_ring *ring)
{
    const struct rf_binder *binder = ring->binder;
    /* Acquire: the place in the window has been read. */
    uint32_t slotless = (uint32_t)(atomic_load_explicit(&binder->plan_write, memory_order_relaxed) -
                                   atomic_load_explicit(&binder->plan_bound, memory_order_acquire));
    uint32_t room = binder->capacity - rf_planned(ring), window = binder->window - slotless;
    return room < window ? room : window;
}

static void plan_batch(struct rf_ring *ring, const int64_t *indices, uint32_t rows, uint64_t epoch,
                       uint32_t version)
{
    struct rf_binder *binder = ring->binder;
    uint64_t write = atomic_load_explicit(&binder->plan_write, memory_order_relaxed);
    uint64_t place = write % binder->capacity;
    binder->planned[place] = (struct rf_planned){.epoch = epoch,
                                                 .rows = rows,
                                                 .version = version,
                                                 .stream = binder->stream,
                                                 .source = RF_NO_SLOT};
    memcpy(&binder->indices[write % binder->window * ring->geometry.rows], indices,
           rows * sizeof *indices);
    /* Pairs with bind_all(). */
    atomic_store_explicit(&binder->plan_write, write + 1, memory_order_release);
}

bool rf_plan(struct rf_ring *ring, const int64_t *indices, uint32_t rows, uint64_t epoch,
             uint32_t version)
{
    rf_lock_taking(ring);
    bool fits = rows > 0 && rows <= ring->geometry.rows && rf_plan_room(ring) > 0;
    if (fits)
        plan_batch(ring, indices, rows, epoch, version);
    rf_unlock_taking(ring);
    return fits;
}

void rf_set_stream(struct rf_ring *ring, uint32_t stream) { ring->binder->stream = stream; }
