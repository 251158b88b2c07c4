#define _GNU_SOURCE
#include "export/feed_registry.h"
#include "os/wait.h"

#include <stdlib.h>
#include <string.h>

static uint64_t number_of(const struct rf_feed *feed) { return feed->number; }
static struct rf_part *part_of(struct rf_feed *feed, uint32_t part) { return &feed->part[part]; }

/* ---- which ring ---- */

/* Whether this is a forked child's copy, whose lock may never be free. */
static bool is_copy(const struct rf_feed *feed) { return feed->generation != rf_fork_generation(); }

/* Waits for a caller inside, which a new epoch or the stop of the ring sends away. */
static void set_ring(struct rf_feed *feed, struct rf_ring *ring, int64_t timeout_ns)
{
    if (is_copy(feed))
        return;
    if (ring)
        rf_reference(ring);
    pthread_mutex_lock(&feed->lock);
    struct rf_ring *old = feed->ring;
    feed->ring = ring;
    feed->timeout_ns = timeout_ns;
    pthread_mutex_unlock(&feed->lock);
    if (old)
        rf_unreference(old);
}

static void attach(struct rf_feed *feed, struct rf_ring *ring, int64_t timeout_ns)
{
    set_ring(feed, ring, timeout_ns);
}
static void detach(struct rf_feed *feed) { set_ring(feed, NULL, 0); }

/* ---- taking, under the feed's lock ---- */

/* Wait a slice for the head; whether to go on waiting for it. */
static bool wait_head(struct rf_feed *feed, int64_t epoch_id)
{
    struct rf_ring *ring = feed->ring;
    if (!ring || rf_look(ring) != RF_PENDING)
        return false;
    int64_t began_ns = rf_now_ns(), left_ns = feed->timeout_ns - rf_waited_ns(ring);
    int64_t until_ns = began_ns + (left_ns < RF_SLICE_NS ? left_ns : RF_SLICE_NS);
    enum rf_answer answer = rf_wait_head(ring, epoch_id, until_ns);
    int64_t now_ns = rf_now_ns();
    if (answer == RF_PENDING)
        rf_check(ring);
    if (answer != RF_STALE)
        rf_note_stall(ring, now_ns - began_ns);
    /* Awake before the slice is over, and nothing to take: that was a signal,
     * which Python answers. */
    return answer == RF_PENDING && now_ns >= until_ns && rf_waited_ns(ring) < feed->timeout_ns;
}

static bool wait_slice(struct rf_feed *feed, int64_t epoch_id)
{
    if (is_copy(feed))
        return false;
    pthread_mutex_lock(&feed->lock);
    bool goes_on = wait_head(feed, epoch_id);
    pthread_mutex_unlock(&feed->lock);
    return goes_on;
}

static void hand_out(struct rf_handout *handout, struct rf_ring *ring, uint32_t slot, uint32_t rows)
{
    rf_reference(ring);
    handout->ring = ring;
    handout->slot = slot;
    handout->rows = rows;
}

/* The last batch of an epoch is Python's to take, which then runs what comes after it. */
static enum rf_answer take(struct rf_feed *feed, int64_t epoch_id, struct rf_handout *handout)
{
    const struct rf_terms terms = {.epoch_id = epoch_id, .kept = 1, .room = RF_ANY_ROOM};
    struct rf_taken taken;
    if (is_copy(feed))
        return RF_STALE;
    pthread_mutex_lock(&feed->lock);
    enum rf_answer answer = feed->ring ? rf_next(feed->ring, &terms, &taken) : RF_STALE;
    if (answer == RF_TAKEABLE)
        hand_out(handout, feed->ring, taken.slot, taken.rows);
    pthread_mutex_unlock(&feed->lock);
    return answer;
}

/* ---- asking ---- */

static enum rf_reply failed(char **error, const char *text)
{
    *error = strdup(text);
    return RF_REPLY_ERROR;
}

static const char CLOSED[] = "ClosedError: the loader was closed while this iterator waited";
static const char ENDING[] = "ClosedError: the interpreter is about to end";
static const char INTERRUPTED[] =
    "KeyboardInterrupt: while a batch was waited for; it is the next to come";
static const char GONE[] = "ClosedError: the loader of this dataset is gone; keep the dataset for "
                           "as long as you iterate over it";

/* ---- for the other C code ---- */

static void give(struct rf_handout *handout, struct rf_ring *ring, uint32_t slot, uint32_t rows)
{
    rf_hold(ring, slot);
    hand_out(handout, ring, slot, rows);
}

static enum rf_reply ask(struct rf_feed *feed, enum rf_question question, int64_t *number,
                         struct rf_handout *handout, char **error)
{
    if (!rf_feed_may_ask())
        return failed(error, ENDING);
    enum rf_reply reply = feed->asks->ask(feed, question, number, handout, error);
    rf_feed_asked();
    return reply;
}

static enum rf_reply ask_begin(struct rf_feed *feed, int64_t step, int64_t *epoch_id, char **error)
{
    enum rf_reply reply = ask(feed, RF_BEGIN, epoch_id, NULL, error);
    atomic_store_explicit(&feed->step, step, memory_order_seq_cst);
    atomic_store_explicit(&feed->untouched, reply == RF_REPLY_BATCH ? *epoch_id : UNBEGUN,
                          memory_order_seq_cst);
    if (reply == RF_REPLY_BATCH)
        atomic_store_explicit(&feed->newest, *epoch_id, memory_order_seq_cst);
    return reply;
}

static enum rf_reply begin_new(struct rf_feed *feed, int64_t step, int64_t *epoch_id, char **error)
{
    int64_t untouched = atomic_load_explicit(&feed->untouched, memory_order_seq_cst);
    if (step == 0 || untouched == UNBEGUN)
        return ask_begin(feed, step, epoch_id, error);
    bool is_ours =
        untouched != TOUCHED && atomic_load_explicit(&feed->step, memory_order_seq_cst) == step;
    *epoch_id = is_ours ? untouched : RF_NO_EPOCH;
    return RF_REPLY_BATCH;
}

static enum rf_reply begin(uint64_t number, int64_t state, int64_t step, int64_t *epoch_id,
                           char **error)
{
    struct rf_feed *feed = rf_feed_find(number);
    if (!feed)
        return failed(error, GONE);
    enum rf_reply reply = RF_REPLY_BATCH;
    *epoch_id = state;
    if (state == RF_REST) {
        *epoch_id = atomic_load_explicit(&feed->reached, memory_order_seq_cst);
        reply = ask(feed, RF_LEFT, epoch_id, NULL, error);
    } else if (state == RF_NEW)
        reply = begin_new(feed, step, epoch_id, error);
    if (state != RF_REST && reply == RF_REPLY_BATCH &&
        *epoch_id == atomic_load_explicit(&feed->newest, memory_order_seq_cst))
        atomic_store_explicit(&feed->reached, step, memory_order_seq_cst);
    rf_feed_unreference(feed);
    return reply;
}

/* An iteration has no batch of this step. */
static void count_error(struct rf_feed *feed, int64_t epoch_id)
{
    if (atomic_load_explicit(&feed->untouched, memory_order_seq_cst) == epoch_id)
        atomic_fetch_add_explicit(&feed->step, 1, memory_order_seq_cst);
}

static bool is_interrupted(struct rf_feed *feed)
{
    if (!rf_feed_may_ask())
        return false;
    uint32_t told = atomic_load_explicit(&feed->told, memory_order_relaxed);
    uint32_t heard = feed->asks->interrupted(told, rf_now_ns());
    rf_feed_asked();
    atomic_store_explicit(&feed->told, heard, memory_order_relaxed);
    return heard != told;
}

static enum rf_reply wait(uint64_t number, int64_t epoch_id, char **error)
{
    struct rf_feed *feed = rf_feed_find(number);
    if (!feed)
        return failed(error, GONE);
    enum rf_reply reply = wait_slice(feed, epoch_id) ? RF_REPLY_LATER : RF_REPLY_BATCH;
    if (reply == RF_REPLY_LATER && is_interrupted(feed)) {
        count_error(feed, epoch_id);
        reply = failed(error, INTERRUPTED);
    }
    rf_feed_unreference(feed);
    return reply;
}

static enum rf_reply next_of(struct rf_feed *feed, int64_t epoch_id, struct rf_handout *handout,
                             char **error)
{
    if (epoch_id == RF_OVER)
        return RF_REPLY_END;
    enum rf_answer answer = take(feed, epoch_id, handout);
    if (answer == RF_STOPPED) /* Python may be ending */
        return failed(error, CLOSED);
    return answer == RF_TAKEABLE ? RF_REPLY_BATCH : ask(feed, RF_TAKE, &epoch_id, handout, error);
}

static enum rf_reply next(uint64_t number, int64_t epoch_id, struct rf_handout *handout,
                          char **error)
{
    struct rf_feed *feed = rf_feed_find(number);
    if (!feed)
        return failed(error, GONE);
    *handout = (struct rf_handout){0};
    enum rf_reply reply = next_of(feed, epoch_id, handout, error);
    if (reply == RF_REPLY_ERROR) {
        count_error(feed, epoch_id);
        rf_feed_unreference(feed);
        return reply;
    }
    handout->feed = feed;
    int64_t expected = epoch_id;
    atomic_compare_exchange_strong_explicit(&feed->untouched, &expected, TOUCHED,
                                            memory_order_seq_cst, memory_order_seq_cst);
    if (reply == RF_REPLY_END || handout->rows > feed->rows)
        handout->rows = feed->rows;
    if (reply == RF_REPLY_BATCH) {
        handout->base = rf_slot_base(handout->ring, handout->slot);
        /* A caller that keeps batches would wait for itself. */
        handout->copy = !rf_has_room(handout->ring);
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
    rf_feed_unreference(handout->feed);
}

const struct rf_feed_calls rf_feed_calls = {
    .make = rf_feed_make,
    .part = part_of,
    .number = number_of,
    .end = rf_feed_end,
    .attach = attach,
    .detach = detach,
    .give = give,
    .leave = rf_feed_leave,
    .begin = begin,
    .wait = wait,
    .next = next,
    .parts = parts_of,
    .hold = hold,
    .let_go = let_go,
    .done = done,
};
