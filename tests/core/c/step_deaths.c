/* Death at any instruction. A worker process is stepped through its work; after each instruction,
 * what is in shared memory then is copied, and the copy must be whole again after a reap: a stopped
 * process has left there what a dead one has. */
#include "check.h"
#include "place.h"
#include "trace.h"

#include <string.h>

enum { ROWS = 3, STEPS_MOST = 200000 };

static uint64_t content_of(uint32_t row) { return UINT64_C(0x0123456789abcdef) * (row + 1); }

/* Claim, fill and publish, as worker `number`; row 1 fails where `fails`. */
static void work(struct rf_ring *ring, uint32_t number, bool fails)
{
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    while (rf_claim_wait(ring, number, &cursor, &claim, 0) == RF_TAKEABLE) {
        for (uint32_t row = 0; row < claim.rows; row++) {
            rf_blame(&claim, row);
            ((uint64_t *)(void *)claim.base)[claim.first_row + row] =
                content_of(claim.first_row + row);
            if (fails && claim.first_row + row == 1)
                rf_fail(&claim, row, "failed", 6);
        }
        rf_publish(ring, &claim, rf_cancelled(&claim));
    }
}

/* A ring with one batch of two tickets, on which the consumer waits. */
static struct rf_ring *bound_ring(void)
{
    struct rf_ring *ring = ring_of(2, 2, 2, ROWS);
    rf_delist(ring); /* the traced children share it */
    bind_batches(ring, 1, ROWS);
    atomic_store(&ring->control->consumer_wait, 2); /* for the second ticket */
    return ring;
}

/* ---- after a death ---- */

/* A ring like the worker's, whose consumer can be set back to where it was before any death. */
struct replica {
    struct rf_ring *ring;
    struct rf_binder binder;
    struct rf_hold holds[2];
    uint32_t free_slots[2];
};

static struct replica replica_made(void)
{
    struct replica replica = {.ring = bound_ring()};
    const struct rf_binder *binder = replica.ring->binder;
    memcpy((void *)&replica.binder, (const void *)binder, sizeof replica.binder);
    memcpy((void *)replica.holds, (const void *)binder->holds, sizeof replica.holds);
    memcpy(replica.free_slots, binder->free_slots, sizeof replica.free_slots);
    return replica;
}

/* Copy what the worker has left in shared memory; the consumer is awake. */
static void replicate(struct replica *replica, const struct rf_ring *ring)
{
    struct rf_binder *binder = replica->ring->binder;
    replica->binder.deaths = binder->deaths; /* none is counted there, but it grows */
    replica->binder.death_room = binder->death_room;
    memcpy((void *)binder, (const void *)&replica->binder, sizeof *binder);
    memcpy((void *)binder->holds, (const void *)replica->holds, sizeof replica->holds);
    memcpy(binder->free_slots, replica->free_slots, sizeof replica->free_slots);
    memcpy((void *)replica->ring->control, (const void *)ring->control, ring->control_size);
    memcpy(replica->ring->slots, ring->slots, ring->slots_size);
    atomic_store(&replica->ring->control->consumer_wait, RF_WAIT_NONE);
}

/* The batch is delivered once, whole, by what another worker does. */
static void check_delivered(struct rf_ring *ring, bool fails)
{
    work(ring, 1, fails);
    CHECK_EQ(rf_look(ring), RF_TAKEABLE);
    struct rf_taken taken = taken_of(ring);
    CHECK(taken.rows == ROWS && taken.failed == fails);
    for (uint32_t row = 0; row < ROWS; row++) {
        CHECK_EQ(((const uint64_t *)(void *)rf_slot_base(ring, taken.slot))[row], content_of(row));
        CHECK_EQ(rf_slot_marks(ring, taken.slot)[row],
                 fails && row == 1 ? RF_ROW_RAISED : RF_ROW_OK);
    }
    CHECK_EQ(rf_slot_failure(ring, taken.slot, 0)->size, fails ? 6 : 0);
    rf_drop(ring, taken.slot);
    CHECK_EQ(ring->binder->free_count, 2);
}

/* Broken off before the reap, nothing is delivered, and no slot is lost. */
static void check_broken_off(struct rf_ring *ring)
{
    rf_cancel(ring);
    rf_reap(ring, 0, true);
    work(ring, 1, false);
    CHECK_EQ(rf_look(ring), RF_DRY);
    CHECK_EQ(ring->binder->free_count, 2);
}

static void check_death_here(struct replica *replica, const struct rf_ring *ring, bool fails)
{
    replicate(replica, ring);
    struct rf_reaped reaped = rf_reap(replica->ring, 0, true);
    if (reaped.claims > 1 || reaped.deaths > reaped.claims ||
        atomic_load(&replica->ring->control->sleepers[0]) != 0)
        check_report_numbers(__FILE__, __LINE__, "what was reaped", reaped.claims, 1);
    check_delivered(replica->ring, fails);
    replicate(replica, ring);
    check_broken_off(replica->ring);
}

static int work_well(void *ring)
{
    work(ring, 0, false);
    return 0;
}

static int work_badly(void *ring)
{
    work(ring, 0, true);
    return 0;
}

static void check_deaths(bool fails)
{
    struct rf_ring *ring = bound_ring();
    struct replica replica = replica_made();
    uint32_t steps = 0;
    pid_t pid = trace_start(fails ? work_badly : work_well, ring);
    while (trace_step(pid)) {
        check_death_here(&replica, ring, fails);
        steps += 1;
        if (!check_ok || steps == STEPS_MOST) {
            trace_kill(pid);
            break;
        }
    }
    rf_unreference(replica.ring);
    rf_unreference(ring);
    CHECK(steps > 100 && steps < STEPS_MOST);
}

/* A worker killed after any instruction of its work loses, doubles and spoils nothing. */
static void death_at_any_instruction_loses_nothing(void) { check_deaths(false); }

/* Nor while it records a failure. */
static void death_at_any_instruction_of_a_failure_loses_nothing(void) { check_deaths(true); }

int main(void)
{
    check_begin();
    if (!trace_is_allowed()) {
        printf("left out: a process may not be traced here\n");
        return check_end("step_deaths");
    }
    RUN(death_at_any_instruction_loses_nothing);
    RUN(death_at_any_instruction_of_a_failure_loses_nothing);
    return check_end("step_deaths");
}
