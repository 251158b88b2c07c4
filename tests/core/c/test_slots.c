/* More or fewer slots and workers, while it runs. */
#include "check.h"
#include "place.h"

#include <pthread.h>
#include <string.h>

static uint32_t count_in(const struct rf_ring *ring, enum rf_slot_state state)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        count += rf_slot_state(ring, slot) == state;
    return count;
}

/* Free slots are parked at once, from the last one down, and no batch is bound to them. */
static void free_slots_are_parked(void)
{
    struct rf_ring *ring = ring_of(4, 1, 1, 1);
    rf_set_open(ring, 2);
    CHECK_EQ(rf_slot_state(ring, 1), RF_SLOT_FREE);
    CHECK_EQ(rf_slot_state(ring, 2), RF_SLOT_PARKED);
    CHECK_EQ(rf_slot_state(ring, 3), RF_SLOT_PARKED);
    bind_batches(ring, 4, 1);
    CHECK_EQ(count_in(ring, RF_SLOT_BOUND), 2);
    CHECK_EQ(atomic_load(&ring->control->open_slots), 2);
    rf_unreference(ring);
}

/* A slot in use is parked when it is let go of: its batch and its views are as valid as any. */
static void used_slots_are_parked_later(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    bind_batches(ring, 3, 1);
    CHECK_EQ(fill_all(ring, 0), 2);
    struct rf_taken first = taken_of(ring);
    rf_set_open(ring, 1);
    struct rf_taken second = taken_of(ring);
    CHECK_EQ(first.slot + second.slot, 1);
    CHECK_EQ(count_in(ring, RF_SLOT_HELD), 2);
    rf_drop(ring, 1);
    CHECK_EQ(rf_slot_state(ring, 1), RF_SLOT_PARKED);
    CHECK_EQ(rf_look(ring), RF_HELD); /* by the view of the one that is open */
    rf_drop(ring, 0);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    rf_unreference(ring);
}

/* What is opened again is bound to what waits for a slot. */
static void parked_slots_are_opened(void)
{
    struct rf_ring *ring = ring_of(3, 1, 1, 1);
    rf_set_open(ring, 1);
    bind_batches(ring, 3, 1);
    CHECK_EQ(count_in(ring, RF_SLOT_BOUND), 1);
    rf_set_open(ring, 3);
    CHECK_EQ(count_in(ring, RF_SLOT_BOUND), 3);
    CHECK_EQ(fill_all(ring, 0), 3);
    rf_unreference(ring);
}

/* Numbers that make no sense mean the nearest that do: a ring without a slot would never go on. */
static void size_stays_in_its_bounds(void)
{
    struct rf_ring *ring = ring_of(3, 1, 2, 1);
    rf_set_open(ring, 0);
    CHECK_EQ(rf_open_slots(ring), 1);
    rf_set_open(ring, 9);
    CHECK_EQ(rf_open_slots(ring), 3);
    CHECK_EQ(count_in(ring, RF_SLOT_FREE), 3);
    rf_unreference(ring);
}

/* Draining slots are parked when the last worker has left them. */
static void draining_slots_are_parked(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    struct rf_claim claim;
    bind_batches(ring, 2, 1);
    CHECK(claim_as(ring, 0, &claim));
    CHECK(claim_as(ring, 0, &claim));
    CHECK_EQ(claim.slot, 1);
    rf_cancel(ring);
    rf_set_open(ring, 1);
    CHECK_EQ(rf_slot_state(ring, 1), RF_SLOT_DRAINING);
    rf_publish(ring, &claim, true);
    rf_bind(ring);
    CHECK_EQ(rf_slot_state(ring, 1), RF_SLOT_PARKED);
    rf_unreference(ring);
}

/* A parked slot's pages go back to the kernel; opened again it is zeroed, and takes rows
 * like any other. */
static void parked_slot_gives_its_memory_back(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    memset(rf_slot_base(ring, 1), 7, 8);
    rf_set_open(ring, 1);
    CHECK_EQ(rf_give_back(ring, 1), 0);
    CHECK_EQ(rf_slot_base(ring, 1)[0], 0);
    rf_set_open(ring, 2);
    bind_batches(ring, 2, 1);
    CHECK_EQ(fill_all(ring, 0), 2);
    rf_unreference(ring);
}

/* Who is to leave publishes what it is at, and claims no more; when it is reaped, its id
 * is like new. */
static void retired_worker_claims_no_more(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    bind_batches(ring, 2, 1);
    CHECK_EQ(rf_claim_wait(ring, 1, &cursor, &claim, soon_ns(1000)), RF_TAKEABLE);
    rf_retire(ring, 1);
    rf_publish(ring, &claim, false);
    CHECK_EQ(rf_claim_wait(ring, 1, &cursor, &claim, soon_ns(1000)), RF_STOPPED);
    CHECK_EQ(rf_claim_wait(ring, 0, &cursor, &claim, soon_ns(1000)), RF_TAKEABLE);
    rf_reap(ring, 1, false);
    bind_batches(ring, 1, 1);
    CHECK_EQ(rf_claim_wait(ring, 1, &(struct rf_cursor){0}, &claim, soon_ns(0)), RF_PENDING);
    rf_unreference(ring);
}

struct sleeper {
    struct rf_ring *ring;
    uint32_t worker;
    enum rf_answer answer;
};

static void *sleep_for_work(void *argument)
{
    struct sleeper *sleeper = argument;
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    sleeper->answer =
        rf_claim_wait(sleeper->ring, sleeper->worker, &cursor, &claim, soon_ns(60000));
    return NULL;
}

static bool is_asleep(struct rf_ring *ring, uint32_t worker)
{
    int64_t deadline_ns = soon_ns(60000);
    for (unsigned attempt = 0; rf_now_ns() < deadline_ns; attempt++) {
        if (atomic_load(&ring->control->sleepers[0]) & UINT64_C(1) << worker)
            return true;
        rf_yield(attempt);
    }
    return false;
}

/* One that sleeps wakes up to leave; the others sleep on, or take what there is. */
static void sleeping_worker_leaves(void)
{
    struct rf_ring *ring = ring_of(2, 1, 2, 1);
    struct sleeper leaver = {ring, 0, RF_PENDING}, stayer = {ring, 1, RF_PENDING};
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, sleep_for_work, &leaver);
    pthread_create(&threads[1], NULL, sleep_for_work, &stayer);
    bool slept = is_asleep(ring, 0) && is_asleep(ring, 1);
    rf_set_worker_count(ring, 1);
    rf_retire(ring, 0);
    pthread_join(threads[0], NULL);
    bind_batches(ring, 1, 1);
    pthread_join(threads[1], NULL);
    CHECK(slept);
    CHECK_EQ(leaver.answer, RF_STOPPED);
    CHECK_EQ(stayer.answer, RF_TAKEABLE);
    rf_unreference(ring);
}

/* With fewer workers a batch is cut into fewer tickets, and somebody who does not exist is
 * not waited for. */
static void crew_decides_the_tickets(void)
{
    struct rf_ring *ring = ring_of(2, 4, 4, 4);
    bind_batches(ring, 1, 4);
    CHECK_EQ(fill_all(ring, 0), 4);
    rf_drop(ring, taken_of(ring).slot);
    rf_cancel(ring);
    rf_set_worker_count(ring, 1);
    atomic_store(&ring->binder->row_ns, 0);
    bind_batches(ring, 1, 4);
    CHECK_EQ(fill_all(ring, 0), 1);
    rf_unreference(ring);
}

/* However many workers there are, a ticket is worth its own protocol: 4 us of work, or
 * the whole batch. */
static void a_ticket_is_worth_its_protocol(void)
{
    /* By ns of a row. */
    static const uint64_t tickets_at[][2] = {{100, 1}, {1000, 2}, {2000, 4}, {4000, 8}, {5000, 8}};
    struct rf_ring *ring = ring_of(2, 8, 8, 8);
    for (unsigned pace = 0; pace < sizeof tickets_at / sizeof *tickets_at; pace++) {
        atomic_store(&ring->binder->row_ns, tickets_at[pace][0]);
        bind_batches(ring, 1, 8);
        CHECK_EQ(fill_all(ring, 0), tickets_at[pace][1]);
        rf_drop(ring, taken_of(ring).slot);
    }
    rf_unreference(ring);
}

/* Rows of the next ticket, of a batch of 256 rows, where a row takes so long. */
static uint32_t ticket_of(struct rf_ring *ring, uint64_t row_ns)
{
    atomic_store(&ring->binder->row_ns, row_ns);
    bind_batches(ring, 1, 256);
    uint32_t rows = ring->records[0].rows_per_ticket;
    rf_cancel(ring);
    return rows;
}

/* Another pace asks for other tickets: by the work worth one, and its fiftieth, less than which
 * never is; 0 is that of workers of this machine. */
static void pace_decides_the_tickets(void)
{
    struct rf_ring *ring = ring_of(2, 64, 2, 256);
    CHECK_EQ(ticket_of(ring, 20000), 10);
    rf_set_pace(ring, 20000000, 0, 0);
    CHECK_EQ(ticket_of(ring, 1000000), 20);
    CHECK_EQ(ticket_of(ring, 100), 256);
    rf_set_worker_count(ring, 1);
    rf_set_pace(ring, 20000000, 0, 99);
    CHECK_EQ(ticket_of(ring, 10000), 40);
    rf_set_pace(ring, 0, 0, 0);
    CHECK_EQ(ticket_of(ring, 20000), 10);
    rf_unreference(ring);
}

/* A ticket has no more rows than it may, but for what the cells do not suffice for. */
static void tickets_have_a_bound(void)
{
    struct rf_ring *ring = ring_of(2, 64, 2, 256);
    rf_set_pace(ring, 20000000, 7, 0);
    CHECK_EQ(ticket_of(ring, 1000000), 7);
    CHECK_EQ(ticket_of(ring, 0), 7);
    CHECK_EQ(ticket_of(ring, 1), 7);
    rf_set_pace(ring, 20000000, 3, 0);
    CHECK_EQ(ticket_of(ring, 1000000), 4);
    rf_unreference(ring);
}

/* Where a worker holds many tickets, as many as are worked on at a time share the rows: any
 * number of them. */
static void tickets_are_shared_by_all_that_work(void)
{
    struct rf_ring *ring = ring_of(3, 64, 2, 256);
    rf_set_pace(ring, 20000000, 0, 62);
    CHECK_EQ(ticket_of(ring, 0), 4);
    CHECK_EQ(ticket_of(ring, 1000000), 8);
    rf_set_worker_count(ring, 1);
    rf_set_pace(ring, 20000000, 0, 99);
    CHECK_EQ(ticket_of(ring, 1000000), 6);
    rf_set_pace(ring, 20000000, 0, 999);
    CHECK_EQ(ticket_of(ring, 1000000), 4);
    rf_set_pace(ring, 20000000, 0, UINT32_MAX);
    CHECK_EQ(ticket_of(ring, 1000000), 4);
    rf_unreference(ring);
}

/* Onlookers see the states, what was taken, and how long was waited. */
static void onlookers_see_it(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    bind_batches(ring, 1, 1);
    CHECK_EQ(atomic_load(&ring->records[0].state), RF_SLOT_BOUND);
    CHECK_EQ(fill_all(ring, 0), 1);
    struct rf_taken taken = taken_of(ring);
    CHECK_EQ(atomic_load(&ring->records[taken.slot].state), RF_SLOT_HELD);
    CHECK_EQ(atomic_load(&ring->records[taken.slot].held_ns),
             rf_report_slot(ring, taken.slot).held_ns);
    rf_note_stall(ring, 5);
    rf_note_stall(ring, 6);
    rf_note_pid(ring, 0, 77);
    CHECK_EQ(atomic_load(&ring->control->ledger.stall_ns), 11);
    CHECK_EQ(atomic_load(&ring->control->ledger.batches), 1);
    CHECK_EQ(atomic_load(&ring->control->ledger.samples), 1);
    CHECK_EQ(atomic_load(&ring->workers[0].pid), 77);
    rf_drop(ring, taken.slot);
    CHECK_EQ(atomic_load(&ring->records[taken.slot].state), RF_SLOT_FREE);
    rf_reap(ring, 0, false);
    CHECK_EQ(atomic_load(&ring->workers[0].pid), 0);
    rf_unreference(ring);
}

/* What is taken and not delivered is not counted as delivered; what a worker writes over the
 * ledger, the consumer does not believe, and the next batch puts it right for onlookers. */
static void ledger_is_the_consumers_own(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 4);
    struct rf_ledger *shown = &ring->control->ledger;
    for (uint64_t batch = 0; batch < 3; batch++) {
        bind_batches(ring, 1, 4);
        CHECK_EQ(fill_all(ring, 0), 1);
        rf_drop(ring, taken_of(ring).slot);
        if (batch == 0)
            rf_note_undelivered(ring, 0, 1);
        if (batch == 1) {
            rf_note_undelivered(ring, 1, 4);
            memset(shown, 0xff, sizeof *shown);
        }
        CHECK_EQ(rf_report_consumer(ring).batches, batch ? batch : 1);
        CHECK_EQ(rf_report_consumer(ring).samples, batch < 2 ? 3 : 7);
    }
    CHECK_EQ(atomic_load(&shown->batches), 3);
    CHECK_EQ(atomic_load(&shown->samples), 12);
    CHECK_EQ(rf_report_consumer(ring).stall_ns, 0);
    rf_unreference(ring);
}

/* Buckets follow each other without a gap, and the middle of each is within 1/32 of its edges. */
static void buckets_are_narrow(void)
{
    uint64_t edge = UINT64_C(1) << RF_WAIT_SHORTEST;
    CHECK_EQ(rf_wait_bucket(edge), 0);
    for (uint32_t bucket = 0; bucket < RF_WAIT_BUCKETS; bucket++) {
        uint64_t next =
            edge + (UINT64_C(1) << (RF_WAIT_SHORTEST + bucket / RF_WAIT_PARTS)) / RF_WAIT_PARTS;
        CHECK_EQ(rf_wait_bucket(edge), bucket);
        CHECK_EQ(rf_wait_bucket(next - 1), bucket);
        CHECK((next - edge) * RF_WAIT_PARTS <= edge);
        edge = next;
    }
    CHECK_EQ(edge, UINT64_C(1) << RF_WAIT_LONGEST);
    CHECK_EQ(rf_wait_bucket(edge), RF_WAIT_BUCKETS - 1);
    CHECK_EQ(rf_wait_bucket(UINT64_MAX), RF_WAIT_BUCKETS - 1);
}

static void take_after(struct rf_ring *ring, int64_t stall_ns)
{
    bind_batches(ring, 1, 1);
    CHECK_EQ(fill_all(ring, 0), 1);
    if (stall_ns)
        rf_note_stall(ring, stall_ns);
    rf_drop(ring, taken_of(ring).slot);
}

/* Each batch counts in the bucket of all that was waited for it, but for the first; what is shorter
 * than the shortest wait counts in none, and what an epoch has waited in vain is not the next one's. */
static void waits_are_counted(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    struct rf_waits own, shown;
    take_after(ring, 5000000);
    take_after(ring, 0);
    take_after(ring, 1023);
    take_after(ring, 1023);
    rf_note_stall(ring, 1000);
    take_after(ring, 1000);
    take_after(ring, INT64_MAX);
    take_after(ring, 5000000);
    take_after(ring, 5000001);
    rf_note_stall(ring, 7000000);
    rf_begin(ring, 1);
    take_after(ring, 0);
    rf_report_waits(ring, &own);
    CHECK_EQ(own.counts[0], 4);
    CHECK_EQ(own.counts[1 + rf_wait_bucket(2000)], 1);
    CHECK_EQ(own.counts[1 + rf_wait_bucket(5000000)], 2);
    CHECK_EQ(own.counts[RF_WAIT_BUCKETS], 1);
    rf_read_waits(&ring->control->ledger, &shown);
    CHECK(!memcmp(&own, &shown, sizeof own));
    memset(&ring->control->ledger, 0xff, sizeof ring->control->ledger);
    rf_report_waits(ring, &shown);
    CHECK(!memcmp(&own, &shown, sizeof own));
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(buckets_are_narrow);
    RUN(waits_are_counted);
    RUN(free_slots_are_parked);
    RUN(used_slots_are_parked_later);
    RUN(parked_slots_are_opened);
    RUN(size_stays_in_its_bounds);
    RUN(draining_slots_are_parked);
    RUN(parked_slot_gives_its_memory_back);
    RUN(retired_worker_claims_no_more);
    RUN(sleeping_worker_leaves);
    RUN(crew_decides_the_tickets);
    RUN(a_ticket_is_worth_its_protocol);
    RUN(pace_decides_the_tickets);
    RUN(tickets_have_a_bound);
    RUN(tickets_are_shared_by_all_that_work);
    RUN(onlookers_see_it);
    RUN(ledger_is_the_consumers_own);
    return check_end("test_slots");
}
