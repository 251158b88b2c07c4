/* A feed: what is taken without asking, and what is asked. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "export/feed.h"
#include "place.h"

#define EPOCH_ID 7
#define LONG_NS INT64_C(600000000000) /* longer than any test may take */

static const struct rf_feed_calls *const feeds = &rf_feed_calls;
static _Atomic int asked;

static enum rf_reply begin_reply = RF_REPLY_BATCH, next_reply = RF_REPLY_END;

static int64_t asked_step; /* whose rest was asked for */

static enum rf_reply ask(struct rf_feed *feed, enum rf_question question, int64_t *number,
                         struct rf_handout *handout, char **error)
{
    (void)feed, (void)handout, (void)error;
    if (question == RF_LEFT)
        asked_step = *number;
    else
        atomic_fetch_add(&asked, 1);
    if (question == RF_TAKE)
        return next_reply;
    *number = EPOCH_ID;
    return question == RF_BEGIN ? begin_reply : RF_REPLY_BATCH;
}

static _Atomic uint32_t interrupts;

static uint32_t interrupted(uint32_t told, int64_t now_ns)
{
    (void)told, (void)now_ns;
    return atomic_load(&interrupts);
}

static const struct rf_callbacks ASKS = {ask, interrupted};

/* A ring of so many slots with four batches of one row planned, and a feed of its rows. */
static struct rf_feed *feed_of(struct rf_ring **ring, uint32_t slots)
{
    *ring = ring_of(slots, 1, 2, 4);
    bind_batches(*ring, 4, 1);
    struct rf_feed *feed = feeds->make(&ASKS, 4, 1);
    *feeds->part(feed, 0) = (struct rf_part){.offset = 0, .row_size = 8};
    atomic_store(&asked, 0);
    return feed;
}

/* Have it take this ring's batches, of which an epoch is under way. */
static void attach(struct rf_feed *feed, struct rf_ring *ring, int64_t timeout_ns)
{
    rf_begin(ring, EPOCH_ID);
    feeds->attach(feed, ring, timeout_ns);
}

static void drop_both(struct rf_feed *feed, struct rf_ring *ring)
{
    feeds->end(feed);
    rf_unreference(ring);
}

static enum rf_reply next_of(struct rf_feed *feed, int64_t epoch_id, struct rf_handout *handout)
{
    char *error = NULL;
    enum rf_reply reply;
    do
        reply = feeds->wait(feeds->number(feed), epoch_id, &error);
    while (reply == RF_REPLY_LATER);
    if (reply == RF_REPLY_BATCH)
        reply = feeds->next(feeds->number(feed), epoch_id, handout, &error);
    free(error);
    return reply;
}

/* Take a batch and let go of it; whether there was one. */
static bool take(struct rf_feed *feed, int64_t epoch_id)
{
    struct rf_handout handout;
    enum rf_reply reply = next_of(feed, epoch_id, &handout);
    if (reply != RF_REPLY_ERROR)
        feeds->done(&handout);
    return reply == RF_REPLY_BATCH;
}

/* Batches are taken without asking, but for the last; without a ring everything is asked. */
static void batches_are_taken(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 4);
    fill_all(ring, 0);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 1);
    attach(feed, ring, LONG_NS);
    CHECK(take(feed, EPOCH_ID) && take(feed, EPOCH_ID) && take(feed, EPOCH_ID) &&
          atomic_load(&asked) == 1);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 2);
    CHECK_EQ(rf_report_consumer(ring).batches, 3);
    CHECK_EQ(rf_report_consumer(ring).samples, 3);
    CHECK_EQ(rf_report_consumer(ring).stall_ns, 0);
    feeds->detach(feed);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 3);
    drop_both(feed, ring);
}

/* What the engine is to plan, or to look at, is asked. */
static void the_engine_is_asked(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 4);
    fill_all(ring, 0);
    attach(feed, ring, LONG_NS);
    rf_set_low_water(ring, 3);
    CHECK(take(feed, EPOCH_ID) && atomic_load(&asked) == 0);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 1);
    rf_set_low_water(ring, 0);
    rf_set_due(ring, -1);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 2);
    rf_set_due(ring, 0);
    CHECK(take(feed, EPOCH_ID) && atomic_load(&asked) == 2);
    drop_both(feed, ring);
}

/* Another epoch than the one under way takes nothing. */
static void other_epochs_ask(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    fill_all(ring, 0);
    attach(feed, ring, LONG_NS);
    CHECK(!take(feed, EPOCH_ID - 1) && atomic_load(&asked) == 1);
    CHECK_EQ(atomic_load(&ring->control->head), 0);
    drop_both(feed, ring);
}

/* A batch with a failed row, and an alarm, are Python's business. */
static void failures_and_alarms_ask(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct rf_claim claim;
    CHECK(claim_as(ring, 0, &claim));
    rf_fail(&claim, 0, "x", 1);
    rf_publish(ring, &claim, false);
    attach(feed, ring, LONG_NS);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 1);
    CHECK_EQ(atomic_load(&ring->control->head), 0);
    rf_drop(ring, taken_of(ring).slot);
    rf_alarm(ring);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 2);
    drop_both(feed, ring);
}

/* A stopped ring is told of without asking: Python may be ending. */
static void stopped_ring_does_not_ask(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct rf_handout handout;
    char *error = NULL;
    attach(feed, ring, LONG_NS);
    rf_stop(ring);
    CHECK_EQ(feeds->wait(feeds->number(feed), EPOCH_ID, &error), RF_REPLY_BATCH);
    CHECK_EQ(feeds->next(feeds->number(feed), EPOCH_ID, &handout, &error), RF_REPLY_ERROR);
    CHECK(error && !strcmp(error, "ClosedError: the loader was closed while this iterator waited"));
    CHECK_EQ(atomic_load(&asked), 0);
    free(error);
    drop_both(feed, ring);
}

/* Python is asked when a batch has been waited for until the deadline, and told for how long. */
static void deadline_asks(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    int64_t timeout_ns = RF_SLICE_NS + RF_SLICE_NS / 2;
    attach(feed, ring, timeout_ns);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 1);
    CHECK(rf_waited_ns(ring) >= timeout_ns);
    CHECK(rf_report_consumer(ring).stall_ns >= (uint64_t)timeout_ns);
    drop_both(feed, ring);
}

/* A wait comes back after a slice, and the next goes on: what both have waited in
 * vain counts together. */
static void waits_are_short(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    uint64_t number = feeds->number(feed);
    char *error = NULL;
    attach(feed, ring, LONG_NS);
    CHECK_EQ(feeds->wait(number, EPOCH_ID, &error), RF_REPLY_LATER);
    CHECK_EQ(feeds->wait(number, EPOCH_ID, &error), RF_REPLY_LATER);
    CHECK_EQ(feeds->wait(number, EPOCH_ID - 1, &error), RF_REPLY_BATCH); /* Python tells it off */
    CHECK(rf_waited_ns(ring) >= 2 * RF_SLICE_NS);
    fill_all(ring, 0);
    CHECK(take(feed, EPOCH_ID));
    CHECK_EQ(rf_waited_ns(ring), 0);
    feeds->detach(feed);
    CHECK_EQ(feeds->wait(number, EPOCH_ID, &error), RF_REPLY_BATCH);
    drop_both(feed, ring);
}

/* A batch that is Python's to take is waited for here. */
static void waits_for_python_too(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 4);
    char *error = NULL;
    attach(feed, ring, LONG_NS);
    rf_set_low_water(ring, 4);
    CHECK_EQ(feeds->wait(feeds->number(feed), EPOCH_ID, &error), RF_REPLY_LATER);
    fill_all(ring, 0);
    CHECK_EQ(feeds->wait(feeds->number(feed), EPOCH_ID, &error), RF_REPLY_BATCH);
    CHECK(!take(feed, EPOCH_ID) && atomic_load(&asked) == 1);
    drop_both(feed, ring);
}

/* Ctrl-C ends a wait with an error, once, and its batch comes next. */
static void interrupts_end_a_wait(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    uint64_t number = feeds->number(feed);
    char *error = NULL;
    attach(feed, ring, LONG_NS);
    CHECK_EQ(feeds->wait(number, EPOCH_ID, &error), RF_REPLY_LATER);
    atomic_store(&interrupts, 1);
    CHECK_EQ(feeds->wait(number, EPOCH_ID, &error), RF_REPLY_ERROR);
    CHECK(
        error &&
        !strcmp(error, "KeyboardInterrupt: while a batch was waited for; it is the next to come"));
    free(error);
    CHECK_EQ(feeds->wait(number, EPOCH_ID, &error), RF_REPLY_LATER);
    atomic_store(&interrupts, 0);
    fill_all(ring, 0);
    CHECK(take(feed, EPOCH_ID) && atomic_load(&asked) == 0);
    drop_both(feed, ring);
}

/* The rest of an epoch is asked for with the step that its iteration has come to; one that is over
 * has no batches. */
static void rest_is_asked_for(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    uint64_t number = feeds->number(feed);
    struct rf_handout handout;
    int64_t epoch_id = RF_NEW;
    char *error = NULL;
    CHECK_EQ(feeds->begin(number, RF_NEW, 0, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK_EQ(feeds->begin(number, EPOCH_ID, 5, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK_EQ(epoch_id, EPOCH_ID);
    /* An older iteration. */
    CHECK_EQ(feeds->begin(number, EPOCH_ID - 1, 6, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK_EQ(epoch_id, EPOCH_ID - 1);
    CHECK_EQ(feeds->begin(number, RF_REST, 0, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK(epoch_id == EPOCH_ID && asked_step == 5 && atomic_load(&asked) == 1);
    CHECK_EQ(next_of(feed, RF_OVER, &handout), RF_REPLY_END);
    CHECK(!handout.ring && handout.rows == 4 && atomic_load(&asked) == 1);
    feeds->done(&handout);
    drop_both(feed, ring);
}

struct caller {
    struct rf_feed *feed;
    bool found;
};

static void *take_in_thread(void *argument)
{
    struct caller *caller = argument;
    caller->found = take(caller->feed, EPOCH_ID);
    return NULL;
}

static void await_sleeper(struct rf_ring *ring)
{
    for (int64_t until_ns = soon_ns(60000); rf_now_ns() < until_ns; rf_pause())
        if (atomic_load(&ring->control->consumer_wait) != RF_WAIT_NONE)
            return;
    CHECK(!"no thread waits");
}

/* A caller that waits is woken by the batch, and what it waited counts as stall. */
static void batch_wakes_a_waiter(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct caller caller = {.feed = feed};
    pthread_t thread;
    attach(feed, ring, LONG_NS);
    pthread_create(&thread, NULL, take_in_thread, &caller);
    await_sleeper(ring);
    fill_all(ring, 0);
    pthread_join(thread, NULL);
    CHECK(caller.found && atomic_load(&asked) == 0);
    CHECK(rf_report_consumer(ring).stall_ns > 0);
    drop_both(feed, ring);
}

/* A break sends a caller that waits to Python, though nothing comes. */
static void break_ends_a_wait(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct caller caller = {.feed = feed};
    pthread_t thread;
    attach(feed, ring, LONG_NS);
    pthread_create(&thread, NULL, take_in_thread, &caller);
    await_sleeper(ring);
    rf_cancel(ring);
    feeds->detach(feed);
    pthread_join(thread, NULL);
    CHECK(!caller.found && atomic_load(&asked) == 1);
    drop_both(feed, ring);
}

/* A caller that waits in an epoch that is over takes nothing of the next. */
static void next_epoch_is_not_touched(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct caller caller = {.feed = feed};
    pthread_t thread;
    attach(feed, ring, LONG_NS);
    pthread_create(&thread, NULL, take_in_thread, &caller);
    await_sleeper(ring);
    rf_cancel(ring);
    rf_begin(ring, EPOCH_ID + 1);
    bind_batches(ring, 2, 1);
    fill_all(ring, 0);
    pthread_join(thread, NULL);
    CHECK(!caller.found && atomic_load(&asked) == 1);
    CHECK_EQ(rf_report_consumer(ring).batches, 0);
    CHECK(take(feed, EPOCH_ID + 1));
    drop_both(feed, ring);
}

static void *take_three(void *argument)
{
    struct caller *caller = argument;
    for (int count = 0; count < 3; count++)
        take(caller->feed, EPOCH_ID);
    return NULL;
}

/* Several threads take each batch once. */
static void threads_share_the_batches(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 4);
    struct caller caller = {.feed = feed};
    pthread_t thread[3];
    attach(feed, ring, LONG_NS);
    for (int number = 0; number < 3; number++)
        pthread_create(&thread[number], NULL, take_three, &caller);
    for (int64_t until_ns = soon_ns(60000);
         rf_now_ns() < until_ns && rf_report_consumer(ring).batches < 3; rf_pause())
        fill_all(ring, 0);
    for (int number = 0; number < 3; number++)
        pthread_join(thread[number], NULL);
    CHECK_EQ(atomic_load(&ring->control->head), 3);
    CHECK_EQ(atomic_load(&asked), 6); /* of the last batch */
    drop_both(feed, ring);
}

/* A slot comes back when its last hold and the handout have ended, also when feed and
 * ring are gone. */
static void holds_keep_slot_and_mapping(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct rf_handout handout;
    fill_all(ring, 0);
    attach(feed, ring, LONG_NS);
    CHECK_EQ(next_of(feed, EPOCH_ID, &handout), RF_REPLY_BATCH);
    CHECK(handout.base == rf_slot_base(ring, handout.slot) && handout.rows == 1 && !handout.copy);
    void *first = feeds->hold(&handout), *second = feeds->hold(&handout);
    CHECK(first && second);
    feeds->done(&handout);
    feeds->let_go(NULL, 0, first);
    CHECK_EQ(rf_slot_state(ring, handout.slot), RF_SLOT_HELD);
    feeds->end(feed);
    uint32_t before = atomic_load(&ring->references);
    feeds->let_go(NULL, 0, second);
    CHECK(rf_slot_state(ring, handout.slot) != RF_SLOT_HELD);
    CHECK_EQ(before - atomic_load(&ring->references), 1);
    rf_unreference(ring);
}

/* The batch that would leave no slot to be filled is to be copied; a slot that drains may not
 * come back soon. */
static void last_slot_is_to_be_copied(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct rf_handout first, second, third;
    fill_all(ring, 0);
    attach(feed, ring, LONG_NS);
    CHECK_EQ(next_of(feed, EPOCH_ID, &first), RF_REPLY_BATCH);
    CHECK_EQ(next_of(feed, EPOCH_ID, &second), RF_REPLY_BATCH);
    CHECK_EQ(next_of(feed, EPOCH_ID, &third), RF_REPLY_BATCH);
    CHECK(!first.copy && !second.copy && third.copy);
    feeds->done(&third);
    struct rf_claim claim;
    CHECK(claim_as(ring, 0, &claim)); /* in the third slot, which drains from now on */
    rf_cancel(ring);
    rf_begin(ring, EPOCH_ID);
    feeds->done(&second);
    bind_batches(ring, 2, 1);
    struct rf_claim other;
    CHECK(claim_as(ring, 1, &other));
    rf_publish(ring, &other, false);
    CHECK_EQ(next_of(feed, EPOCH_ID, &second), RF_REPLY_BATCH);
    CHECK(second.copy);
    feeds->done(&second);
    feeds->done(&first);
    rf_publish(ring, &claim, true);
    drop_both(feed, ring);
}

/* An iteration whose first batch was an error goes on with the epoch that it began, unless that is
 * another's, whose step is another, or another has had a batch of it; one that could not begin
 * tries again. */
static void later_steps_begin_nothing(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    uint64_t number = feeds->number(feed);
    int64_t epoch_id = -1;
    char *error = NULL;
    begin_reply = RF_REPLY_ERROR;
    CHECK_EQ(feeds->begin(number, RF_NEW, 0, &epoch_id, &error), RF_REPLY_ERROR);
    begin_reply = RF_REPLY_BATCH;
    CHECK_EQ(feeds->begin(number, RF_NEW, 1, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK(epoch_id == EPOCH_ID && atomic_load(&asked) == 2);
    struct rf_handout handout;
    next_reply = RF_REPLY_ERROR;
    CHECK_EQ(next_of(feed, EPOCH_ID, &handout), RF_REPLY_ERROR);
    next_reply = RF_REPLY_END;
    CHECK_EQ(feeds->begin(number, RF_NEW, 1, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK_EQ(epoch_id, 0);
    CHECK_EQ(feeds->begin(number, RF_NEW, 2, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK(epoch_id == EPOCH_ID && atomic_load(&asked) == 3);
    fill_all(ring, 0);
    attach(feed, ring, LONG_NS);
    CHECK(take(feed, EPOCH_ID));
    CHECK_EQ(feeds->begin(number, RF_NEW, 3, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK(epoch_id == 0 && atomic_load(&asked) == 3);
    CHECK_EQ(feeds->begin(number, RF_NEW, 0, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK(epoch_id == EPOCH_ID && atomic_load(&asked) == 4);
    drop_both(feed, ring);
}

/* A number of no feed, or of one that has ended, gets an error that says so. */
static void ended_feeds_are_not_found(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    uint64_t number = feeds->number(feed);
    struct rf_handout handout;
    int64_t epoch_id = -1;
    char *error = NULL;
    CHECK_EQ(feeds->begin(number, RF_NEW, 0, &epoch_id, &error), RF_REPLY_BATCH);
    CHECK_EQ(epoch_id, EPOCH_ID);
    drop_both(feed, ring);
    CHECK_EQ(feeds->next(number, EPOCH_ID, &handout, &error), RF_REPLY_ERROR);
    CHECK(error && strstr(error, "ClosedError: the loader of this dataset is gone;") == error);
    free(error);
    CHECK_EQ(feeds->begin(number, RF_NEW, 0, &epoch_id, &error), RF_REPLY_ERROR);
    free(error);
}

static struct rf_feed *inherited;
static void use_inherited(struct rf_ring *ring)
{
    feeds->detach(inherited);
    feeds->attach(inherited, ring, LONG_NS);
    if (take(inherited, EPOCH_ID) || atomic_load(&asked) != 1)
        abort();
    feeds->end(inherited);
}

/* A forked child's copy takes nothing and waits for no lock, though a thread that it does not
 * have is inside. */
static void forked_child_asks(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = inherited = feed_of(&ring, 3);
    struct caller caller = {.feed = feed};
    pthread_t thread;
    attach(feed, ring, LONG_NS);
    pthread_create(&thread, NULL, take_in_thread, &caller);
    await_sleeper(ring);
    CHECK(in_child(use_inherited, ring));
    fill_all(ring, 0);
    pthread_join(thread, NULL);
    CHECK(caller.found);
    drop_both(feed, ring);
}

/* When the interpreter is about to end no thread asks it any more. For good: it must be
 * the last test. */
static void leaving_ends_all_asking(void)
{
    struct rf_ring *ring;
    struct rf_feed *feed = feed_of(&ring, 3);
    struct rf_handout handout;
    int64_t epoch_id = -1;
    char *error = NULL;
    CHECK_EQ(feeds->leave(), 0);
    CHECK_EQ(feeds->begin(feeds->number(feed), RF_NEW, 0, &epoch_id, &error), RF_REPLY_ERROR);
    CHECK(error && !strcmp(error, "ClosedError: the interpreter is about to end"));
    free(error);
    CHECK_EQ(next_of(feed, EPOCH_ID, &handout), RF_REPLY_ERROR);
    CHECK_EQ(atomic_load(&asked), 0);
    drop_both(feed, ring);
}

int main(void)
{
    check_begin();
    RUN(batches_are_taken);
    RUN(the_engine_is_asked);
    RUN(other_epochs_ask);
    RUN(failures_and_alarms_ask);
    RUN(stopped_ring_does_not_ask);
    RUN(deadline_asks);
    RUN(waits_are_short);
    RUN(waits_for_python_too);
    RUN(interrupts_end_a_wait);
    RUN(rest_is_asked_for);
    RUN(batch_wakes_a_waiter);
    RUN(break_ends_a_wait);
    RUN(next_epoch_is_not_touched);
    RUN(threads_share_the_batches);
    RUN(holds_keep_slot_and_mapping);
    RUN(last_slot_is_to_be_copied);
    RUN(later_steps_begin_nothing);
    RUN(ended_feeds_are_not_found);
    RUN(forked_child_asks);
    RUN(leaving_ends_all_asking);
    return check_end("test_feed");
}
