/* The consumer breaks off, fences, alarms and stops. */
#include "internal.h"

#include <stdlib.h>

/* Cancel all that is bound: workers in it look up, and its slots drain. Under both locks. */
static void drain_bound(struct rf_ring *ring)
{
    struct rf_control *control = ring->control;
    struct rf_binder *binder = ring->binder;
    uint64_t bound = rf_bound(ring);
    binder->cancel_upto = bound * ring->geometry.cells;
    atomic_store_explicit(&control->cancel_upto, binder->cancel_upto, memory_order_seq_cst);
    for (uint64_t batch = rf_head(ring); batch < bound; batch++) {
        rf_set_state(ring, rf_slot_of(ring, batch), RF_SLOT_DRAINING);
        binder->draining += 1;
    }
    atomic_store_explicit(&binder->head, bound, memory_order_relaxed);
    atomic_store_explicit(&control->head, bound, memory_order_seq_cst);
}

/* What threads that wait have announced is cancelled, and what workers hold: they look again. */
static void wake_waiters(struct rf_ring *ring)
{
    bool waits = ring->binder->asleep > 0;
    rf_unlock_taking(ring);
    rf_tell_holders(ring);
    if (waits)
        rf_wake_consumer(ring);
}

static void drop_plan(struct rf_binder *binder)
{
    uint64_t write = atomic_load_explicit(&binder->plan_write, memory_order_relaxed);
    for (uint32_t place = 0; place < binder->capacity; place++) {
        free(binder->planned[place].saved);
        binder->planned[place].saved = NULL;
    }
    atomic_store_explicit(&binder->plan_read, write, memory_order_relaxed);
    atomic_store_explicit(&binder->plan_bound, write, memory_order_relaxed);
    atomic_store_explicit(&binder->plan_taken, write, memory_order_relaxed);
}

void rf_cancel(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    if (rf_is_copy(ring))
        return;
    rf_lock_taking(ring);
    rf_lock(binder);
    drain_bound(ring);
    drop_plan(binder);
    rf_unlock(ring); /* sweeps, and collects the slots that no worker is in */
    binder->epoch_id = binder->due_ns = 0;
    binder->low_water = 0;
    atomic_store_explicit(&binder->border, RF_NO_BORDER, memory_order_relaxed);
    wake_waiters(ring);
}

void rf_requeue(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    if (rf_is_copy(ring))
        return;
    rf_lock_taking(ring);
    rf_lock(binder);
    drain_bound(ring);
    atomic_store_explicit(&binder->plan_read,
                          atomic_load_explicit(&binder->plan_taken, memory_order_relaxed),
                          memory_order_relaxed);
    rf_unlock(ring); /* binds them again, as far as slots have drained */
    wake_waiters(ring);
}

void rf_alarm(struct rf_ring *ring)
{
    if (rf_is_copy(ring))
        return;
    atomic_store_explicit(&ring->binder->alarm, 1, memory_order_seq_cst);
    rf_wake_consumer(ring);
}

void rf_stop(struct rf_ring *ring)
{
    if (rf_is_copy(ring))
        return;
    atomic_store_explicit(&ring->binder->stop, 1, memory_order_seq_cst);
    atomic_store_explicit(&ring->control->stop, 1, memory_order_seq_cst);
    rf_wake_workers(ring, RF_ALL);
    rf_tell_holders(ring);
    rf_wake_consumer(ring);
}
