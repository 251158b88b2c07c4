/* What a forked child has of its parent's rings: private copies of the control block and of each
 * slot that is held, as they were at the fork, at the same addresses; no access to any other slot.
 * The parent may release and refill a slot right after the fork, so that the copies are made before
 * it, and moved into place in the child.
 *
 * The thread that forks keeps the list of its own copies: forks of several threads do not wait for
 * each other, and no lock is held during one. */
#include "internal.h"
#include "os/pages.h"

#include <pthread.h>
#include <stdlib.h>

struct kept {
    bool held;
    void *copy; /* NULL without memory: the child then has no access */
};

struct snapshot { /* of one ring, for one fork */
    struct snapshot *next;
    struct rf_ring *ring;
    void *control;
    struct kept slots[];
};

/* Of the list of consumers: held for a look at each slot, never while copying. */
static _Atomic uint32_t lock;
static struct rf_ring *consumers;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;
static _Thread_local struct snapshot *snapshots; /* for the fork that this thread is in */

static void lock_consumers(void)
{
    for (unsigned attempt = 0; atomic_exchange_explicit(&lock, 1, memory_order_acquire); attempt++)
        rf_yield(attempt);
}

static void unlock_consumers(void) { atomic_store_explicit(&lock, 0, memory_order_release); }

/* ---- before a fork ---- */

/* One more reference or hold, where there is one; what has none left is about to be destroyed,
 * or filled again. */
static bool add_to(_Atomic uint32_t *count)
{
    uint32_t seen = atomic_load_explicit(count, memory_order_relaxed);
    while (seen) /* S: acquire, pairs with H in rf_take(): the rows of the batch are visible */
        if (atomic_compare_exchange_weak_explicit(count, &seen, seen + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* Keep the ring, and all its slots that are held, as they are until the fork is over. */
static void keep(struct rf_ring *ring)
{
    uint32_t slots = ring->geometry.slots;
    struct snapshot *snapshot = calloc(1, sizeof *snapshot + slots * sizeof snapshot->slots[0]);
    if (!snapshot || !add_to(&ring->references)) {
        free(snapshot); /* without it the child has no access to the ring */
        return;
    }
    for (uint32_t slot = 0; slot < slots; slot++)
        snapshot->slots[slot].held = add_to(&ring->binder->holds[slot].count);
    snapshot->ring = ring;
    snapshot->next = snapshots;
    snapshots = snapshot;
}

static void before_fork(void)
{
    lock_consumers();
    for (struct rf_ring *ring = consumers; ring; ring = ring->binder->next)
        keep(ring);
    unlock_consumers();
    for (struct snapshot *snapshot = snapshots; snapshot; snapshot = snapshot->next) {
        struct rf_ring *ring = snapshot->ring;
        snapshot->control = rf_copy_pages(ring->control, ring->control_size, true);
        for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
            if (snapshot->slots[slot].held)
                snapshot->slots[slot].copy =
                    rf_copy_pages(rf_slot_base(ring, slot), ring->geometry.slot_size, false);
    }
}

/* ---- after it ---- */

static void let_go(struct snapshot *snapshot)
{
    struct rf_ring *ring = snapshot->ring;
    rf_drop_copy(snapshot->control, ring->control, ring->control_size);
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        if (!snapshot->slots[slot].held)
            continue;
        rf_drop_copy(snapshot->slots[slot].copy, rf_slot_base(ring, slot),
                     ring->geometry.slot_size);
        rf_drop(ring, slot);
    }
    rf_unreference(ring);
    free(snapshot);
}

static void after_fork_in_parent(void)
{
    struct snapshot *next = snapshots;
    snapshots = NULL;
    for (struct snapshot *snapshot = next; snapshot; snapshot = next) {
        next = snapshot->next;
        let_go(snapshot);
    }
}

/* Take what is the parent's from the child, also of a ring that another thread has made since
 * the copies were. */
static void forbid(struct rf_ring *ring)
{
    if (!rf_forbid_pages(ring->control, ring->control_size) ||
        !rf_forbid_pages(ring->slots, ring->slots_size))
        abort(); /* rather than write into the parent's batches */
}

/* Put the copies in its place. */
static void replace(const struct snapshot *snapshot)
{
    struct rf_ring *ring = snapshot->ring;
    rf_move_copy(snapshot->control, ring->control, ring->control_size);
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        rf_move_copy(snapshot->slots[slot].copy, rf_slot_base(ring, slot),
                     ring->geometry.slot_size);
}

static void after_fork_in_child(void)
{
    for (struct rf_ring *ring = consumers; ring; ring = ring->binder->next)
        forbid(ring);
    consumers = NULL; /* what this process forks in turn inherits the copies, which are its own */
    unlock_consumers();
    while (snapshots) {
        struct snapshot *snapshot = snapshots;
        snapshots = snapshot->next;
        replace(snapshot);
        free(snapshot);
    }
}

/* ---- which rings there are ---- */

static void start_watching(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void rf_enlist(struct rf_ring *ring)
{
    pthread_once(&watch_forks, start_watching);
    lock_consumers();
    ring->binder->next = consumers;
    consumers = ring;
    unlock_consumers();
}

void rf_delist(struct rf_ring *ring)
{
    lock_consumers();
    struct rf_ring **place = &consumers;
    while (*place && *place != ring)
        place = &(*place)->binder->next;
    if (*place)
        *place = ring->binder->next;
    unlock_consumers();
}
