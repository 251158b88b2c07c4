#include "stage.h"

#include <stdlib.h>
#include <string.h>

struct rf_ring *ring;
static void *control_memory, *slots_memory;

/* ---- what wait.c and pages.c would do ---- */

uint32_t rf_fork_generation(void) { return 0; }
void rf_populate(void *address, uint64_t size) { (void)address, (void)size; }
int rf_unpopulate(void *address, uint64_t size) { return (void)address, (void)size, 0; }
void rf_unmap(void *address, uint64_t size) { (void)address, (void)size; }
void rf_enlist(struct rf_ring *ring) { (void)ring; }
void rf_delist(struct rf_ring *ring) { (void)ring; }
void *rf_map(int fd, uint64_t size, int inherit)
{
    (void)size, (void)inherit;
    return fd == 0 ? control_memory : slots_memory;
}

/* ---- what watch.c would do: there is no observer ---- */

struct rf_cells_report rf_read_cells(const struct rf_cell *cells, uint32_t count)
{
    (void)cells, (void)count;
    return (struct rf_cells_report){0};
}

struct rf_worker_report rf_read_worker(const struct rf_worker *line)
{
    (void)line;
    return (struct rf_worker_report){0};
}

struct rf_slot_report rf_read_slot(const struct rf_record *record, const struct rf_cell *cells, uint32_t count)
{
    (void)record, (void)cells, (void)count;
    return (struct rf_slot_report){0};
}

struct rf_consumer_report rf_read_consumer(const struct rf_control *control, const struct rf_ledger *ledger)
{
    (void)control, (void)ledger;
    return (struct rf_consumer_report){0};
}

void rf_read_waits(const struct rf_ledger *ledger, struct rf_waits *waits)
{
    (void)ledger, (void)waits;
}

/* ---- what is looked at: all that is shared, but for what is only counted ---- */

static void watch_control(void)
{
    struct rf_control *control = ring->control;
    shim_atomic(&control->head, 8);
    shim_atomic(&control->bound, 8);
    shim_atomic(&control->work_seq, 4);
    shim_atomic(&control->reap_seq, 4);
    shim_atomic(&control->cancel_upto, 8);
    shim_atomic(&control->stop, 4);
    shim_atomic(&control->pace, 4);
    shim_atomic(&control->break_seq, 4);
    shim_atomic(&control->sleepers[0], 8);
    shim_atomic(&control->yielders[0], 8);
    shim_atomic(&control->consumer_wait, 8);
    shim_atomic(&control->news_seq, 4);
    for (uint32_t worker = 0; worker < ring->geometry.ids; worker++) {
        shim_atomic(&ring->workers[worker].ticket, 8);
        shim_atomic(&ring->workers[worker].attempt, 4);
        shim_atomic(&ring->workers[worker].row, 4);
        shim_atomic(&ring->workers[worker].leave, 4);
    }
}

static void watch_slot(uint32_t slot)
{
    const struct rf_geometry *geometry = &ring->geometry;
    uint8_t *base = rf_slot_base(ring, slot);
    shim_atomic(&ring->slot_of[slot], 8);
    shim_plain(&ring->records[slot], offsetof(struct rf_record, state), 4);
    shim_plain(base, geometry->rows * sizeof(int64_t), 8);
    shim_plain(base + geometry->indices_at, geometry->rows * sizeof(int64_t), 8);
    shim_plain(base + geometry->marks_at, geometry->rows, 1);
    for (uint32_t cell = 0; cell < geometry->cells; cell++) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        shim_atomic(&place->word, 8);
        shim_plain(&place->busy_ns, sizeof place->busy_ns, 8);
        shim_plain(&place->seal, sizeof place->seal, 8);
        shim_plain(&place->rows, sizeof place->rows, 4);
        shim_plain(rf_slot_failure(ring, slot, cell), 16, 4);
    }
}

static void watch_binder(void)
{
    struct rf_binder *binder = ring->binder;
    uint32_t slots = ring->geometry.slots, rows = ring->geometry.rows;
    shim_atomic(&binder->take_lock, 4);
    shim_plain(&binder->epoch_id, sizeof binder->epoch_id, 8);
    shim_plain(&binder->waited_ns, sizeof binder->waited_ns, 8);
    shim_plain(&binder->asleep, sizeof binder->asleep, 4);
    shim_plain(&binder->last_wake_head, sizeof binder->last_wake_head, 8);
    shim_atomic(&binder->lock, 4);
    shim_atomic(&binder->released, 4);
    shim_atomic(&binder->alarm, 4);
    shim_atomic(&binder->plan_write, 8);
    shim_atomic(&binder->plan_read, 8);
    shim_atomic(&binder->row_ns, 8);
    shim_atomic(&binder->open, 4);
    shim_atomic(&binder->crew, 4);
    shim_plain(&binder->free_count, sizeof binder->free_count, 4);
    shim_plain(&binder->draining, sizeof binder->draining, 4);
    shim_plain(binder->free_slots, slots * sizeof *binder->free_slots, 4);
    shim_plain(binder->planned, binder->capacity * sizeof *binder->planned, 4);
    shim_plain(binder->indices, binder->window * rows * sizeof *binder->indices, 8);
    shim_plain(binder->slot_of, slots * sizeof *binder->slot_of, 4);
    shim_plain(&binder->cancel_upto, sizeof binder->cancel_upto, 8);
    shim_atomic(&binder->head, 8);
    shim_atomic(&binder->bound, 8);
    shim_atomic(&binder->stop, 4);
    shim_atomic(&binder->damage, 8);
    shim_atomic(&binder->plan_bound, 8);
    for (uint32_t slot = 0; slot < slots; slot++) {
        shim_atomic(&binder->holds[slot].count, 4);
        shim_atomic(&binder->holds[slot].next, 4);
        shim_atomic(&binder->holds[slot].state, 4);
        shim_plain(&binder->holds[slot].blamed, 1, 1);
        struct rf_binding *binding = &binder->bindings[slot];
        shim_plain(binding, offsetof(struct rf_binding, sum) + ring->geometry.cells * sizeof *binding->sum, 4);
    }
}

/* ---- a ring ---- */

static void *zeroed(uint64_t size)
{
    void *memory = aligned_alloc(RF_LINE, rf_round_up(size, RF_LINE));
    if (!memory)
        abort();
    return memset(memory, 0, size);
}

void stage_begin(const struct stage *stage)
{
    struct rf_geometry geometry = {.slots = stage->slots,
                                   .cells = stage->cells,
                                   .workers = stage->workers,
                                   .ids = stage->workers,
                                   .rows = stage->rows,
                                   .spin_ns = stage->spin_ns,
                                   .slot_size = 256 + (uint64_t)stage->cells * RF_FAILURE_SIZE,
                                   .indices_at = 64,
                                   .marks_at = 128,
                                   .failures_at = 256};
    uint64_t control_size = rf_control_size(stage->slots, stage->cells, stage->workers);
    uint64_t slots_size = stage->slots * geometry.slot_size;
    int why;
    control_memory = zeroed(control_size);
    slots_memory = zeroed(slots_size);
    ring = rf_open(0, 1, control_size, slots_size, &geometry, &why);
    if (!ring || rf_become_consumer(ring, stage->capacity, 2))
        abort();
    if (stage->window)
        ring->binder->window = stage->window;
    watch_control();
    watch_binder();
    for (uint32_t slot = 0; slot < stage->slots; slot++)
        watch_slot(slot);
}

void stage_end(void)
{
    rf_unreference(ring);
    free(control_memory);
    free(slots_memory);
}

/* ---- what the threads do there ---- */

void plan(int64_t first)
{
    int64_t indices[2] = {first, first + 1};
    shim_check(rf_plan(ring, indices, ring->geometry.rows, 0, 0), "the plan has no room");
}

int64_t *row_of(uint32_t slot, uint32_t row) { return (int64_t *)rf_slot_base(ring, slot) + row; }

void check_rows(uint32_t slot, int64_t first)
{
    for (uint32_t row = 0; row < ring->geometry.rows; row++)
        shim_check(*row_of(slot, row) == first + row, "a row is not its batch's");
}

uint32_t take(int64_t first)
{
    shim_check(rf_wait_head(ring, 0, FOREVER) == RF_TAKEABLE, "no batch comes");
    struct rf_taken taken;
    shim_check(rf_take(ring, &taken) == RF_TAKEABLE, "a batch that was ready cannot be taken");
    shim_check(taken.rows == ring->geometry.rows && !taken.failed, "a row is missing");
    check_rows(taken.slot, first);
    return taken.slot;
}

static void fill(const struct rf_claim *claim)
{
    for (uint32_t row = 0; row < claim->rows && !rf_cancelled(claim); row++) {
        rf_blame(claim, row);
        *row_of(claim->slot, claim->first_row + row) = claim->indices[row];
        rf_blame_none(claim);
    }
}

void work(uint32_t worker)
{
    struct rf_cursor cursor = {0};
    work_by(worker, &cursor);
}

void work_by(uint32_t worker, struct rf_cursor *cursor)
{
    struct rf_claim claim;
    while (rf_claim_wait(ring, worker, cursor, &claim, FOREVER) == RF_TAKEABLE) {
        fill(&claim);
        rf_publish(ring, &claim, rf_cancelled(&claim));
    }
}
