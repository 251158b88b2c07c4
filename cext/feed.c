#define _GNU_SOURCE
#include "feed.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "binder.h"

enum { TOUCHED = -1, UNBEGUN = -2 };

struct rf_feed {
    const struct rf_asks *asks;
    void *_Atomic owner;
    uint64_t number;
    _Atomic uint32_t references;
    uint32_t generation; /* of forks, when it was made */
    struct rf_feed *next;
    uint32_t rows, parts;

    _Atomic uint32_t recalled; /* whoever is inside leaves soon */
    pthread_mutex_t lock;
    /* Under the lock. */
    struct rf_ring *ring;
    int64_t turn, timeout_ns, waited_ns;
    uint32_t lent, left; /* batches */

    _Atomic int64_t untouched; /* the newest turn while it has given nothing, or TOUCHED or UNBEGUN */
    _Atomic int64_t step;      /* at which its iteration will ask again: one more with each error */

    _Atomic uint64_t batches, samples; /* written under the lock */
    _Atomic int64_t stall_ns;
    struct rf_part part[];
};

/* ---- feeds by number ---- */

static pthread_mutex_t known = PTHREAD_MUTEX_INITIALIZER; /* held for a look, never while waiting */
static struct rf_feed *first;
static uint64_t last_number;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;
static _Atomic uint32_t exiting, asking;

static void lock_known(void) { pthread_mutex_lock(&known); }
static void unlock_known(void) { pthread_mutex_unlock(&known); }
/* A child must not inherit it locked by a thread that it does not have. */
static void start_watching(void) { pthread_atfork(lock_known, unlock_known, unlock_known); }

static void unreference(struct rf_feed *feed)
{
    if (atomic_fetch_sub_explicit(&feed->references, 1, memory_order_acq_rel) != 1)
        return;
    if (feed->ring)
        rf_unreference(feed->ring);
    pthread_mutex_destroy(&feed->lock);
    free(feed);
}

static struct rf_feed *find(uint64_t number)
{
    lock_known();
    struct rf_feed *feed = first;
    while (feed && feed->number != number)
        feed = feed->next;
    if (feed)
        atomic_fetch_add_explicit(&feed->references, 1, memory_order_relaxed);
    unlock_known();
    return feed;
}

static struct rf_feed *make(const struct rf_asks *asks, void *owner, uint32_t rows, uint32_t parts)
{
    pthread_once(&watch_forks, start_watching);
    struct rf_feed *feed = calloc(1, sizeof *feed + parts * sizeof feed->part[0]);
    if (!feed)
        return NULL;
    pthread_mutex_init(&feed->lock, NULL);
    feed->asks = asks;
    atomic_init(&feed->owner, owner);
    atomic_init(&feed->references, 1);
    atomic_init(&feed->untouched, UNBEGUN);
    feed->generation = rf_fork_generation();
    feed->rows = rows;
    feed->parts = parts;
    lock_known();
    feed->number = ++last_number;
    feed->next = first;
    first = feed;
    unlock_known();
    return feed;
}

static void end(struct rf_feed *feed)
{
    lock_known();
    struct rf_feed **place = &first;
    while (*place != feed)
        place = &(*place)->next;
    *place = feed->next;
    unlock_known();
    atomic_store_explicit(&feed->owner, NULL, memory_order_seq_cst);
    unreference(feed);
}

static uint64_t number_of(const struct rf_feed *feed) { return feed->number; }
static void *owner_of(const struct rf_feed *feed) { return atomic_load_explicit(&feed->owner, memory_order_seq_cst); }
static struct rf_part *part_of(struct rf_feed *feed, uint32_t part) { return &feed->part[part]; }

/* ---- lending ---- */

/* Whether this is a forked child's copy, whose lock may never be free. */
static bool is_copy(const struct rf_feed *feed) { return feed->generation != rf_fork_generation(); }

static void lend(struct rf_feed *feed, struct rf_ring *ring, int64_t turn, uint32_t batches, int64_t timeout_ns)
{
    if (is_copy(feed))
        return;
    rf_reference(ring);
    pthread_mutex_lock(&feed->lock); /* nobody stays inside a feed that is not lent */
    struct rf_ring *old = feed->ring;
    feed->ring = ring;
    feed->turn = turn;
    feed->timeout_ns = timeout_ns;
    feed->waited_ns = 0;
    feed->lent = feed->left = batches;
    atomic_store_explicit(&feed->recalled, 0, memory_order_seq_cst);
    pthread_mutex_unlock(&feed->lock);
    if (old)
        rf_unreference(old);
}

static bool is_idle(struct rf_feed *feed)
{
    if (is_copy(feed))
        return true;
    atomic_store_explicit(&feed->recalled, 1, memory_order_seq_cst);
    if (pthread_mutex_trylock(&feed->lock) != 0)
        return false;
    pthread_mutex_unlock(&feed->lock);
    return true;
}

static uint32_t recall(struct rf_feed *feed, int64_t *waited_ns)
{
    *waited_ns = 0;
    if (is_copy(feed))
        return 0;
    atomic_store_explicit(&feed->recalled, 1, memory_order_seq_cst);
    pthread_mutex_lock(&feed->lock);
    struct rf_ring *ring = feed->ring;
    uint32_t taken = feed->lent - feed->left;
    feed->ring = NULL; /* a closed loader's memory goes, though its feed stays */
    feed->lent = feed->left = 0;
    *waited_ns = feed->waited_ns;
    pthread_mutex_unlock(&feed->lock);
    if (ring)
        rf_unreference(ring);
    return taken;
}

static struct rf_tally tally_of(const struct rf_feed *feed)
{
    return (struct rf_tally){.batches = atomic_load_explicit(&feed->batches, memory_order_relaxed),
                             .samples = atomic_load_explicit(&feed->samples, memory_order_relaxed),
                             .stall_ns = atomic_load_explicit(&feed->stall_ns, memory_order_relaxed)};
}

/* ---- taking, under the lock ---- */

static bool is_recalled(const struct rf_feed *feed)
{
    return atomic_load_explicit(&feed->recalled, memory_order_seq_cst);
}

/* Wait until the head can be taken, or something else is to be done. */
static enum rf_answer wait_head(struct rf_feed *feed)
{
    enum rf_answer answer = rf_look(feed->ring);
    if (answer != RF_PENDING)
        return answer;
    int64_t began_ns = rf_now_ns(), now_ns = began_ns, until_ns = began_ns;
    /* Awake before the slice is over, and nothing to take: that was a signal, which Python answers. */
    while (answer == RF_PENDING && now_ns >= until_ns && now_ns - began_ns < feed->timeout_ns && !is_recalled(feed)) {
        until_ns = now_ns + RF_SLICE_NS;
        if (until_ns - began_ns > feed->timeout_ns)
            until_ns = began_ns + feed->timeout_ns;
        answer = rf_wait_head(feed->ring, until_ns);
        now_ns = rf_now_ns();
    }
    atomic_fetch_add_explicit(&feed->stall_ns, now_ns - began_ns, memory_order_relaxed);
    feed->waited_ns = answer == RF_TAKEABLE ? 0 : now_ns - began_ns;
    return answer;
}

static bool head_has_failed(const struct rf_ring *ring)
{
    uint64_t entry = rf_entry_of(ring, atomic_load_explicit(&ring->control->head, memory_order_relaxed));
    for (uint32_t cell = 0; cell < (uint32_t)(entry >> 32); cell++) {
        uint64_t word = atomic_load_explicit(&rf_cell_of(ring, (uint32_t)entry, cell)->word, memory_order_relaxed);
        if (rf_word_state(word) == RF_FAILED)
            return true;
    }
    return false;
}

static void take_head(struct rf_feed *feed, struct rf_handout *handout)
{
    struct rf_taken taken = rf_take(feed->ring);
    rf_reference(feed->ring);
    handout->ring = feed->ring;
    handout->slot = taken.slot;
    handout->rows = taken.rows;
    feed->left -= 1;
    uint32_t rows = taken.rows < feed->rows ? taken.rows : feed->rows;
    atomic_fetch_add_explicit(&feed->batches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&feed->samples, rows, memory_order_relaxed);
}

enum step { TAKEN, STOPPED, ASK };

static enum step take_lent(struct rf_feed *feed, int64_t turn, struct rf_handout *handout)
{
    if (is_copy(feed))
        return ASK;
    enum step step = ASK;
    pthread_mutex_lock(&feed->lock);
    if (feed->left > 0 && feed->turn == turn && !is_recalled(feed)) {
        enum rf_answer answer = wait_head(feed);
        if (answer == RF_STOPPED)
            step = STOPPED;
        if (answer == RF_TAKEABLE && !is_recalled(feed) && !head_has_failed(feed->ring)) {
            take_head(feed, handout);
            step = TAKEN;
        }
    }
    pthread_mutex_unlock(&feed->lock);
    return step;
}

/* ---- asking ---- */

static enum rf_reply failed(char **error, const char *text)
{
    *error = strdup(text);
    return RF_REPLY_ERROR;
}

/* Whether Python may be asked; then leave_python() must follow. */
static bool enter_python(void)
{
    atomic_fetch_add_explicit(&asking, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&exiting, memory_order_seq_cst))
        return true;
    atomic_fetch_sub_explicit(&asking, 1, memory_order_seq_cst);
    return false;
}

static void leave_python(void) { atomic_fetch_sub_explicit(&asking, 1, memory_order_seq_cst); }

static uint32_t leave(void)
{
    atomic_store_explicit(&exiting, 1, memory_order_seq_cst);
    return atomic_load_explicit(&asking, memory_order_seq_cst);
}

static const char CLOSED[] = "ClosedError: the loader was closed while this iterator waited";
static const char ENDING[] = "ClosedError: the interpreter is about to end";
static const char GONE[] =
    "ClosedError: the loader of this dataset is gone; keep the dataset for as long as you iterate over it";

/* ---- for the other C code ---- */

/* The slot must not be the last one that could be filled: whoever keeps batches would wait for itself. */
static bool is_last_slot(const struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        if (state == RF_SLOT_FREE || state == RF_SLOT_BOUND)
            return false;
    }
    return true;
}

static void give(struct rf_handout *handout, struct rf_ring *ring, uint32_t slot, uint32_t rows)
{
    rf_reference(ring);
    rf_hold(ring, slot);
    handout->ring = ring;
    handout->slot = slot;
    handout->rows = rows;
}

static enum rf_reply ask_begin(struct rf_feed *feed, int64_t step, int64_t *turn, char **error)
{
    if (!enter_python())
        return failed(error, ENDING);
    enum rf_reply reply = feed->asks->begin(feed, turn, error);
    leave_python();
    atomic_store_explicit(&feed->step, step, memory_order_seq_cst);
    atomic_store_explicit(&feed->untouched, reply == RF_REPLY_BATCH ? *turn : UNBEGUN, memory_order_seq_cst);
    return reply;
}

static enum rf_reply begin(uint64_t number, int64_t step, int64_t *turn, char **error)
{
    struct rf_feed *feed = find(number);
    if (!feed)
        return failed(error, GONE);
    enum rf_reply reply = RF_REPLY_BATCH;
    int64_t untouched = atomic_load_explicit(&feed->untouched, memory_order_seq_cst);
    if (step == 0 || untouched == UNBEGUN)
        reply = ask_begin(feed, step, turn, error);
    else
        *turn = untouched != TOUCHED && atomic_load_explicit(&feed->step, memory_order_seq_cst) == step ? untouched : 0;
    unreference(feed);
    return reply;
}

static enum rf_reply ask_next(struct rf_feed *feed, int64_t turn, struct rf_handout *handout, char **error)
{
    if (!enter_python())
        return failed(error, ENDING);
    enum rf_reply reply = feed->asks->next(feed, turn, handout, error);
    leave_python();
    return reply;
}

static enum rf_reply next(uint64_t number, int64_t turn, struct rf_handout *handout, char **error)
{
    struct rf_feed *feed = find(number);
    if (!feed)
        return failed(error, GONE);
    *handout = (struct rf_handout){0};
    enum step step = take_lent(feed, turn, handout);
    enum rf_reply reply = step == TAKEN     ? RF_REPLY_BATCH
                          : step == STOPPED ? failed(error, CLOSED)
                                            : ask_next(feed, turn, handout, error);
    if (reply == RF_REPLY_ERROR) {
        if (atomic_load_explicit(&feed->untouched, memory_order_seq_cst) == turn)
            atomic_fetch_add_explicit(&feed->step, 1, memory_order_seq_cst);
        unreference(feed);
        return reply;
    }
    handout->feed = feed;
    int64_t expected = turn;
    atomic_compare_exchange_strong_explicit(&feed->untouched, &expected, TOUCHED, memory_order_seq_cst,
                                            memory_order_seq_cst);
    if (reply == RF_REPLY_END || handout->rows > feed->rows)
        handout->rows = feed->rows;
    if (reply == RF_REPLY_BATCH) {
        handout->base = rf_slot_base(handout->ring, handout->slot);
        handout->copy = is_last_slot(handout->ring);
    }
    return reply;
}

static uint32_t parts_of(const struct rf_feed *feed) { return feed->parts; }

struct hold {
    struct rf_ring *ring;
    uint32_t slot;
};

static void *hold(const struct rf_handout *handout)
{
    struct hold *hold = malloc(sizeof *hold);
    if (!hold)
        return NULL;
    *hold = (struct hold){handout->ring, handout->slot};
    rf_reference(hold->ring);
    rf_hold(hold->ring, hold->slot);
    return hold;
}

static void let_go(void *memory, size_t size, void *argument)
{
    (void)memory, (void)size;
    struct hold hold = *(struct hold *)argument;
    free(argument);
    rf_drop(hold.ring, hold.slot);
    rf_unreference(hold.ring);
}

static void done(struct rf_handout *handout)
{
    if (handout->ring) {
        rf_drop(handout->ring, handout->slot);
        rf_unreference(handout->ring);
    }
    unreference(handout->feed);
}

const struct rf_feed_calls rf_feed_calls = {
    .make = make,
    .part = part_of,
    .number = number_of,
    .end = end,
    .owner = owner_of,
    .lend = lend,
    .is_idle = is_idle,
    .recall = recall,
    .tally = tally_of,
    .give = give,
    .leave = leave,
    .begin = begin,
    .next = next,
    .parts = parts_of,
    .hold = hold,
    .let_go = let_go,
    .done = done,
};
