/* Which sleepers a change wakes, and which waiters look again before they sleep. */
#include "internal.h"

/* A waiter keeps a processor that another thread wants no longer than this. */
#define KEEP_MOST_NS 4000
#define WANTED_NS 1500 /* a yield takes that long only where another thread ran meanwhile */
#define OFTEN 4        /* batches within which a woken worker runs */
#define RARELY 1024    /* batches among which a wake in vain is lost */

/* ---- workers ---- */

static uint32_t count_asleep(const struct rf_ring *ring)
{
    uint32_t asleep = 0;
    for (uint32_t word = 0; word * 64 < ring->geometry.ids; word++)
        asleep += (uint32_t)__builtin_popcountll(
            atomic_load_explicit(&ring->control->sleepers[word], memory_order_seq_cst));
    return asleep;
}

/* Tickets that are bound and AVAIL. Relaxed: what another thread is binding right now, it wakes
 * workers for itself. */
static uint32_t count_unclaimed(const struct rf_ring *ring)
{
    uint32_t unclaimed = 0;
    for (uint64_t batch = rf_head(ring), bound = rf_bound(ring); batch < bound; batch++) {
        uint32_t slot = rf_slot_of(ring, batch);
        for (uint32_t cell = 0; cell < rf_binding_of(ring, slot)->tickets; cell++) {
            const struct rf_cell *place = rf_cell_of(ring, slot, cell);
            uint64_t word = atomic_load_explicit(&place->word, memory_order_relaxed);
            unclaimed += rf_word_state(word) == RF_AVAIL;
        }
    }
    return unclaimed;
}

static uint32_t pace_of(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->control->pace, memory_order_relaxed);
}

/* Have every worker that is about to sleep look once more; returns how many sleep, or
 * are about to. */
static uint32_t bump_work(struct rf_ring *ring)
{
    atomic_fetch_add_explicit(&ring->control->work_seq, 1, memory_order_seq_cst);
    return count_asleep(ring);
}

void rf_wake_workers(struct rf_ring *ring, uint32_t count)
{
    const struct rf_binder *binder = ring->binder;
    uint32_t asleep = bump_work(ring);
    if (count < RF_ALL && pace_of(ring)) {
        if (asleep < atomic_load_explicit(&binder->crew, memory_order_relaxed))
            return;
        count = count < binder->cpus ? count : binder->cpus;
    }
    if (asleep)
        rf_futex_wake(&ring->control->work_seq, (int)count);
}

void rf_wake_claimers(struct rf_ring *ring)
{
    /* A sleeper of another stream is no help. */
    uint32_t count = rf_stream_of_head(ring) ? RF_ALL : count_unclaimed(ring);
    if (bump_work(ring) && count)
        rf_futex_wake(&ring->control->work_seq, (int)count);
}

void rf_wake_another(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    uint32_t pace = pace_of(ring);
    uint64_t head = rf_head(ring);
    if (!pace || head - binder->last_wake_head < (pace == RF_PACE_FASTEST ? RARELY : OFTEN))
        return;
    uint32_t asleep = count_asleep(ring);
    if (!asleep ||
        atomic_load_explicit(&binder->crew, memory_order_relaxed) >= asleep + binder->cpus ||
        !count_unclaimed(ring))
        return;
    binder->last_wake_head = head;
    rf_futex_wake(&ring->control->work_seq, 1);
}

void rf_tell_holders(struct rf_ring *ring)
{
    /* K: release, pairs with L in rf_breaks(). */
    atomic_fetch_add_explicit(&ring->control->break_seq, 1, memory_order_release);
    rf_futex_wake(&ring->control->break_seq, RF_ALL);
}

/* ---- looking again ---- */

int64_t rf_keep_after(int64_t keep_ns, int64_t yield_ns)
{
    if (yield_ns >= WANTED_NS)
        return 0;
    if (keep_ns < RF_KEEP_NS)
        return RF_KEEP_NS;
    return keep_ns < KEEP_MOST_NS / 2 ? 2 * keep_ns : KEEP_MOST_NS;
}

struct rf_waiter rf_begin_wait(const struct rf_ring *ring, bool spare)
{
    int64_t now_ns = rf_now_ns(),
            keep_ns = atomic_load_explicit(&ring->keep_ns, memory_order_relaxed);
    return (struct rf_waiter){.began_ns = now_ns, .yield_ns = now_ns + keep_ns, .spare = spare};
}

/* Let others run. Returns when it is time for the next yield. */
static int64_t yield_cpu(struct rf_ring *ring, int64_t keep_ns, int64_t now_ns)
{
    rf_yield(0);
    int64_t after_ns = rf_now_ns();
    keep_ns = rf_keep_after(keep_ns, after_ns - now_ns);
    atomic_store_explicit(&ring->keep_ns, keep_ns, memory_order_relaxed);
    return after_ns + keep_ns;
}

bool rf_look_again(struct rf_ring *ring, struct rf_waiter *waiter)
{
    uint32_t pace = pace_of(ring);
    int64_t now_ns = pace ? rf_now_ns() : 0;
    if (!pace || now_ns - waiter->began_ns >= ring->geometry.spin_ns)
        return false;
    if (now_ns < waiter->yield_ns) {
        rf_pause();
        return true;
    }
    int64_t keep_ns = atomic_load_explicit(&ring->keep_ns, memory_order_relaxed);
    if (waiter->spare && pace == RF_PACE_FASTEST &&
        keep_ns == 0) { /* one fewer does it, and leaves a processor to others */
        atomic_store_explicit(&ring->keep_ns, RF_KEEP_NS, memory_order_relaxed);
        return false;
    }
    /* The thread that we wait for may need this very processor. */
    waiter->yield_ns = yield_cpu(ring, keep_ns, now_ns);
    return true;
}

/* ---- the consumer ---- */

void rf_wake_consumer(struct rf_ring *ring)
{
    struct rf_control *control = ring->control;
    atomic_fetch_add_explicit(&control->news_seq, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&control->consumer_wait, memory_order_seq_cst) != RF_WAIT_NONE)
        rf_futex_wake(&control->news_seq, RF_ALL);
}
