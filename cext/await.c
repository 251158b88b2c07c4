/* The consumer waits for its head batch or for a slot, in any of its threads. See take.c. */
#include "internal.h"
#include "os/wait.h"

/* Of a sleep; FOR_SLOT: only while the head batch has no slot. */
enum purpose { FOR_HEAD, FOR_SLOT, FOR_ROOM };

/* Whether something has come that the consumer would sleep for: in `place`, or, if it is NULL,
 * in a slot. */
static bool has_news(struct rf_ring *ring, const struct rf_cell *place, enum purpose purpose)
{
    if (atomic_load_explicit(&ring->binder->alarm, memory_order_seq_cst) ||
        atomic_load_explicit(&ring->binder->stop, memory_order_seq_cst))
        return true;
    if (place)
        return rf_word_final(atomic_load_explicit(&place->word, memory_order_seq_cst));
    rf_bind(ring);
    return rf_is_bound(ring) || (purpose == FOR_ROOM && rf_has_room(ring));
}

/* Sleep once, until the next look would differ; the take lock is given back meanwhile. What comes
 * before our announcement, has_news() sees; what comes after it bumps news_seq, on which we sleep.
 * Where several threads sleep, the last that was announced is told of, all are woken, and what they
 * have announced stands until the last one wakes. */
static int sleep_once(struct rf_ring *ring, enum purpose purpose, int64_t deadline_ns)
{
    struct rf_control *control = ring->control;
    struct rf_binder *binder = ring->binder;
    uint64_t head = rf_head(ring);
    uint32_t cell = 0;
    bool bound = rf_is_bound(ring);
    struct rf_cell *place = bound ? rf_unfinished(ring, head, &cell) : NULL;
    if (bound && (!place || purpose != FOR_HEAD))
        return 0;
    if (RF_STATISTICS && purpose != FOR_ROOM &&
        !atomic_load_explicit(&control->wait_ns, memory_order_relaxed)) /* not a later slice */
        atomic_store_explicit(&control->wait_ns, (uint64_t)rf_now_ns(), memory_order_relaxed);
    uint64_t wait = bound ? head * ring->geometry.cells + cell + 1 : RF_WAIT_FREE;
    atomic_store_explicit(&control->consumer_wait, wait, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(&control->news_seq, memory_order_seq_cst);
    if (place &&
        rf_word_state(atomic_load_explicit(&place->word, memory_order_relaxed)) == RF_AVAIL)
        rf_wake_claimers(ring);
    binder->asleep += 1;
    int slept = 0;
    if (!has_news(ring, place, purpose)) {
        rf_unlock_taking(ring);
        slept = rf_futex_wait(&control->news_seq, seen, deadline_ns);
        rf_lock_taking(ring);
    }
    binder->asleep -= 1;
    if (!binder->asleep)
        atomic_store_explicit(&control->consumer_wait, RF_WAIT_NONE, memory_order_relaxed);
    return slept;
}

/* A thread that has waited, and goes, wakes those that still wait: what they have announced
 * may be final. */
static void leave_wait(struct rf_ring *ring)
{
    bool others = ring->binder->asleep > 0;
    rf_unlock_taking(ring);
    if (others)
        rf_wake_consumer(ring);
}

static enum rf_answer look_in(struct rf_ring *ring, int64_t epoch_id)
{
    return epoch_id == ring->binder->epoch_id ? rf_look_now(ring) : RF_STALE;
}

/* Look again, for as long as that is faster than a sleep. Without the lock. */
static bool look_again(struct rf_ring *ring, struct rf_waiter *waiter)
{
    rf_unlock_taking(ring);
    bool again = rf_look_again(ring, waiter);
    rf_lock_taking(ring);
    return again;
}

static enum rf_answer wait_head(struct rf_ring *ring, int64_t epoch_id, int64_t deadline_ns,
                                struct rf_waiter *waiter)
{
    /* Sleeps only after a look at which the lock has not been given back since. */
    bool awake = true;
    for (bool first = true;; first = false) {
        enum rf_answer answer = look_in(ring, epoch_id);
        if (answer != RF_PENDING && answer != RF_HELD)
            return answer;
        if (answer == RF_PENDING && first)
            rf_wake_another(ring);
        if (answer == RF_PENDING && awake)
            awake = look_again(ring, waiter);
        else if (sleep_once(ring, FOR_HEAD, deadline_ns)) /* a signal, or the deadline */
            return look_in(ring, epoch_id);
    }
}

enum rf_answer rf_wait_head(struct rf_ring *ring, int64_t epoch_id, int64_t deadline_ns)
{
    if (rf_is_copy(ring))
        return RF_STOPPED;
    struct rf_waiter waiter = rf_begin_wait(ring, false);
    rf_lock_taking(ring);
    enum rf_answer answer = wait_head(ring, epoch_id, deadline_ns, &waiter);
    if (answer == RF_PENDING)
        ring->binder->waited_ns += rf_now_ns() - waiter.began_ns;
    leave_wait(ring);
    return answer;
}

enum rf_answer rf_wait_slot(struct rf_ring *ring, int64_t deadline_ns)
{
    if (rf_is_copy(ring))
        return RF_STOPPED;
    rf_lock_taking(ring);
    enum rf_answer answer = rf_look_now(ring);
    while (answer == RF_HELD) {
        int slept = sleep_once(ring, FOR_SLOT, deadline_ns);
        answer = rf_look_now(ring);
        if (slept) /* a signal, or the deadline */
            break;
    }
    leave_wait(ring);
    return answer;
}

/* Relaxed: what woke us has been seen in has_news(). */
static bool is_disturbed(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->stop, memory_order_relaxed) ||
           atomic_load_explicit(&ring->binder->alarm, memory_order_relaxed);
}

bool rf_wait_room(struct rf_ring *ring, int64_t deadline_ns)
{
    int slept = 0; /* a signal, or the deadline, ends it */
    rf_lock_taking(ring);
    while (!slept && !rf_has_room(ring) && !is_disturbed(ring))
        slept = sleep_once(ring, FOR_ROOM, deadline_ns);
    leave_wait(ring);
    return !slept;
}
