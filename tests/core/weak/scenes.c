/* The scenes: what a consumer, workers, releasers and a watcher do at the same time, with the functions of the core. */
#include "scenes.h"

#include "stage.h"

static void work_as_0(void) { work(0); }
static void work_as_1(void) { work(1); }

static bool is_stopped(void) { return atomic_load_explicit(&ring->control->stop, memory_order_relaxed); }

/* As one that leaves tickets to others. */
static void work_and_yield(void)
{
    struct rf_cursor cursor = {0};
    rf_set_yielding(ring, 1, &cursor);
    work_by(1, &cursor);
}

/* ---- batches go round ---- */

static void take_three(void)
{
    for (int64_t first = 0; first < 30; first += 10)
        plan(first);
    rf_bind(ring);
    for (int64_t first = 0; first < 30; first += 10)
        rf_drop(ring, take(first));
    shim_check(rf_wait_head(ring, 0, FOREVER) == RF_DRY, "a batch is left over");
    rf_stop(ring);
}

static void take_two(void)
{
    plan(0);
    plan(10);
    rf_bind(ring);
    rf_drop(ring, take(0));
    rf_drop(ring, take(10));
    rf_stop(ring);
}

/* As a training loop does: a batch lives until the next one has come. */
static void take_and_keep(void)
{
    for (int64_t first = 0; first < 40; first += 10)
        plan(first);
    rf_bind(ring);
    uint32_t kept = take(0);
    for (int64_t first = 10; first < 40; first += 10) {
        uint32_t next = take(first);
        rf_drop(ring, kept);
        kept = next;
    }
    rf_stop(ring);
}

/* ---- other threads release ---- */

static uint32_t handed[2];

static void hand_over(unsigned number, uint32_t slot)
{
    handed[number] = slot;
    shim_signal(number);
}

static void take_and_share(void)
{
    plan(0);
    plan(10);
    rf_bind(ring);
    uint32_t slot = take(0);
    rf_hold(ring, slot);
    hand_over(0, slot);
    check_rows(slot, 0);
    rf_drop(ring, slot);
    (void)take(10);
    rf_stop(ring);
}

static void drop_other(unsigned number, int64_t first)
{
    shim_await(number);
    check_rows(handed[number], first);
    rf_drop(ring, handed[number]);
}

static void drop_first(void) { drop_other(0, 0); }
static void drop_second(void) { drop_other(1, 10); }

static void take_while_others_drop(void)
{
    for (int64_t first = 0; first < 40; first += 10)
        plan(first);
    rf_bind(ring);
    hand_over(0, take(0));
    hand_over(1, take(10));
    (void)take(20);
    (void)take(30);
    rf_stop(ring);
}

/* What the other thread binds is planned at the same time, in the only place there is. */
static void plan_while_another_binds(void)
{
    plan(0);
    rf_bind(ring);
    hand_over(0, take(0));
    plan(10);
    uint32_t slot = take(10);
    plan(20);
    rf_drop(ring, slot);
    (void)take(20);
    rf_stop(ring);
}

/* The same, where there are more places than indices may stand in: that of the last is used again once it is bound. */
static void plan_while_the_window_moves(void)
{
    plan(0);
    rf_bind(ring);
    hand_over(0, take(0));
    plan(10);
    bool moved = rf_plan_room(ring) > 0;
    if (moved)
        plan(20);
    uint32_t slot = take(10);
    if (!moved)
        plan(20);
    rf_drop(ring, slot);
    (void)take(20);
    rf_stop(ring);
}

/* The last batch is bound by the thread that drops the one before. */
static void take_to_the_end(void)
{
    plan(0);
    plan(10);
    rf_bind(ring);
    hand_over(0, take(0));
    (void)take(10);
    shim_check(rf_wait_head(ring, 0, FOREVER) == RF_DRY, "a batch is left over");
    rf_stop(ring);
}

/* ---- an epoch is broken off, the next begins in the same slots ---- */

static void break_off(void)
{
    plan(0);
    plan(10);
    rf_bind(ring);
    rf_cancel(ring);
    plan(20);
    rf_bind(ring);
    (void)take(20);
    rf_stop(ring);
}

/* A worker that holds what it claims until it is cancelled, but for the batch that comes after the break. */
static void hold(void)
{
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    while (rf_claim_wait(ring, 0, &cursor, &claim, FOREVER) == RF_TAKEABLE) {
        if (claim.indices[0] >= 20)
            *row_of(claim.slot, claim.first_row) = claim.indices[0];
        for (uint32_t seen = rf_breaks(ring); claim.indices[0] < 20 && !rf_cancelled(&claim) && !is_stopped();)
            seen = rf_break_wait(ring, seen, FOREVER);
        if (is_stopped())
            return;
        rf_publish(ring, &claim, rf_cancelled(&claim));
    }
}

/* While a worker holds a ticket the ring is stopped. */
static void stop_the_holder(void)
{
    plan(0);
    rf_bind(ring);
    rf_stop(ring);
}

/* ---- what is bound is bound again, since a worker stands still in a ticket; he goes on, and must do no harm ---- */

static void fence(void)
{
    plan(0);
    plan(10);
    rf_bind(ring);
    rf_requeue(ring);
    uint32_t kept = take(0);
    (void)take(10);
    rf_drop(ring, kept);
    rf_stop(ring);
}

/* ---- a worker dies in a row, another one goes on ---- */

static void die_in_row(void)
{
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    if (rf_claim_wait(ring, 0, &cursor, &claim, FOREVER) == RF_TAKEABLE) {
        rf_blame(&claim, 0);
        *row_of(claim.slot, claim.first_row) = -1;
    }
    shim_signal(0); /* its pidfd */
}

static void reap(void)
{
    shim_await(0);
    (void)rf_reap(ring, 0, true);
}

/* ---- sleeps end ---- */

static void wait_for_the_stop(void)
{
    plan(0);
    shim_signal(0);
    enum rf_answer answer = rf_wait_head(ring, 0, FOREVER);
    shim_check(answer == RF_STOPPED || answer == RF_TAKEABLE, "a wait ends before the stop");
}

static void stop(void)
{
    shim_await(0);
    rf_stop(ring);
}

/* One worker is sent away while batches come: it goes, and they are filled. */
static void send_one_away(void)
{
    plan(0);
    plan(10);
    rf_bind(ring);
    rf_set_worker_count(ring, 1);
    rf_retire(ring, 1);
    rf_drop(ring, take(0));
    rf_drop(ring, take(10));
    shim_await(0);
    rf_stop(ring);
}

static void work_and_leave(void)
{
    work(1);
    shim_signal(0);
}

static void wait_for_the_alarm(void)
{
    plan(0);
    rf_bind(ring);
    shim_check(rf_wait_head(ring, 0, FOREVER) == RF_ALARMED, "a wait ends before the alarm");
}

static void raise_alarm(void) { rf_alarm(ring); }

/* ---- two threads take ---- */

/* The next batch of epoch id 1, whichever it is. */
static void take_next(void)
{
    const struct rf_terms terms = {.epoch_id = 1, .room = RF_ANY_ROOM};
    struct rf_taken taken;
    enum rf_answer answer = rf_next(ring, &terms, &taken);
    while (answer == RF_PENDING) {
        (void)rf_wait_head(ring, 1, FOREVER);
        answer = rf_next(ring, &terms, &taken);
    }
    shim_check(answer == RF_TAKEABLE, "a batch is missing");
    check_rows(taken.slot, (int64_t)taken.batch * 10);
    rf_note_stall(ring, 1);
}

static void plan_and_take(void)
{
    rf_begin(ring, 1);
    plan(0);
    plan(10);
    rf_bind(ring);
    shim_signal(0);
    take_next();
    shim_await(1);
    shim_check(rf_look(ring) == RF_DRY, "a batch is left over");
    rf_stop(ring);
}

static void take_as_well(void)
{
    shim_await(0);
    take_next();
    shim_signal(1);
}

/* A break ends the wait of a thread that waits in the epoch. */
static void break_while_another_waits(void)
{
    rf_begin(ring, 1);
    plan(0);
    rf_bind(ring);
    shim_signal(0);
    rf_cancel(ring);
    shim_await(1);
    rf_stop(ring);
}

static void wait_in_the_epoch(void)
{
    shim_await(0);
    enum rf_answer answer = rf_wait_head(ring, 1, FOREVER);
    shim_check(answer == RF_STALE || answer == RF_TAKEABLE, "a wait outlives its epoch");
    shim_signal(1);
}

/* ---- all of them ---- */

#define ONE_SLOT(w) {.slots = 1, .cells = 1, .workers = w, .rows = 1, .capacity = 4}
#define TWO_SLOTS(w) {.slots = 2, .cells = 1, .workers = w, .rows = 1, .capacity = 4}
#define TWO_TICKETS(w) {.slots = 1, .cells = 2, .workers = w, .rows = 2, .capacity = 4}
#define ONE_PLANNED {.slots = 1, .cells = 1, .workers = 1, .rows = 1, .capacity = 1}
#define ONE_IN_THE_WINDOW {.slots = 1, .cells = 1, .workers = 1, .rows = 1, .capacity = 4, .window = 1}
#define BRISK {.slots = 1, .cells = 1, .workers = 2, .rows = 1, .capacity = 4, .spin_ns = 2}

const struct scene scenes[] = {
    {"fill", "one worker, three batches, one slot", ONE_SLOT(1), 2, {take_three, work_as_0}},
    {"race", "two workers want one ticket", ONE_SLOT(2), 3, {take_two, work_as_0, work_as_1}},
    {"share", "two workers share a batch", TWO_TICKETS(2), 3, {take_two, work_as_0, work_as_1}},
    {"slots", "a batch is kept until the next comes", TWO_SLOTS(1), 2, {take_and_keep, work_as_0}},
    {"pace", "tickets are short: look again", BRISK, 3, {take_three, work_as_0, work_as_1}},
    {"release", "two threads hold a slot", ONE_SLOT(1), 3, {take_and_share, work_as_0, drop_first}},
    {"drops",
     "two threads drop at once",
     TWO_SLOTS(1),
     4,
     {take_while_others_drop, work_as_0, drop_first, drop_second}},
    {"plan", "one thread plans, another binds", ONE_PLANNED, 3, {plan_while_another_binds, work_as_0, drop_first}},
    {"window",
     "and its indices make room for others",
     ONE_IN_THE_WINDOW,
     3,
     {plan_while_the_window_moves, work_as_0, drop_first}},
    {"dry", "another thread binds the last batch", ONE_SLOT(1), 3, {take_to_the_end, work_as_0, drop_first}},
    {"break", "an epoch is broken off", ONE_SLOT(1), 2, {break_off, work_as_0}},
    {"break-2", "the same, two workers in two tickets", TWO_TICKETS(2), 3, {break_off, work_as_0, work_as_1}},
    {"hold", "the same, and a worker holds its ticket until it is told", ONE_SLOT(1), 2, {break_off, hold}},
    {"hold-stop", "and until the stop", ONE_SLOT(1), 2, {stop_the_holder, hold}},
    {"yield", "a worker leaves tickets to one that sleeps", ONE_SLOT(2), 3, {take_three, work_as_0, work_and_yield}},
    {"fence", "all that is bound is bound again", TWO_SLOTS(2), 3, {fence, work_as_0, work_as_1}},
    {"reap", "a worker dies in a row", ONE_SLOT(2), 4, {take_two, die_in_row, work_as_1, reap}},
    {"reap-break", "and the epoch is broken off", ONE_SLOT(2), 4, {break_off, die_in_row, work_as_1, reap}},
    {"reap-fence", "and all that is bound is bound again", TWO_SLOTS(2), 4, {fence, die_in_row, work_as_1, reap}},
    {"stop", "all sleep, and are woken", ONE_SLOT(1), 3, {wait_for_the_stop, work_as_0, stop}},
    {"leave", "one of two workers is sent away", ONE_SLOT(2), 3, {send_one_away, work_as_0, work_and_leave}},
    {"alarm", "the pool has news", ONE_SLOT(1), 2, {wait_for_the_alarm, raise_alarm}},
    {"consumers", "two threads take", TWO_SLOTS(1), 3, {plan_and_take, work_as_0, take_as_well}},
    {"stale",
     "a thread waits in an epoch that is broken off",
     ONE_SLOT(1),
     2,
     {break_while_another_waits, wait_in_the_epoch}},
};
const unsigned scene_count = sizeof scenes / sizeof *scenes;
