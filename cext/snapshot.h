/* Looking on: what slots, workers and the consumer are at, read from the control block. By the
 * consumer itself, or by any process that can open the control block's file, for reading only:
 * nothing here writes, wakes or sleeps.
 *
 * An observer shares no lock with those it looks at, so that two numbers may be of two moments. And
 * it trusts nothing: the geometry is copied once and checked, and whatever else stands in the
 * memory, no more than the mapping is read. */
#ifndef RF_SNAPSHOT_H
#define RF_SNAPSHOT_H

#include "layout.h"

struct rf_cells_report { /* tickets of a slot: not claimed, claimed, final */
    uint32_t available, claimed, final;
};

struct rf_slot_report {
    enum rf_slot_state state;
    uint32_t rows, tickets;
    struct rf_cells_report cells;
    uint64_t batch, epoch;
    uint64_t held_ns; /* when the batch was taken that it holds, or held last */
};

struct rf_worker_report {
    uint64_t index;    /* the dataset index it is at, if in_row */
    uint64_t since_ns; /* when it claimed its ticket; 0: it has none */
#define RF_PLAIN_TOTAL(name) uint64_t name;
    RF_TOTALS(RF_PLAIN_TOTAL)
    uint32_t pid;
    bool in_row, leave;
};

struct rf_consumer_report {
    uint64_t batches, samples; /* delivered */
    uint64_t stall_ns;
    uint64_t wait_ns; /* when the wait began that is not in stall_ns yet; 0: there is none */
    uint32_t open_slots;
    uint32_t rank, world_size; /* as rf_note_rank() has them */
    bool stopped;
};

struct rf_cells_report rf_read_cells(const struct rf_cell *cells, uint32_t count);
struct rf_slot_report rf_read_slot(const struct rf_record *record, const struct rf_cell *cells,
                                   uint32_t count);
struct rf_worker_report rf_read_worker(const struct rf_worker *line);
/* The counts from `ledger`: the control block's, or the consumer's own. */
struct rf_consumer_report rf_read_consumer(const struct rf_control *control,
                                           const struct rf_ledger *ledger);
void rf_read_waits(const struct rf_ledger *ledger, struct rf_waits *waits);

/* Whether a batch is complete. By its cells alone, since the record may be written meanwhile: those
 * without a ticket are EMPTY. */
static inline bool rf_cells_are_final(struct rf_cells_report cells)
{
    return cells.final && !cells.available && !cells.claimed;
}

/* ---- from outside ---- */

struct rf_watch {
    const struct rf_control *control;
    const struct rf_worker *workers;
    const struct rf_record *records;
    const struct rf_cell *cells;
    uint64_t size;
    /* A copy: what stands in shared memory is checked once, then not trusted. */
    struct rf_geometry geometry;
};

/* Map the control block `fd` for reading. 0, an errno, or EPROTO: seals, magic, ABI
 * or sizes differ. */
int rf_watch_open(struct rf_watch *watch, int fd);
void rf_watch_close(struct rf_watch *watch);

/* `slot` and `worker` are below the geometry's slots and ids. */
struct rf_slot_report rf_watch_slot(const struct rf_watch *watch, uint32_t slot);
struct rf_worker_report rf_watch_worker(const struct rf_watch *watch, uint32_t worker);
struct rf_consumer_report rf_watch_consumer(const struct rf_watch *watch);
void rf_watch_waits(const struct rf_watch *watch, struct rf_waits *waits);

#endif
