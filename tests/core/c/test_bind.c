/* Planning, binding, holding, releasing and breaking off, under the binder's lock and beside it. */
#include "check.h"
#include "hooks.h"
#include "place.h"

#include <string.h>

/* ---- planning ---- */

/* The plan takes as many batches as its capacity, and says how many more: one more for each
 * that is taken. */
static void plan_is_full_and_empty_again(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 2);
    int64_t indices[2] = {3, 4};
    for (uint32_t left = PLACE_CAPACITY; left > 0; left--) {
        CHECK_EQ(rf_plan_room(ring), left);
        CHECK(rf_plan(ring, indices, 2, 1, 0));
    }
    CHECK(!rf_plan(ring, indices, 2, 1, 0));
    rf_bind(ring);
    CHECK_EQ(rf_plan_room(ring), 0);
    fill_all(ring, 0);
    taken_of(ring);
    CHECK_EQ(rf_plan_room(ring), 1);
    rf_cancel(ring);
    CHECK_EQ(rf_plan_room(ring), PLACE_CAPACITY);
    rf_unreference(ring);
}

/* A batch has at least one row, and no more than a slot holds. */
static void plan_refuses_too_few_and_too_many_rows(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 2);
    int64_t indices[3] = {0};
    CHECK(!rf_plan(ring, indices, 0, 1, 0));
    CHECK(!rf_plan(ring, indices, 3, 1, 0));
    CHECK_EQ(rf_plan_room(ring), PLACE_CAPACITY);
    rf_unreference(ring);
}

/* ---- binding ---- */

/* Binding writes the record, the indices and clean marks, and makes just the
 * batch's tickets available. */
static void bind_prepares_the_slot(void)
{
    struct rf_ring *ring = ring_of(2, 4, 2, 5);
    int64_t indices[4] = {40, 41, 42, 43};
    memset(rf_slot_base(ring, 0) + ring->geometry.marks_at, RF_ROW_KILLED, 5);
    CHECK(rf_plan(ring, indices, 4, 9, 6));
    rf_bind(ring);
    const struct rf_record *record = &ring->records[0];
    CHECK(record->batch == 0 && record->epoch == 9 && record->version == 6);
    CHECK(record->rows == 4 && record->rows_per_ticket == 2 && record->tickets == 2);
    CHECK(memcmp(rf_slot_indices(ring, 0), indices, sizeof indices) == 0);
    CHECK(memcmp(rf_slot_marks(ring, 0), (const uint8_t[4]){0}, 4) == 0);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, 0, 0, RF_AVAIL));
    CHECK_EQ(word_at(ring, 0, 1), rf_word(1, 0, 0, RF_AVAIL));
    CHECK_EQ(word_at(ring, 0, 2), 0);
    CHECK_EQ(atomic_load(&ring->slot_of[0]), UINT64_C(2) << 32);
    rf_unreference(ring);
}

/* Batches are bound in their order, one a slot, as long as there are free slots. */
static void bind_follows_the_plan(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 1);
    bind_batches(ring, 5, 1);
    CHECK_EQ(atomic_load(&ring->control->bound), 3);
    CHECK(rf_is_planned(ring));
    for (uint32_t batch = 0; batch < 3; batch++)
        CHECK_EQ(ring->records[(uint32_t)atomic_load(&ring->slot_of[batch])].batch, batch);
    rf_unreference(ring);
}

/* Whatever the rows, workers, slots and speed, a batch's tickets fit the cells and
 * cover its rows. */
static void tickets_never_exceed_the_cells(void)
{
    const uint64_t speeds[] = {0, 1, 900, 70000, 150000, UINT64_C(1) << 60};
    for (uint32_t shape = 0; shape < 3 * 4 * 3; shape++) {
        uint32_t slots = 1 + shape % 3, cells = 1 + shape / 3 % 4 * 21,
                 workers = 1 + shape / 12 * 100;
        struct rf_ring *ring = ring_of(slots, cells, workers, 1000);
        for (uint32_t turn = 0; turn < 6 * 7; turn++) {
            const uint32_t rows[] = {1, 2, 63, 64, 65, 999, 1000};
            atomic_store(&ring->binder->row_ns, speeds[turn % 6]);
            bind_batches(ring, 1, rows[turn / 6]);
            const struct rf_record *record =
                &ring->records[(uint32_t)atomic_load(&ring->slot_of[turn % slots])];
            CHECK(record->tickets >= 1 && record->tickets <= cells && record->rows_per_ticket >= 1);
            CHECK((record->tickets - 1) * record->rows_per_ticket < record->rows);
            CHECK(record->tickets * record->rows_per_ticket >= record->rows);
            rf_cancel(ring);
        }
        rf_unreference(ring);
    }
}

/* The work that rows take decides how many make a ticket, but never so many that a worker has
 * nothing to do. */
static void ticket_size_follows_the_work(void)
{
    struct rf_ring *ring = ring_of(3, 64, 4, 128);
    const struct {
        uint64_t row_ns;
        uint32_t rows_per_ticket;
    } cases[] = {{0, 32}, {20000, 10}, {1000000, 2}, {100, 64}};
    for (uint32_t number = 0; number < 4; number++) {
        atomic_store(&ring->binder->row_ns, cases[number].row_ns);
        bind_batches(ring, 1, 128);
        CHECK_EQ(ring->records[0].rows_per_ticket, cases[number].rows_per_ticket);
        rf_cancel(ring);
    }
    rf_unreference(ring);
}

/* ---- holding and releasing ---- */

/* Bind, fill and take as many batches as there are slots. */
static void take_all(struct rf_ring *ring)
{
    bind_batches(ring, ring->geometry.slots, 1);
    fill_all(ring, 0);
    while (rf_look(ring) == RF_TAKEABLE)
        taken_of(ring);
}

/* Only the last of several holds frees the slot. */
static void last_drop_frees_the_slot(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    take_all(ring);
    rf_hold(ring, 0);
    rf_drop(ring, 0);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_HELD);
    bind_batches(ring, 1, 1);
    CHECK_EQ(atomic_load(&ring->control->bound), 2);
    rf_drop(ring, 0);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    CHECK_EQ(atomic_load(&ring->control->bound), 3);
    rf_unreference(ring);
}

/* Slots come back in any order, each once. */
static void slots_are_released_in_any_order(void)
{
    struct rf_ring *ring = ring_of(4, 1, 1, 1);
    const uint32_t order[4] = {2, 0, 3, 1};
    take_all(ring);
    bind_batches(ring, 4, 1);
    for (uint32_t number = 0; number < 4; number++) {
        rf_drop(ring, order[number]);
        CHECK_EQ((uint32_t)atomic_load(&ring->slot_of[number]), order[number]);
    }
    CHECK_EQ(ring->binder->free_count, 0);
    rf_unreference(ring);
}

/* A release that finds the lock busy leaves its slot to whoever holds the lock. */
static void release_under_a_busy_lock_is_picked_up(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 1);
    take_all(ring);
    bind_batches(ring, 3, 1);
    uint32_t news = atomic_load(&ring->control->news_seq);
    rf_lock(ring->binder);
    rf_drop(ring, 1);
    rf_drop(ring, 2);
    CHECK_EQ(atomic_load(&ring->control->bound), 3);
    CHECK_EQ(atomic_load(&ring->control->news_seq) - news, 2);
    rf_unlock(ring);
    CHECK_EQ(atomic_load(&ring->control->bound), 5);
    CHECK_EQ(atomic_load(&ring->binder->lock), 0);
    rf_unreference(ring);
}

static uint64_t bound_at_the_wake;
static void note_bound(struct rf_ring *ring)
{
    bound_at_the_wake = atomic_load(&ring->control->bound);
}

/* A release wakes the consumer after its attempt to bind, so that it finds the batch. */
static void release_wakes_after_it_binds(void)
{
    struct rf_ring *ring = ring_of(1, 1, 1, 1);
    take_all(ring);
    bind_batches(ring, 1, 1);
    atomic_store(&ring->control->consumer_wait, RF_WAIT_FREE);
    hooked_ring = ring;
    before_wake = note_bound;
    rf_drop(ring, 0);
    CHECK_EQ(bound_at_the_wake, 2);
    rf_unreference(ring);
}

/* ---- forked children ---- */

static void drop_and_unreference(struct rf_ring *ring)
{
    rf_drop(ring, 0);
    rf_unreference(ring);
    if (atomic_load(&ring->control->bound) != 2)
        _exit(1);
}

/* A forked child owns none of the holds it copied: its drops neither free the slot nor
 * unmap the ring. */
static void forked_childs_drop_does_nothing(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    take_all(ring);
    bind_batches(ring, 1, 1);
    CHECK(in_child(drop_and_unreference, ring));
    CHECK_EQ(atomic_load(&ring->control->bound), 2);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_HELD);
    rf_drop(ring, 0);
    CHECK_EQ(atomic_load(&ring->control->bound), 3);
    rf_unreference(ring);
}

static void end_everything(struct rf_ring *ring)
{
    rf_requeue(ring);
    rf_cancel(ring);
    rf_alarm(ring);
    rf_stop(ring);
}

/* Nor is it the consumer: what its copy of the loader ends is not its parent's ring. */
static void forked_child_ends_nothing(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    bind_batches(ring, 1, 1);
    uint32_t news = atomic_load(&ring->control->news_seq);
    CHECK(in_child(end_everything, ring));
    CHECK_EQ(atomic_load(&ring->control->stop), 0);
    CHECK_EQ(atomic_load(&ring->control->head), 0);
    CHECK_EQ(atomic_load(&ring->control->cancel_upto), 0);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, 0, 0, RF_AVAIL));
    CHECK_EQ(atomic_load(&ring->control->news_seq), news);
    rf_unreference(ring);
}

/* ---- breaking off ---- */

/* A break raises cancel_upto, drops the plan, and frees what nobody is in. */
static void cancel_starts_empty(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    bind_batches(ring, 4, 2);
    place_word(ring, 0, 0, rf_word(0, 0, 1, RF_READY));
    rf_cancel(ring);
    CHECK_EQ(atomic_load(&ring->control->cancel_upto), 4);
    CHECK_EQ(atomic_load(&ring->control->head), 2);
    CHECK_EQ(rf_look(ring), RF_DRY);
    for (uint32_t slot = 0; slot < 2; slot++) {
        CHECK_EQ(rf_slot_state(ring, slot), RF_SLOT_FREE);
        CHECK_EQ(rf_word_state(word_at(ring, slot, 0)), RF_EMPTY);
        CHECK_EQ(rf_word_state(word_at(ring, slot, 1)), RF_EMPTY);
    }
    CHECK_EQ(ring->binder->free_count, 2);
    rf_unreference(ring);
}

/* Workers see that their ticket was cancelled, and none of a later epoch. */
static void cancel_is_seen_by_workers(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct rf_claim old, new;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &old));
    CHECK(!rf_cancelled(&old));
    rf_cancel(ring);
    CHECK(rf_cancelled(&old));
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 1, &new));
    CHECK(!rf_cancelled(&new));
    rf_unreference(ring);
}

/* A draining slot stays out of use while a worker is in it, whatever is planned; its other
 * cells are swept. */
static void draining_slot_waits_for_its_worker(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    struct rf_claim claim;
    bind_batches(ring, 2, 2);
    CHECK(claim_as(ring, 0, &claim)); /* slot 0 */
    rf_cancel(ring);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_DRAINING);
    CHECK_EQ(rf_word_state(word_at(ring, 0, 1)), RF_CANCELLED);
    bind_batches(ring, 2, 2);
    CHECK_EQ(atomic_load(&ring->control->bound), 3);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(0, 0, 0, RF_CLAIMED));
    rf_publish(ring, &claim, true);
    rf_bind(ring);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    CHECK_EQ(word_at(ring, 0, 0), rf_word(6, 0, 0, RF_AVAIL));
    rf_unreference(ring);
}

/* Whoever collects a draining slot sweeps it once more: a ticket that came back
 * meanwhile is cancelled. */
static void draining_slot_is_swept_once_more(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct rf_claim claim;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &claim));
    rf_cancel(ring);
    place_word(ring, 0, 0, rf_word(0, 1, 0, RF_AVAIL));
    rf_bind(ring);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_FREE);
    CHECK_EQ(rf_word_state(word_at(ring, 0, 0)), RF_EMPTY);
    CHECK_EQ(ring->binder->draining, 0);
    rf_unreference(ring);
}

/* A ticket finished in spite of the break is not delivered. */
static void cancelled_batch_is_never_delivered(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct rf_claim claim;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &claim));
    rf_cancel(ring);
    rf_publish(ring, &claim, false);
    CHECK_EQ(rf_look(ring), RF_DRY);
    bind_batches(ring, 1, 1);
    fill_all(ring, 1);
    CHECK_EQ(taken_of(ring).batch, 1);
    rf_unreference(ring);
}

/* A break leaves the batches in the consumer's hands alone. */
static void cancel_leaves_held_slots(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 1);
    bind_batches(ring, 3, 1);
    fill_all(ring, 0);
    struct rf_taken taken = taken_of(ring);
    rf_cancel(ring);
    CHECK_EQ(rf_slot_state(ring, taken.slot), RF_SLOT_HELD);
    CHECK_EQ(ring->binder->free_count, 2);
    rf_drop(ring, taken.slot);
    CHECK_EQ(ring->binder->free_count, 3);
    rf_unreference(ring);
}

/* An epoch is over for the consumer as soon as it has taken all, though whoever bound the last
 * batch is not done yet. */
static void dry_is_seen_while_another_thread_unlocks(void)
{
    struct rf_ring *ring = ring_of(1, 1, 1, 1);
    bind_batches(ring, 1, 1);
    fill_all(ring, 0);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    taken_of(ring);
    /* bind_batch() has stored `bound`, and not yet this. */
    atomic_store(&ring->binder->plan_read, 0);
    atomic_store(&ring->binder->lock, 1);
    CHECK_EQ(rf_look(ring), RF_DRY);
    rf_unreference(ring);
}

/* ---- fencing ---- */

/* What was bound and not taken is bound again, in order, with its indices, under new numbers;
 * nothing else changes. */
static void requeue_binds_the_same_again(void)
{
    struct rf_ring *ring = ring_of(3, 2, 2, 2);
    bind_batches(ring, 4, 2);
    fill_all(ring, 0);
    rf_drop(ring, taken_of(ring).slot);
    const int64_t again[] = {7, 8};
    CHECK(rf_plan(ring, again, 2, 9, 5));
    rf_requeue(ring);
    CHECK_EQ(rf_plan_room(ring), PLACE_CAPACITY - 4);
    for (uint64_t batch = 4; batch < 8; batch++) {
        fill_all(ring, 1);
        struct rf_taken taken = taken_of(ring);
        CHECK_EQ(taken.batch, batch);
        CHECK_EQ(taken.epoch, batch == 7 ? 9 : 1);
        CHECK_EQ(rf_slot_indices(ring, taken.slot)[0], batch == 7 ? 7 : 0);
        CHECK_EQ(rf_slot_indices(ring, taken.slot)[1], batch == 7 ? 8 : 1);
        rf_drop(ring, taken.slot);
    }
    CHECK_EQ(rf_look(ring), RF_DRY);
    rf_unreference(ring);
}

/* Planned batches keep their places until they are taken, however often they are bound. */
static void requeue_survives_a_full_plan(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    for (int64_t index = 0; index < PLACE_CAPACITY; index++)
        CHECK(rf_plan(ring, &index, 1, 0, 0));
    for (uint32_t batch = 0; batch < 3 * PLACE_CAPACITY; batch++) {
        rf_requeue(ring);
        fill_all(ring, 0);
        struct rf_taken taken = taken_of(ring);
        CHECK_EQ(rf_slot_indices(ring, taken.slot)[0], batch);
        int64_t next = batch + PLACE_CAPACITY;
        CHECK(rf_plan(ring, &next, 1, 0, 0));
        CHECK(!rf_plan(ring, &next, 1, 0, 0));
        rf_drop(ring, taken.slot);
    }
    rf_unreference(ring);
}

/* The slot of a worker that cannot be ended is out of use until he is reaped; what he writes and
 * publishes is nobody's. */
static void fenced_workers_slot_is_quarantined(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, 2);
    struct rf_claim fenced;
    bind_batches(ring, 2, 2);
    CHECK(claim_as(ring, 0, &fenced)); /* slot 0 */
    rf_requeue(ring);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_DRAINING);
    for (uint64_t batch = 2; batch < 4; batch++) {
        fill_all(ring, 1);
        struct rf_taken taken = taken_of(ring);
        CHECK_EQ(taken.batch, batch);
        CHECK_EQ(taken.slot, 1);
        CHECK(!taken.failed);
        rf_drop(ring, taken.slot);
    }
    CHECK(rf_cancelled(&fenced));
    CHECK_EQ(rf_reap(ring, 0, false).claims, 1);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_FREE);
    rf_unreference(ring);
}

/* One that wakes up after all and publishes frees his slot; the batch is the one that
 * others have filled. */
static void fenced_worker_may_wake_up(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct rf_claim fenced;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &fenced));
    rf_requeue(ring);
    fill_all(ring, 1);
    rf_fail(&fenced, 0, "late", 4);
    rf_publish(ring, &fenced, false);
    struct rf_taken taken = taken_of(ring);
    CHECK_EQ(taken.batch, 1);
    CHECK(!taken.failed);
    rf_drop(ring, taken.slot);
    rf_bind(ring);
    CHECK_EQ(ring->binder->free_count, 2);
    rf_unreference(ring);
}

/* Where every slot is quarantined or held nothing is ready, and the consumer waits. */
static void quarantine_of_all_slots_is_waited_for(void)
{
    struct rf_ring *ring = ring_of(1, 1, 1, 1);
    struct rf_claim fenced;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &fenced));
    rf_requeue(ring);
    CHECK_EQ(rf_look(ring), RF_PENDING);
    rf_reap(ring, 0, false);
    fill_all(ring, 0);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(plan_is_full_and_empty_again);
    RUN(plan_refuses_too_few_and_too_many_rows);
    RUN(bind_prepares_the_slot);
    RUN(bind_follows_the_plan);
    RUN(tickets_never_exceed_the_cells);
    RUN(ticket_size_follows_the_work);
    RUN(last_drop_frees_the_slot);
    RUN(slots_are_released_in_any_order);
    RUN(release_under_a_busy_lock_is_picked_up);
    RUN(release_wakes_after_it_binds);
    RUN(forked_childs_drop_does_nothing);
    RUN(forked_child_ends_nothing);
    RUN(cancel_starts_empty);
    RUN(cancel_is_seen_by_workers);
    RUN(draining_slot_waits_for_its_worker);
    RUN(draining_slot_is_swept_once_more);
    RUN(cancelled_batch_is_never_delivered);
    RUN(cancel_leaves_held_slots);
    RUN(dry_is_seen_while_another_thread_unlocks);
    RUN(requeue_binds_the_same_again);
    RUN(requeue_survives_a_full_plan);
    RUN(fenced_workers_slot_is_quarantined);
    RUN(fenced_worker_may_wake_up);
    RUN(quarantine_of_all_slots_is_waited_for);
    return check_end("test_bind");
}
