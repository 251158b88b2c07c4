/* The ring: batches bound to slots by the consumer, filled ticket by ticket by workers, taken in
 * order.
 *
 * Nothing here sleeps except rf_wait_head(), rf_wait_slot(), rf_wait_room() and rf_claim_wait(),
 * which end by a deadline. Nothing here decides what an empty or full ring means: it answers, and
 * its caller decides.
 *
 * Invariants:
 *   - only the consumer process writes head, bound, EMPTY and AVAIL (its reaper included);
 *   - each slot is in exactly one of {free, bound, draining, held, parked};
 *   - slot_of[batch % slots], written before `bound`, tells where a batch's cells are;
 *   - the consumer reads its own copies (internal.h) of all that it has written, and delivers only
 *     what is sealed;
 *   - a worker reads a slot's record only after its claim; one live writer per row; READY means
 *     that all rows are there;
 *   - only w, or the reaper of w, changes CLAIMED(w);
 *   - the consumer's threads look, plan, take, cancel and check under the take lock, which no
 *     thread holds while it sleeps;
 *   - each batch is taken once, in order; a held slot is never written; a cancelled batch is never
 *     delivered;
 *   - no batch beyond the border is taken before rf_begin() has taken the border away;
 *   - some sleeper is woken for every AVAIL, and the consumer for every final state or release that
 *     it may wait on.
 *
 * Edges (each release names its acquire):
 *   B -> C  bind stores the cell AVAIL; claim compare-exchanges it: the record and the indices are
 *           visible.
 *   P -> T  publish compare-exchanges the cell to a final state; take loads it: the rows are
 *           visible.
 *   R -> F  release pushes the slot; the binder pops it: all reads of the old views are over before
 *           the rebind.
 *   H -> S  take stores the first hold; a fork in another thread adds one: the rows that it copies
 *           are visible.
 *   K -> L  a break stores cancel_upto, a stop stores stop, and bumps break_seq; a worker that holds
 *           several tickets loads it: it finds them cancelled, or the ring stopped.
 * Pairs of store-then-load, both sides sequentially consistent, so that one side always sees the
 * other:
 *   consumer: consumer_wait, then news_seq,   publisher, releaser, alarm, stop: that, then news_seq
 *   then the cell, the binder, the alarm      (all but a publisher), then consumer_wait
 *   and stop
 *   worker: its sleepers bit, then work_seq   binder, reaper: work_seq, then sleepers
 *   releaser: push, then the binder's lock    binder: unlock, then the stack
 */
#ifndef RF_RING_H
#define RF_RING_H

#include "snapshot.h"

struct rf_binder;

/* One process's hold on a segment; counted, so that views outlive the engine that made it. */
struct rf_ring {
    struct rf_control *control;
    struct rf_worker *workers;
    struct rf_record *records;
    _Atomic uint64_t *slot_of; /* low half: slot; high half: tickets of the batch */
    struct rf_cell *cells;
    uint8_t *slots;
    uint64_t control_size, slots_size;
    /* A copy: what stands in shared memory is checked once, then not trusted. */
    struct rf_geometry geometry;
    _Atomic uint8_t *populated; /* a flag a slot: this process has its pages mapped */
    struct rf_binder *binder;   /* the consumer's own; NULL elsewhere */
    _Atomic uint32_t references;
    uint32_t generation; /* of forks, when it was made */
    /* How long waiters of this process look before they yield, as the last yields taught. */
    _Atomic int64_t keep_ns;
};

/* ---- making and keeping ---- */

/* Write a fresh control block into zeroed memory of rf_control_size() bytes. */
void rf_format(struct rf_control *control, const struct rf_geometry *geometry);
/* Map a segment. `fresh`: the geometry of one that is made here, in zeroed memory, and that forked
 * children of this process inherit; NULL for one that another process has made. Returns NULL with
 * *why: errno, or EPROTO where magic, ABI or sizes differ. */
struct rf_ring *rf_open(int control_fd, int slots_fd, uint64_t control_size, uint64_t slots_size,
                        const struct rf_geometry *fresh, int *why);
/* Make this process the consumer, planning at most `capacity` batches ahead. 0, or ENOMEM. */
int rf_become_consumer(struct rf_ring *ring, uint32_t capacity, uint32_t max_attempts);
/* Drop the mappings with the last reference. A forked child has private copies of the control block
 * and of the slots that were held, as they were at the fork, and no access to the others: see
 * fork.c. In it this, rf_drop(), rf_cancel(), rf_requeue(), rf_alarm() and rf_stop() do nothing:
 * its copy of the loader must not end its parent's. */
void rf_reference(struct rf_ring *ring);
void rf_unreference(struct rf_ring *ring);

/* ---- the consumer: planning and binding ---- */

/* Bytes of the indices that a consumer keeps, `capacity` batches of `rows` being planned ahead. */
uint64_t rf_window_size(uint32_t capacity, uint32_t rows);
/* How many more batches can be planned; how many are planned or bound, and not taken; how many of
 * these are this epoch's, see rf_set_border(). */
uint32_t rf_plan_room(const struct rf_ring *ring);
uint32_t rf_planned(const struct rf_ring *ring);
uint32_t rf_left(const struct rf_ring *ring);
/* How many batches were ever planned, and are taken or cancelled. */
uint64_t rf_plan_taken(const struct rf_ring *ring);
/* Plan one batch; false when there is no room. */
bool rf_plan(struct rf_ring *ring, const int64_t *indices, uint32_t rows, uint64_t epoch,
             uint32_t version);
/* Have the batches planned from now on be claimed by the worker of one stream only; 0: by any
 * worker. A stream is what must be read in order: it has one worker, so that no other worker reads
 * ahead of it. All iterables that one worker reads are one stream. Only by the engine. */
void rf_set_stream(struct rf_ring *ring, uint32_t stream);
/* Bind what can be bound. It wakes no thread that waits: rf_drop() and rf_reap() do. */
void rf_bind(struct rf_ring *ring);

/* Open the lowest `slots` slots, 1 at least, and park the others: one in use when it is free next.
 * Only by the thread that runs the engine. The caller may give a parked slot's pages back, and then
 * reserves them again before it opens it. */
void rf_set_open(struct rf_ring *ring, uint32_t slots);
uint32_t rf_open_slots(const struct rf_ring *ring);
/* Give a parked slot's pages back to the kernel; 0 or an errno. */
int rf_give_back(struct rf_ring *ring, uint32_t slot);
/* How many workers there are from now on, at most the geometry's; those that go are to be
 * retired after this. */
void rf_set_worker_count(struct rf_ring *ring, uint32_t workers);
/* What decides how many rows a ticket has, from the next batch that is bound on. `ticket_ns`: work
 * worth a ticket, 0: as much as is right for workers of this machine; less than RF_LEAST_PART of it
 * is never worth one. `ticket_rows`: at most so many, where the cells suffice; 0: no bound. `more`:
 * tickets that are worked on at a time beyond one a worker, where a worker holds several: there may
 * be any number. */
void rf_set_pace(struct rf_ring *ring, int64_t ticket_ns, uint32_t ticket_rows, uint32_t more);
/* Have rf_claim_wait() answer this worker RF_STOPPED once it has published; until it is reaped. */
void rf_retire(struct rf_ring *ring, uint32_t worker);
/* For observers. */
void rf_note_pid(struct rf_ring *ring, uint32_t worker, uint32_t pid);
void rf_note_rank(struct rf_ring *ring, uint32_t rank, uint32_t world_size);
/* The rest of the ledger, which counts what is taken by itself: a wait that is over, and what of
 * the batches taken is not delivered. */
void rf_note_stall(struct rf_ring *ring, int64_t stall_ns);
void rf_note_undelivered(struct rf_ring *ring, uint32_t batches, uint32_t samples);

/* ---- the consumer: taking ---- */

enum rf_answer {
    RF_TAKEABLE, /* rf_next() and rf_take() have taken the head batch; by rf_look(), they would */
    RF_DRY,      /* nothing is planned or bound, or only what lies beyond the border */
    RF_HELD,     /* nothing is bound, and views hold every slot */
    RF_PENDING,  /* the deadline passed, or a signal came */
    RF_STOPPED,
    RF_ALARMED, /* rf_alarm() was called */
    RF_DAMAGED, /* what is shared was overwritten: see rf_damage_of() */
    /* Only by rf_next(), and RF_STALE by rf_wait_head(): what the engine is to resolve. */
    RF_STALE,   /* the ring is at another epoch */
    RF_PLAN,    /* no more batches are planned than are to stay so */
    RF_DUE,     /* the time that the engine has set has come */
    RF_GAPS,    /* a row of the head batch has failed */
    RF_CROWDED, /* with the head batch taken, no slot would be left to be filled */
};

struct rf_taken {
    uint64_t batch, epoch, place; /* place: in the plan, see rf_plan_taken() */
    uint32_t slot, rows, tickets, rows_per_ticket;
    bool failed, damaged;  /* damaged: nothing was taken, and nothing more can be */
    uint64_t failed_cells; /* a bit a ticket */
};

/* What is to be left to be filled when a batch is taken, besides its slot. */
enum rf_room {
    RF_ANY_ROOM, /* it need not be any */
    RF_A_SLOT,
    /* A slot; or one is held alone, which the caller drops for this batch. */
    RF_OWN_ROOM,
};

struct rf_terms { /* on which a caller takes without asking the engine */
    /* Tells the iterators of one loader apart, also two that read an epoch of one number. */
    int64_t epoch_id;
    /* Batches of this epoch that are to stay planned, whatever the low water is. */
    uint32_t kept;
    enum rf_room room;
};

/* From any thread of the consumer: each call looks under the take lock, which no thread holds
 * while it sleeps. */

/* Have batches be taken by callers with this epoch id only, those beyond the border too;
 * rf_cancel() sets it to 0. */
void rf_begin(struct rf_ring *ring, int64_t epoch_id);
/* What is planned from now on is the next epoch's: workers fill it, and to callers of this epoch it
 * is not there. Until rf_begin() or rf_cancel(). */
void rf_set_border(struct rf_ring *ring);
/* Have rf_next() answer RF_PLAN while no more batches than these are planned; 0: no more
 * are to come. */
void rf_set_low_water(struct rf_ring *ring, uint32_t batches);
/* Have rf_next() answer RF_DUE from that time on, once a batch has been taken since; 0: never;
 * below 0: at once. */
void rf_set_due(struct rf_ring *ring, int64_t due_ns);
/* What rf_wait_head() has waited in vain since a batch was taken, or an epoch begun. */
int64_t rf_waited_ns(struct rf_ring *ring);
void rf_set_waited(struct rf_ring *ring, int64_t waited_ns);

/* Take the head batch if that needs no decision of the engine: RF_TAKEABLE; else why not, at once.
 * The slot is held, with a count of one. */
enum rf_answer rf_next(struct rf_ring *ring, const struct rf_terms *terms, struct rf_taken *taken);
/* Take the head batch in whatever state its rows are: for the engine. */
enum rf_answer rf_take(struct rf_ring *ring, struct rf_taken *taken);
/* Whether the head batch is ready, and if not, why. */
enum rf_answer rf_look(struct rf_ring *ring);
/* Sleep until a look at this epoch would answer neither RF_PENDING nor RF_HELD. */
enum rf_answer rf_wait_head(struct rf_ring *ring, int64_t epoch_id, int64_t deadline_ns);
/* Only while the head batch has no slot: a consumer without workers must then fill
 * the batch itself. */
enum rf_answer rf_wait_slot(struct rf_ring *ring, int64_t deadline_ns);
/* The stream of the batch to be taken next; 0: any worker may fill it, or it has no slot. */
uint32_t rf_head_stream(struct rf_ring *ring);
/* Whether some slot is left to be filled: free, or bound. One that drains may be in quarantine, and
 * never come back. */
bool rf_has_room(const struct rf_ring *ring);
/* Whether some slot besides the head batch's is left to be filled. With `lets_go` one that is held
 * alone counts as one: the caller drops it for the head batch. */
bool rf_leaves_room(const struct rf_ring *ring, bool lets_go);
/* Sleep until there is room, an alarm or the stop; false when the deadline or a
 * signal came first. */
bool rf_wait_room(struct rf_ring *ring, int64_t deadline_ns);
/* Make rf_wait_head() answer RF_ALARMED from now on: the pool has failed. */
void rf_alarm(struct rf_ring *ring);

/* ---- the consumer: damage ---- */

enum rf_damage { /* a worker has written where nothing was its own: this is not as it was left */
                 RF_INTACT,
                 RF_DAMAGED_HEADER,  /* the control block's first lines */
                 RF_DAMAGED_RECORD,  /* of a slot: or slot_of */
                 RF_DAMAGED_CELL,    /* its word, or what its worker sealed */
                 RF_DAMAGED_INDICES, /* of a batch */
                 RF_DAMAGED_FAILURE, /* the marks or the failure record of a ticket that failed */
};

struct rf_damage_report {
    enum rf_damage what;
    uint64_t batch, epoch;
    uint32_t slot, first_row, rows; /* of the ticket; rows 0: that is not known */
    bool indices;                   /* what stands in the slot are still their indices */
};

/* Compare all that is bound with what was bound: after a wait that brought nothing. */
void rf_check(struct rf_ring *ring);
/* What was found first. Only by the engine. */
struct rf_damage_report rf_damage_of(const struct rf_ring *ring);

/* ---- the consumer: holds ---- */

uint8_t *rf_slot_base(const struct rf_ring *ring, uint32_t slot);
const uint8_t *rf_slot_marks(const struct rf_ring *ring, uint32_t slot);
const int64_t *rf_slot_indices(const struct rf_ring *ring, uint32_t slot);
const struct rf_failure *rf_slot_failure(const struct rf_ring *ring, uint32_t slot, uint32_t cell);
/* Copy a failure record of a slot that is held or bound; false where it is none of its ticket's. */
bool rf_read_failure(const struct rf_ring *ring, uint32_t slot, uint32_t cell,
                     struct rf_failure *failure);
void rf_hold(struct rf_ring *ring, uint32_t slot);
/* The last drop frees the slot. From any thread, without the GIL; in a forked child
 * it does nothing. */
void rf_drop(struct rf_ring *ring, uint32_t slot);

enum rf_slot_state rf_slot_state(const struct rf_ring *ring, uint32_t slot);

/* ---- the consumer: ends ---- */

/* Break off: drop the plan, cancel all that is bound, and start empty; no epoch is under
 * way any more. */
void rf_cancel(struct rf_ring *ring);
/* Fence: bind all that is bound and not taken again, as other batches in other slots. The old slots
 * drain; one that a worker is in that cannot be ended is quarantined: it drains until that worker
 * is proven dead and reaped. Whatever the worker still writes goes there, and its claim is on a
 * ticket that is cancelled. */
void rf_requeue(struct rf_ring *ring);
/* Wake all waiters with the answer RF_STOPPED, for ever. */
void rf_stop(struct rf_ring *ring);

/* ---- looking on: see snapshot.h. The consumer reads slots and counts from its own copies ---- */

struct rf_slot_report rf_report_slot(const struct rf_ring *ring, uint32_t slot);
struct rf_worker_report rf_report_worker(const struct rf_ring *ring, uint32_t worker);
struct rf_consumer_report rf_report_consumer(const struct rf_ring *ring);
void rf_report_waits(const struct rf_ring *ring, struct rf_waits *waits);

/* ---- the worker ---- */

/* Where a worker's next look starts: nothing below is AVAIL, unless the reaper was here since. */
struct rf_cursor {
    uint64_t batch;
    uint32_t cell, reaps;
    /* Whose batches this worker claims, besides those of stream 0; 0: all batches. */
    uint32_t stream;
    /* Only of a worker that yields: */
    bool yields;
    uint32_t passed_seq; /* the work_seq that it has passed on */
    uint64_t left;       /* 1 + the first ticket that its last look has left to others; 0: none */
    int64_t left_ns;     /* since when */
};

/* From now on, until it is reaped, have a worker claim by this cursor only tickets beyond the
 * workers that sleep, or are about to, those that yield not counted. What it leaves, it leaves for
 * RF_YIELD_NS; and since it may have used up the wake of a worker that it leaves a ticket to, it
 * wakes them, once for each work_seq. */
#define RF_YIELD_NS 5000000
void rf_set_yielding(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor);
/* Claim the first available ticket. */
bool rf_claim_next(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor,
                   struct rf_claim *claim);
/* The same, sleeping until there is one: RF_TAKEABLE (claimed), RF_PENDING (deadline,
 * signal) or RF_STOPPED. */
enum rf_answer rf_claim_wait(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor,
                             struct rf_claim *claim, int64_t deadline_ns);
/* For a worker that holds several tickets: what each break, each fence and the stop change; and a
 * sleep until it is another than the one seen, the deadline passes or a signal comes. Returns what
 * it is then. What was loaded before a look at the tickets and at the stop is to be seen. */
uint32_t rf_breaks(const struct rf_ring *ring);
uint32_t rf_break_wait(struct rf_ring *ring, uint32_t seen, int64_t deadline_ns);
/* Hand the rows over: READY, or FAILED where a row is marked, or CANCELLED. After a reap
 * it does nothing. */
void rf_publish(struct rf_ring *ring, const struct rf_claim *claim, bool cancelled);
/* Mark a row failed; the ticket's first failure keeps as much of the payload as fits and is
 * counted in full. */
void rf_fail(const struct rf_claim *claim, uint32_t row, const void *payload, uint32_t size);

#endif
