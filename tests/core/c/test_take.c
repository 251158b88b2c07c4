/* Looking at the head batch and taking it. */
#include "check.h"
#include "place.h"

/* A batch that is ready early waits for those before it. */
static void batches_are_taken_in_order(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 2);
    bind_batches(ring, 3, 2);
    place_published(ring, 2, 0, RF_READY);
    place_published(ring, 1, 0, RF_READY);
    CHECK_EQ(rf_look(ring), RF_PENDING);
    place_published(ring, 0, 0, RF_READY);
    for (uint64_t batch = 0; batch < 3; batch++) {
        CHECK_EQ(rf_look(ring), RF_TAKEABLE);
        CHECK_EQ(taken_of(ring).batch, batch);
    }
    CHECK_EQ(rf_look(ring), RF_DRY);
    rf_unreference(ring);
}

/* Taking sums up the rows, tells of failures, empties the cells and holds the slot once. */
static void take_tells_of_the_batch(void)
{
    struct rf_ring *ring = ring_of(2, 3, 3, 7);
    struct rf_claim claim;
    bind_batches(ring, 1, 7);
    CHECK(claim_as(ring, 0, &claim));
    rf_fail(&claim, 0, "x", 1);
    rf_publish(ring, &claim, false);
    CHECK_EQ(fill_all(ring, 0), 2);
    struct rf_taken taken = taken_of(ring);
    CHECK_EQ(taken.rows, 7);
    CHECK_EQ(taken.tickets, 3);
    CHECK_EQ(taken.epoch, 1);
    CHECK(taken.failed);
    for (uint32_t cell = 0; cell < 3; cell++)
        CHECK_EQ(rf_word_state(word_at(ring, taken.slot, cell)), RF_EMPTY);
    CHECK_EQ(rf_slot_state(ring, taken.slot), RF_SLOT_HELD);
    CHECK_EQ(atomic_load(&ring->binder->holds[taken.slot].count), 1);
    CHECK(rf_report_slot(ring, taken.slot).held_ns > 0);
    rf_unreference(ring);
}

/* A whole batch says its own length. */
static void take_counts_the_rows_delivered(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    struct rf_claim claim;
    bind_batches(ring, 1, 1);
    CHECK(claim_as(ring, 0, &claim));
    claim.rows_delivered = 41;
    rf_publish(ring, &claim, false);
    CHECK_EQ(taken_of(ring).rows, 41);
    rf_unreference(ring);
}

static void clear_alarm(struct rf_ring *ring) { atomic_store(&ring->binder->alarm, 0); }

/* What is ready can be taken before anything else is answered; then come the stop,
 * and the alarm. */
static void look_answers_in_the_order_of_urgency(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    CHECK_EQ(rf_look(ring), RF_DRY);
    bind_batches(ring, 3, 1);
    CHECK_EQ(rf_look(ring), RF_PENDING);
    rf_alarm(ring);
    CHECK_EQ(rf_look(ring), RF_ALARMED);
    clear_alarm(ring);
    fill_all(ring, 0);
    rf_alarm(ring);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    taken_of(ring);
    taken_of(ring);
    clear_alarm(ring);
    CHECK_EQ(rf_look(ring), RF_HELD);
    rf_alarm(ring);
    rf_stop(ring);
    CHECK_EQ(rf_look(ring), RF_STOPPED);
    rf_unreference(ring);
}

/* Beside the head's slot another must be free or bound; one held alone counts only for those who
 * let go of it. */
static void room_is_left_besides_the_head(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 1);
    bind_batches(ring, 3, 1);
    CHECK(rf_leaves_room(ring, false));
    fill_all(ring, 0);
    uint32_t first = taken_of(ring).slot;
    CHECK(rf_leaves_room(ring, false)); /* 1 held, 2 bound */
    uint32_t second = taken_of(ring).slot;
    CHECK(!rf_leaves_room(ring, false));
    CHECK(!rf_leaves_room(ring, true)); /* 2 held */
    rf_drop(ring, first);
    CHECK(rf_leaves_room(ring, false)); /* 1 held, 1 bound, 1 free */
    rf_drop(ring, second);
    rf_unreference(ring);

    ring = ring_of(2, 1, 1, 1);
    bind_batches(ring, 2, 1);
    fill_all(ring, 0);
    taken_of(ring);
    CHECK(!rf_leaves_room(ring, false));
    CHECK(rf_leaves_room(ring, true));
    taken_of(ring);
    CHECK(!rf_leaves_room(ring, true));
    rf_unreference(ring);

    ring = ring_of(1, 1, 1, 1);
    CHECK(!rf_leaves_room(ring, true)); /* none held, and one slot in all */
    rf_unreference(ring);
}

/* What needs no decision is taken in one step; else the answer says what is to be decided, and
 * the batch stays. */
static void only_what_is_plain_is_taken_at_once(void)
{
    struct rf_ring *ring = ring_of(3, 2, 2, 4);
    struct rf_taken taken = {.batch = 77};
    const struct rf_terms terms = {.epoch_id = 1, .room = RF_ANY_ROOM};
    bind_batches(ring, 4, 4);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_STALE);
    rf_begin(ring, 1);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_PENDING);
    place_published(ring, 0, 0, RF_READY);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_PENDING);
    CHECK_EQ(taken.batch, 77);
    place_published(ring, 0, 1, RF_READY);
    rf_set_due(ring, -1);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_DUE);
    rf_set_due(ring, 1); /* once a batch has been taken since: the engine has just looked */
    rf_set_low_water(ring, 4);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_PLAN);
    rf_set_low_water(ring, 3);
    rf_alarm(ring);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_TAKEABLE);
    CHECK_EQ(taken.batch, 0);
    CHECK_EQ(rf_slot_state(ring, taken.slot), RF_SLOT_HELD);
    clear_alarm(ring);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_DUE);
    rf_set_due(ring, soon_ns(60000));
    rf_set_low_water(ring, 0);
    place_published(ring, 1, 0, RF_READY);
    place_word(ring, 1, 1, rf_word(3, 0, 0, RF_FAILED));
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_GAPS);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    place_published(ring, 1, 1, RF_READY);
    ring->generation += 1;
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_STOPPED);
    CHECK_EQ(rf_look(ring), RF_STOPPED);
    ring->generation -= 1;
    rf_stop(ring);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_STOPPED);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    CHECK_EQ(taken.batch, 0);
    rf_unreference(ring);
}

/* A caller's own terms: what is to stay planned, and the room that is to be left. */
static void a_caller_has_its_terms(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    struct rf_taken taken;
    struct rf_terms terms = {.kept = 3, .room = RF_A_SLOT};
    bind_batches(ring, 3, 1);
    fill_all(ring, 0);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_PLAN);
    terms.kept = 1;
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_TAKEABLE);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_CROWDED);
    terms.room = RF_OWN_ROOM;
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_TAKEABLE);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_PLAN);
    terms.kept = 0;
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_HELD);
    rf_unreference(ring);
}

/* After a break no epoch is under way; it ends the wait of the one that was. */
static void a_break_ends_the_epoch(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    struct rf_taken taken;
    const struct rf_terms terms = {.epoch_id = 5};
    rf_begin(ring, 5);
    bind_batches(ring, 1, 1);
    rf_cancel(ring);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_STALE);
    CHECK_EQ(rf_wait_head(ring, 5, soon_ns(60000)), RF_STALE);
    rf_unreference(ring);
}

/* A batch beyond the border is filled, but not there for this epoch: no call takes it or
 * waits for it. */
static void an_epoch_ends_at_the_border(void)
{
    struct rf_ring *ring = ring_of(4, 1, 1, 1);
    struct rf_taken taken = {.batch = 77};
    struct rf_terms terms = {.epoch_id = 5, .room = RF_ANY_ROOM};
    rf_begin(ring, 5);
    bind_batches(ring, 1, 1);
    rf_set_border(ring);
    bind_batches(ring, 2, 1);
    CHECK_EQ(fill_all(ring, 0), 3);
    CHECK_EQ(rf_planned(ring), 3);
    CHECK_EQ(rf_left(ring), 1);
    terms.kept = 1;
    /* The last of its epoch, though others follow. */
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_PLAN);
    terms.kept = 0;
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_TAKEABLE);
    CHECK_EQ(taken.place, 0);
    CHECK_EQ(rf_left(ring), 0);
    taken = (struct rf_taken){.batch = 77};
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_DRY);
    CHECK_EQ(rf_take(ring, &taken), RF_DRY);
    CHECK_EQ(rf_look(ring), RF_DRY);
    CHECK_EQ(rf_wait_head(ring, 5, soon_ns(60000)), RF_DRY);
    CHECK_EQ(rf_wait_slot(ring, soon_ns(60000)), RF_DRY);
    CHECK_EQ(taken.batch, 77);
    rf_begin(ring, 6);
    CHECK_EQ(rf_left(ring), 2);
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_STALE);
    terms.epoch_id = 6;
    CHECK_EQ(rf_next(ring, &terms, &taken), RF_TAKEABLE);
    CHECK_EQ(taken.place, 1);
    rf_unreference(ring);
}

/* An alarm is the next epoch's at the border, the stop is every epoch's; a fence leaves the border
 * in its place. */
static void the_border_stays_through_a_fence(void)
{
    struct rf_ring *ring = ring_of(4, 1, 1, 1);
    struct rf_taken taken;
    rf_begin(ring, 5);
    bind_batches(ring, 2, 1);
    rf_set_border(ring);
    bind_batches(ring, 1, 1);
    fill_all(ring, 0);
    taken_of(ring);
    rf_requeue(ring);
    CHECK_EQ(rf_look(ring), RF_PENDING);
    CHECK_EQ(fill_all(ring, 0), 2);
    CHECK_EQ(taken_of(ring).place, 1);
    CHECK_EQ(rf_take(ring, &taken), RF_DRY);
    rf_alarm(ring);
    CHECK_EQ(rf_look(ring), RF_DRY);
    rf_stop(ring);
    CHECK_EQ(rf_look(ring), RF_STOPPED);
    rf_unreference(ring);
}

/* A break leaves no border behind: what is planned next is the next epoch's own. */
static void a_break_takes_the_border_away(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 1);
    rf_begin(ring, 5);
    rf_set_border(ring);
    bind_batches(ring, 2, 1);
    fill_all(ring, 0);
    CHECK_EQ(rf_look(ring), RF_DRY);
    rf_cancel(ring);
    CHECK_EQ(rf_left(ring), 0);
    rf_begin(ring, 6);
    bind_batches(ring, 1, 1);
    fill_all(ring, 0);
    CHECK_EQ(rf_left(ring), 1);
    CHECK_EQ(taken_of(ring).place, 2);
    rf_unreference(ring);
}

/* A slot is ready when all its tickets are final, whatever stands in the cells it does not use. */
static void slot_is_ready_when_its_tickets_are_final(void)
{
    struct rf_ring *ring = ring_of(2, 4, 2, 4);
    bind_batches(ring, 1, 4); /* two tickets, two cells unused */
    CHECK(!rf_cells_are_final(rf_report_slot(ring, 0).cells));
    place_published(ring, 0, 0, RF_READY);
    CHECK(!rf_cells_are_final(rf_report_slot(ring, 0).cells));
    place_word(ring, 0, 1, rf_word(1, 0, 0, RF_FAILED));
    CHECK(rf_cells_are_final(rf_report_slot(ring, 0).cells));
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(batches_are_taken_in_order);
    RUN(take_tells_of_the_batch);
    RUN(take_counts_the_rows_delivered);
    RUN(look_answers_in_the_order_of_urgency);
    RUN(room_is_left_besides_the_head);
    RUN(only_what_is_plain_is_taken_at_once);
    RUN(a_caller_has_its_terms);
    RUN(a_break_ends_the_epoch);
    RUN(an_epoch_ends_at_the_border);
    RUN(the_border_stays_through_a_fence);
    RUN(a_break_takes_the_border_away);
    RUN(slot_is_ready_when_its_tickets_are_final);
    return check_end("test_take");
}
