/* The segment, as every process that maps it sees it.
 *
 * A loader has two shared mappings. The *control block* (at most RF_CONTROL_MAX bytes) holds the
 * words that processes synchronise on; the *slots* hold batches. This header is the only
 * description of either.
 *
 *   control:  header | consumer's lines | worker lines | slot records | slot_of | cells
 *   slot:     fields (each at a multiple of 64) | failure records | indices | row marks
 *
 * Any worker can write anywhere, by mistake. So the consumer decides nothing by what stands here
 * alone: it keeps what it wrote, and compares; what workers tell it, they seal. A write past the
 * last field meets the failure records first, which are sealed one by one, and then the indices,
 * which every ticket's seal covers.
 *
 * States of a cell (a cell is the word that holds the state and owner of one ticket):
 *
 *   EMPTY    --consumer binds the batch's slot, in ticket order-------------> AVAIL
 *   AVAIL    --worker, compare-exchange: claim and owner in one step--------> CLAIMED(w)
 *   CLAIMED  --w, compare-exchange------------------------------------------> READY | FAILED | CANCELLED
 *   CLAIMED  --reaper, w proven dead: same slot, attempt + 1----------------> AVAIL, or CANCELLED below cancel_upto
 *   AVAIL    --consumer, early break, compare-exchange----------------------> CANCELLED
 *   READY, FAILED (all cells of the head batch final) --taken---------------> EMPTY; slot held by views
 *   any final state, slot draining, no cell claimed ------------------------> EMPTY; slot free
 *
 * Units: sizes and offsets in bytes, times in nanoseconds of CLOCK_MONOTONIC, counts otherwise.
 */
#ifndef RF_LAYOUT_H
#define RF_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RF_MAGIC UINT64_C(0x64656566676e6972) /* "ringfeed" */
#define RF_ABI 6u
/* Two cache lines: x86 prefetches them in pairs, some Arm cores have 128-byte lines. */
#define RF_LINE 128
#define RF_FIELD_ALIGN 64 /* below it TensorFlow and JAX copy, or abort */
#define RF_PAGE 4096u     /* what the kernel reserves at a time */
#define RF_CONTROL_MAX (1u << 20)
#define RF_MAX_WORKERS 256u
#define RF_MAX_IDS 448u  /* those of quarantined workers are used again only after their death */
#define RF_MAX_CELLS 64u /* cells of one slot */
#define RF_FAILURE_SIZE 4096u

/* Whether to time, and to count for observers, what the ledger does not count. 0 is for measuring
 * what that costs: see bench/studies/counting.py. */
#ifndef RF_STATISTICS
#define RF_STATISTICS 1
#endif
/* Whether to count batches by their waits. 0 is for measuring what that costs, too. */
#ifndef RF_COUNTS_WAITS
#define RF_COUNTS_WAITS 1
#endif

/* ---- the word of a cell: bits 0-3 state, 4-12 owner, 13-31 attempt, 32-63 ticket's low half --
 *
 * The owner of an AVAIL cell is the only stream whose worker may claim it; 0: any worker may. */

enum rf_state {
    RF_EMPTY = 0,
    RF_AVAIL = 1,
    RF_CLAIMED = 2,
    RF_READY = 3,
    RF_FAILED = 4,
    RF_CANCELLED = 5
};

#define RF_OWNER_SHIFT 4
#define RF_OWNER_MASK 0x1ffu
#define RF_ATTEMPT_SHIFT 13
#define RF_ATTEMPT_MAX 0x7ffffu

static inline uint64_t rf_word(uint64_t ticket, uint32_t attempt, uint32_t owner,
                               enum rf_state state)
{
    return ticket << 32 | (uint64_t)attempt << RF_ATTEMPT_SHIFT |
           (uint64_t)owner << RF_OWNER_SHIFT | (uint64_t)state;
}

static inline enum rf_state rf_word_state(uint64_t word) { return (enum rf_state)(word & 0xf); }
static inline uint32_t rf_word_owner(uint64_t word)
{
    return (uint32_t)word >> RF_OWNER_SHIFT & RF_OWNER_MASK;
}
static inline uint32_t rf_word_attempt(uint64_t word) { return (uint32_t)word >> RF_ATTEMPT_SHIFT; }
static inline uint32_t rf_word_ticket(uint64_t word) { return (uint32_t)(word >> 32); }
static inline bool rf_word_final(uint64_t word) { return rf_word_state(word) >= RF_READY; }

struct rf_cell {
    _Alignas(RF_LINE) _Atomic uint64_t word;
    /* Written by the owner between claim and publish; read by the consumer once the
     * word is final. */
    /* From claim to publish, or the claim's work_ns; nothing but the pace depends on it. */
    uint64_t busy_ns;
    uint64_t seal; /* rf_seal() of the final word and of what the worker went by */
    /* Rows that the ticket delivered: those it covers, or the length of a whole batch. */
    uint32_t rows;
};

/* ---- a worker's line ---- */

/* What is counted of a worker, over all that had its id. A statistic is a line here, the place that
 * counts it, and what Python's Stats makes of it: all between goes by this list. */
#define RF_TOTALS(TOTAL)                                                                           \
    TOTAL(busy_ns) /* of all tickets, as their cells had it */                                     \
    TOTAL(wait_ns) /* asleep for want of a ticket */                                               \
    TOTAL(samples)                                                                                 \
    TOTAL(tickets) /* claimed */                                                                   \
    TOTAL(timed)   /* rows of which the two below are the times: one a ticket, mostly */           \
    TOTAL(read_ns) /* inside dataset[i] */                                                         \
    TOTAL(write_ns)

/* Written by that worker only, and by its reaper. */
struct rf_worker {
    /* Blame counts only if ticket and attempt equal the cell's. */
    _Alignas(RF_LINE) _Atomic uint64_t ticket;
    _Atomic uint32_t attempt;
    /* 1 + the row inside dataset[i] now, counted in the batch, or a stage; 0: none. */
    _Atomic uint32_t row;
    _Atomic uint64_t since_ns; /* when the ticket was claimed; 0: none */
    _Atomic uint64_t index;    /* the dataset index of that row */
#define RF_ATOMIC_TOTAL(name) _Atomic uint64_t name;
    RF_TOTALS(RF_ATOMIC_TOTAL)
    /* Whether it is to end after its ticket; written by the consumer only. */
    _Atomic uint32_t leave;
    _Atomic uint32_t pid; /* 0: a thread, or no worker; written by the consumer, for observers */
};

/* ---- a slot's record ---- */

/* Written by the consumer before the slot's cells become AVAIL; read by a worker only after its
 * claim. The consumer goes by its own copy, struct rf_binding. */
struct rf_record {
    _Alignas(64) _Atomic uint64_t batch; /* atomic is what observers read meanwhile */
    _Atomic uint64_t epoch;
    uint32_t version; /* of the dataset */
    _Atomic uint32_t rows;
    uint32_t rows_per_ticket;
    _Atomic uint32_t tickets;
    /* One of enum rf_slot_state; this and what follows: for observers, and not trusted. */
    _Atomic uint32_t state;
    _Atomic uint64_t held_ns; /* when the batch was taken that it holds, or held last */
};

enum rf_slot_state { RF_SLOT_FREE, RF_SLOT_BOUND, RF_SLOT_DRAINING, RF_SLOT_HELD, RF_SLOT_PARKED };

/* Row marks: one byte a row. */
enum rf_mark { RF_ROW_OK = 0, RF_ROW_RAISED = 1, RF_ROW_KILLED = 2 };

/* The first failure of a ticket; payload is whatever the worker's language pickles. */
struct rf_failure {
    uint32_t row; /* in the batch */
    uint32_t size;
    uint64_t seal; /* rf_seal_failure(); 0: there is none */
    uint8_t payload[RF_FAILURE_SIZE - 16];
};

/* ---- seals: what was overwritten by mistake does not have them, but for odds of 2^-64 ---- */

#define RF_SEAL_FACTOR UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t rf_mix(uint64_t sum, uint64_t value)
{
    sum = (sum ^ value) * RF_SEAL_FACTOR;
    return sum ^ sum >> 32;
}

/* Of the indices of `rows` rows from `first` on: sums of parts add up to that of the whole. A row's
 * factor is odd, so that no single index changes unseen, and differs from all others, so that no
 * two change places. */
static inline uint64_t rf_sum_indices(const int64_t *indices, uint32_t first, uint32_t rows)
{
    uint64_t sum = 0, factor = RF_SEAL_FACTOR * (2 * (uint64_t)first + 1);
    for (uint32_t row = 0; row < rows; row++, factor += 2 * RF_SEAL_FACTOR)
        sum += (uint64_t)indices[row] * factor;
    return sum;
}

static inline uint64_t rf_sum_bytes(uint64_t sum, const uint8_t *bytes, uint32_t size)
{
    for (uint32_t byte = 0; byte < size; byte++)
        sum = (sum ^ bytes[byte]) * RF_SEAL_FACTOR;
    return rf_mix(sum, size);
}

/* Of a published ticket. `sum`: of its indices, and, where it FAILED, of its marks. */
static inline uint64_t rf_seal(uint64_t word, uint32_t rows, uint64_t epoch, uint32_t version,
                               uint64_t sum)
{
    return rf_mix(rf_mix(rf_mix(sum, word), epoch), (uint64_t)version << 32 | rows);
}

static inline uint64_t rf_seal_failure(uint64_t ticket, const struct rf_failure *failure,
                                       const uint8_t *payload)
{
    uint64_t seal = rf_mix(rf_mix(ticket, RF_MAGIC), (uint64_t)failure->row << 32 | failure->size);
    return rf_sum_bytes(seal, payload, failure->size) | 1;
}

/* ---- the control block ---- */

struct rf_geometry { /* what the creator decides; never changes */
    /* Cells and rows: of one slot; workers: at work at a time. */
    uint32_t slots, cells, workers, rows;
    /* Worker lines: workers, and as many as may be in quarantine meanwhile. */
    uint32_t ids;
    uint64_t slot_size, indices_at, marks_at, failures_at;
    /* How long to look again before sleeping, while tickets take less; 0: never. */
    uint32_t spin_ns;
};

#define RF_PACE_FAST 1u    /* a ticket takes less than a sleep and a wake */
#define RF_PACE_FASTEST 2u /* a ticket takes less than a woken worker needs to run */

#define RF_WAIT_NONE UINT64_C(0)
/* For a slot; otherwise 1 + the ticket whose cell the consumer waits for. */
#define RF_WAIT_FREE UINT64_MAX

/* The waits for batches are counted by their length, in RF_WAIT_PARTS buckets of one width for each
 * power of two: the middle of a bucket is within 1/32 of all that it counts. The last bucket also
 * counts what is longer than 2^RF_WAIT_LONGEST ns, which is 18 minutes; what is shorter than
 * 2^RF_WAIT_SHORTEST ns is no wait. */
#define RF_WAIT_PARTS 16u
#define RF_WAIT_SHORTEST 10u
#define RF_WAIT_LONGEST 40u
#define RF_WAIT_BUCKETS ((RF_WAIT_LONGEST - RF_WAIT_SHORTEST) * RF_WAIT_PARTS)

/* Batches by their waits, as they are read: those that were ready come first. */
struct rf_waits {
    uint64_t counts[1 + RF_WAIT_BUCKETS];
};

/* The bucket of a wait of 2^RF_WAIT_SHORTEST ns or more. */
static inline uint32_t rf_wait_bucket(uint64_t wait_ns)
{
    if (wait_ns >> RF_WAIT_LONGEST)
        return RF_WAIT_BUCKETS - 1;
    uint32_t power = 63u - (uint32_t)__builtin_clzll(wait_ns);
    uint32_t part = (uint32_t)((wait_ns * RF_WAIT_PARTS) >> power) % RF_WAIT_PARTS;
    return (power - RF_WAIT_SHORTEST) * RF_WAIT_PARTS + part;
}

/* What the consumer has done so far, written by it alone. In the control block it stands for
 * observers: the consumer goes by its own copy, struct rf_binder. */
struct rf_ledger {
    _Atomic uint64_t batches, samples; /* taken */
    /* Of these: failed, None, after an end, or broken off. */
    _Atomic uint64_t undelivered_batches, undelivered_samples;
    _Atomic uint64_t stall_ns; /* waited for batches */
    /* Batches by their waits, but for the first batch: it waits for the start. */
    _Atomic uint32_t waits[RF_WAIT_BUCKETS];
};

struct rf_control {
    uint64_t magic;
    uint32_t abi;
    uint32_t control_size;
    struct rf_geometry geometry;
    uint64_t seal; /* rf_seal_geometry(), of the above */

    _Alignas(RF_LINE) _Atomic uint64_t
        head; /* the next batch to take; this and what follows: written by the consumer only */
    struct rf_ledger ledger;
    /* When the wait began that is not in the ledger yet; 0: there is none. */
    _Atomic uint64_t wait_ns;
    _Atomic uint32_t open_slots; /* the others are parked */
    /* Of the consumer among those that train together; world_size 0: it has not said. */
    _Atomic uint32_t rank, world_size;

    /* Batches below it have a slot; written by the consumer only. */
    _Alignas(RF_LINE) _Atomic uint64_t bound;
    /* Workers sleep on it; bumped after binding, by reaper and stop. */
    _Atomic uint32_t work_seq;
    /* Bumped by the reaper after it has made cells AVAIL again. */
    _Atomic uint32_t reap_seq;
    /* Tickets below it are cancelled; written by the consumer only. */
    _Atomic uint64_t cancel_upto;
    _Atomic uint32_t stop; /* set once, by the consumer */
    /* 0, RF_PACE_FAST or RF_PACE_FASTEST; written by the consumer only. */
    _Atomic uint32_t pace;
    /* A worker that holds several tickets sleeps on it; bumped by break, fence and stop. */
    _Atomic uint32_t break_seq;

    /* A bit a worker, set by it before it sleeps. */
    _Alignas(RF_LINE) _Atomic uint64_t sleepers[RF_MAX_IDS / 64];
    /* Likewise, as long as it lives: see rf_set_yielding(). */
    _Atomic uint64_t yielders[RF_MAX_IDS / 64];

    _Alignas(RF_LINE) _Atomic uint64_t consumer_wait; /* RF_WAIT_…; written by the consumer only */
    _Atomic uint32_t news_seq; /* the consumer sleeps on it; bumped for whatever it may wait for */
};

_Static_assert(sizeof(struct rf_cell) == RF_LINE, "two cells never share a pair of cache lines");
_Static_assert(sizeof(struct rf_worker) == RF_LINE,
               "two workers never share a pair of cache lines");
_Static_assert(sizeof(struct rf_record) == 64, "a record is one cache line");
_Static_assert(sizeof(struct rf_failure) == RF_FAILURE_SIZE,
               "the plan counts RF_FAILURE_SIZE a cell");
_Static_assert(RF_MAX_IDS <= RF_OWNER_MASK, "every worker id fits the owner bits");
_Static_assert(RF_MAX_WORKERS <= RF_OWNER_MASK, "every stream fits the owner bits");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "a lock in shared memory dies with its holder");

static inline uint64_t rf_seal_geometry(const struct rf_geometry *geometry)
{
    const uint64_t words[] = {(uint64_t)geometry->slots << 32 | geometry->cells,
                              (uint64_t)geometry->workers << 32 | geometry->rows,
                              (uint64_t)geometry->ids << 32 | geometry->spin_ns,
                              geometry->slot_size,
                              geometry->indices_at,
                              geometry->marks_at,
                              geometry->failures_at};
    uint64_t seal = RF_MAGIC;
    for (uint32_t word = 0; word < sizeof words / sizeof *words; word++)
        seal = rf_mix(seal, words[word]);
    return seal;
}

static inline uint64_t rf_round_up(uint64_t size, uint64_t step)
{
    return (size + step - 1) / step * step;
}

/* ---- where the parts of the control block begin ---- */

static inline uint64_t rf_workers_at(void)
{
    return rf_round_up(sizeof(struct rf_control), RF_LINE);
}

static inline uint64_t rf_records_at(uint32_t ids)
{
    return rf_workers_at() + (uint64_t)ids * sizeof(struct rf_worker);
}

static inline uint64_t rf_slot_of_at(uint32_t slots, uint32_t ids)
{
    return rf_records_at(ids) + (uint64_t)slots * sizeof(struct rf_record);
}

static inline uint64_t rf_cells_at(uint32_t slots, uint32_t ids)
{
    return rf_round_up(rf_slot_of_at(slots, ids) + (uint64_t)slots * sizeof(uint64_t), RF_LINE);
}

static inline uint64_t rf_control_size(uint32_t slots, uint32_t cells, uint32_t ids)
{
    return rf_round_up(rf_cells_at(slots, ids) + (uint64_t)slots * cells * sizeof(struct rf_cell),
                       RF_PAGE);
}

/* ---- what a worker may touch between claim and publish ---- */

struct rf_claim { /* process-local; filled by rf_claim_next() */
    uint64_t ticket, batch, epoch;
    uint32_t worker, slot, cell, attempt, version;
    uint32_t first_row, rows; /* first_row: in the batch */
    uint8_t *base;            /* the slot's first field */
    const int64_t *indices;   /* of the ticket's first row; rows of them */
    uint8_t *marks;           /* of the ticket's first row; rows of them */
    struct rf_failure *failure;
    struct rf_worker *line;
    const struct rf_control *control;
    int64_t claimed_ns;
    int64_t work_ns;         /* what the ticket counts as; 0: the time from claim to publish */
    uint32_t rows_delivered; /* starts as rows; a whole batch says its own length */
};

/* A death from here to the next call is this row's fault: called before dataset[i] runs. Relaxed:
 * it is read only once this process is proven dead, when all its stores have landed. */
static inline void rf_blame(const struct rf_claim *claim, uint32_t row)
{
    atomic_store_explicit(&claim->line->index, (uint64_t)claim->indices[row], memory_order_relaxed);
    atomic_store_explicit(&claim->line->row, claim->first_row + row + 1, memory_order_relaxed);
}

/* What a worker does with all rows of a ticket at once, in the place of a row; a batch
 * has fewer rows. */
#define RF_IN_COLLATE_FN UINT32_C(0xfffffffd)
#define RF_IN_BATCH_TRANSFORM UINT32_C(0xfffffffe)

/* A death from here to the next call is that function's fault: all rows go together. */
static inline void rf_blame_stage(const struct rf_claim *claim, uint32_t stage)
{
    atomic_store_explicit(&claim->line->row, stage, memory_order_relaxed);
}

static inline void rf_blame_none(const struct rf_claim *claim)
{
    atomic_store_explicit(&claim->line->row, 0, memory_order_relaxed);
}

/* Whether the epoch of this ticket was broken off. Relaxed: a late look costs one
 * sample, never correctness. */
static inline bool rf_cancelled(const struct rf_claim *claim)
{
    return claim->ticket < atomic_load_explicit(&claim->control->cancel_upto, memory_order_relaxed);
}

#endif
