#include "snapshot.h"

#include "os/pages.h"
#include "os/wait.h"

#include <errno.h>

/* ---- one thing at a time: relaxed throughout, since nothing follows from what is read ---- */

/* What is no atomic may be written meanwhile, by another process. */
static uint32_t now32(const uint32_t *place) { return *(const volatile uint32_t *)place; }
static uint64_t now64(const uint64_t *place) { return *(const volatile uint64_t *)place; }

struct rf_cells_report rf_read_cells(const struct rf_cell *cells, uint32_t count)
{
    struct rf_cells_report report = {0};
    for (uint32_t cell = 0; cell < count; cell++) {
        uint64_t word = atomic_load_explicit(&cells[cell].word, memory_order_relaxed);
        report.available += rf_word_state(word) == RF_AVAIL;
        report.claimed += rf_word_state(word) == RF_CLAIMED;
        report.final += rf_word_final(word);
    }
    return report;
}

struct rf_slot_report rf_read_slot(const struct rf_record *record, const struct rf_cell *cells,
                                   uint32_t count)
{
    uint32_t tickets = atomic_load_explicit(&record->tickets, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&record->state, memory_order_relaxed);
    return (struct rf_slot_report){
        .state = state <= RF_SLOT_PARKED ? (enum rf_slot_state)state : RF_SLOT_FREE,
        .rows = atomic_load_explicit(&record->rows, memory_order_relaxed),
        .cells = rf_read_cells(cells, count),
        .tickets = tickets < count ? tickets : count,
        .batch = atomic_load_explicit(&record->batch, memory_order_relaxed),
        .epoch = atomic_load_explicit(&record->epoch, memory_order_relaxed),
        .held_ns = atomic_load_explicit(&record->held_ns, memory_order_relaxed),
    };
}

struct rf_worker_report rf_read_worker(const struct rf_worker *line)
{
    struct rf_worker_report report = {
        .index = atomic_load_explicit(&line->index, memory_order_relaxed),
        .since_ns = atomic_load_explicit(&line->since_ns, memory_order_relaxed),
        .pid = atomic_load_explicit(&line->pid, memory_order_relaxed),
        .in_row = atomic_load_explicit(&line->row, memory_order_relaxed) != 0,
        .leave = atomic_load_explicit(&line->leave, memory_order_relaxed) != 0,
    };
#define READ_TOTAL(name) report.name = atomic_load_explicit(&line->name, memory_order_relaxed);
    RF_TOTALS(READ_TOTAL)
    return report;
}

/* Not below 0: the two may be of two moments, or written over. */
static uint64_t delivered(const _Atomic uint64_t *taken, const _Atomic uint64_t *undelivered)
{
    uint64_t without = atomic_load_explicit(undelivered, memory_order_relaxed);
    uint64_t all = atomic_load_explicit(taken, memory_order_relaxed);
    return all > without ? all - without : 0;
}

struct rf_consumer_report rf_read_consumer(const struct rf_control *control,
                                           const struct rf_ledger *ledger)
{
    return (struct rf_consumer_report){
        .batches = delivered(&ledger->batches, &ledger->undelivered_batches),
        .samples = delivered(&ledger->samples, &ledger->undelivered_samples),
        .stall_ns = atomic_load_explicit(&ledger->stall_ns, memory_order_relaxed),
        .open_slots = atomic_load_explicit(&control->open_slots, memory_order_relaxed),
        .wait_ns = atomic_load_explicit(&control->wait_ns, memory_order_relaxed),
        .rank = atomic_load_explicit(&control->rank, memory_order_relaxed),
        .world_size = atomic_load_explicit(&control->world_size, memory_order_relaxed),
        .stopped = atomic_load_explicit(&control->stop, memory_order_relaxed) != 0,
    };
}

void rf_read_waits(const struct rf_ledger *ledger, struct rf_waits *waits)
{
    uint64_t batches = delivered(&ledger->batches, &ledger->undelivered_batches), sum = 1;
    for (uint32_t bucket = 0; bucket < RF_WAIT_BUCKETS; bucket++) {
        uint32_t count = atomic_load_explicit(&ledger->waits[bucket], memory_order_relaxed);
        waits->counts[1 + bucket] = count;
        sum += count;
    }
    waits->counts[0] = batches > sum ? batches - sum : 0; /* sum has the first batch, too */
}

/* ---- from outside ---- */

/* Whether all that the geometry speaks of lies within the mapping. No more than
 * RF_MAX_CELLS: nothing overflows. */
static bool fits(const struct rf_geometry *geometry, uint64_t size)
{
    return geometry->slots && geometry->cells && geometry->cells <= RF_MAX_CELLS &&
           geometry->rows && geometry->workers && geometry->ids >= geometry->workers &&
           geometry->failures_at <= geometry->slot_size &&
           rf_control_size(geometry->slots, geometry->cells, geometry->ids) == size;
}

int rf_watch_open(struct rf_watch *watch, int fd)
{
    uint64_t size = 0;
    const struct rf_control *control = rf_map_sealed(fd, sizeof *control, RF_CONTROL_MAX, &size);
    if (!control)
        return errno;
    *watch = (struct rf_watch){.control = control, .size = size, .geometry = control->geometry};
    /* The copy is what is used: another process may change the original. */
    atomic_signal_fence(memory_order_seq_cst);
    if (now64(&control->magic) != RF_MAGIC || now32(&control->abi) != RF_ABI ||
        now32(&control->control_size) != size ||
        now64(&control->seal) != rf_seal_geometry(&watch->geometry) ||
        !fits(&watch->geometry, size)) {
        rf_watch_close(watch);
        return EPROTO;
    }
    const uint8_t *base = (const uint8_t *)control;
    uint32_t slots = watch->geometry.slots, ids = watch->geometry.ids;
    watch->workers = (const struct rf_worker *)(base + rf_workers_at());
    watch->records = (const struct rf_record *)(base + rf_records_at(ids));
    watch->cells = (const struct rf_cell *)(base + rf_cells_at(slots, ids));
    return 0;
}

void rf_watch_close(struct rf_watch *watch)
{
    rf_unmap((void *)watch->control, watch->size);
    *watch = (struct rf_watch){0};
}

struct rf_slot_report rf_watch_slot(const struct rf_watch *watch, uint32_t slot)
{
    const struct rf_cell *cells = watch->cells + (uint64_t)slot * watch->geometry.cells;
    return rf_read_slot(&watch->records[slot], cells, watch->geometry.cells);
}

struct rf_worker_report rf_watch_worker(const struct rf_watch *watch, uint32_t worker)
{
    return rf_read_worker(&watch->workers[worker]);
}

struct rf_consumer_report rf_watch_consumer(const struct rf_watch *watch)
{
    return rf_read_consumer(watch->control, &watch->control->ledger);
}

void rf_watch_waits(const struct rf_watch *watch, struct rf_waits *waits)
{
    rf_read_waits(&watch->control->ledger, waits);
}
