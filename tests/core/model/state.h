/* The state of the model: what cext/layout.h puts into shared memory, what cext/internal.h keeps in the consumer process,
 * and where every process and thread stands.
 *
 * A step is what one actor does between two looks at memory that others may touch at that moment; what is private at the
 * time joins the step before it. Every step may be the last of a worker. Names follow cext.
 *
 * Three things are not counted up as in the core, but told by what they tell their readers:
 *   work_seq, news_seq   `changed` of whoever has observed them since: futex_wait only asks whether the value differs
 *   reap_seq             `reaped` of each worker: its cursor only asks whether the value differs
 *   a row's content      right for the index that stands in the slot, wrong, or half written
 */
#ifndef RF_MODEL_STATE_H
#define RF_MODEL_STATE_H

#include <stdbool.h>
#include <stdint.h>

enum { WORKERS = 3, SLOTS = 3, CELLS = 3, ROWS = 4 }; /* the most that a configuration may have */
enum { NO_OWNER = 0xf, NO_SLOT = 0xff, ALL = 0xff, NO_BATCH = 0xff };
enum { HOWEVER_BRISK = 0x40 }; /* with a count of workers to be woken: however many are awake */

enum cell_state { EMPTY, AVAIL, CLAIMED, READY, FAILED, CANCELLED };
enum slot_state { FREE, BOUND, DRAINING, HELD };
enum content { WRONG, TORN, RIGHT };
enum mark { ROW_OK, ROW_RAISED, ROW_KILLED };

/* ---- where a worker stands ---- */

#define WORKER_STEPS(X)                                                                                               \
    X(WAIT_STOP, "rf_claim_wait: looks at stop")                                                                      \
    X(CLAIM_REAPS, "rf_claim_next: loads reap_seq")                                                                   \
    X(CLAIM_BOUND, "rf_claim_next: loads bound")                                                                      \
    X(CLAIM_HEAD, "rf_claim_next: loads head")                                                                        \
    X(CLAIM_SPARE, "has_spare: are more tickets AVAIL than workers sleep?")                                           \
    X(CLAIM_ENTRY, "rf_claim_next: loads slot_of")                                                                    \
    X(CLAIM_WORD, "try_claim: loads the cell")                                                                        \
    X(CLAIM_SWAP, "try_claim: compare-exchange")                                                                      \
    X(CLAIM_OWNER, "(broken) try_claim: stores the owner")                                                            \
    X(CLAIM_MUTEX, "(broken) try_claim: takes a shared mutex")                                                        \
    X(CLAIM_MUTEX_GIVE, "(broken) try_claim: gives the shared mutex back")                                            \
    X(FILL_RECORD, "fill_claim: reads the record, clears what failed before")                                         \
    X(FILL_TICKET, "fill_claim: writes its line's ticket")                                                            \
    X(FILL_ATTEMPT, "fill_claim: writes its line's attempt")                                                          \
    X(AWAY_SEQ, "rf_break_wait: observes break_seq, while its rows are made elsewhere")                               \
    X(AWAY_LOOK, "looks whether the ring has stopped, or its ticket is broken off")                                   \
    X(AWAY_FUTEX, "rf_break_wait: futex wait")                                                                        \
    X(AWAY_ASLEEP, "asleep, while its rows are made elsewhere")                                                       \
    X(ROW_CANCELLED, "rf_cancelled: loads cancel_upto")                                                               \
    X(ROW_BLAME, "rf_blame: writes its line's row")                                                                   \
    X(ROW_SAMPLE, "dataset[i], and writes half of the row")                                                           \
    X(ROW_WHOLE, "writes the rest of the row")                                                                        \
    X(ROW_FAIL, "rf_fail: marks the row, keeps the failure")                                                          \
    X(ROW_CLEAR, "rf_blame_none: the row is done")                                                                    \
    X(PUBLISH_OWN, "rf_publish: is the cell still mine?")                                                             \
    X(PUBLISH_BLAME, "rf_publish: rf_blame_none")                                                                     \
    X(PUBLISH_SWAP, "rf_publish: compare-exchange to a final state")                                                  \
    X(PUBLISH_FLAG, "rf_publish: loads consumer_wait")                                                                \
    X(PUBLISH_BUMP, "rf_wake_consumer: bumps news_seq")                                                               \
    X(PUBLISH_LOOK, "rf_wake_consumer: loads consumer_wait")                                                          \
    X(PUBLISH_WAKE, "rf_wake_consumer: futex wake")                                                                   \
    X(SLEEP_BIT, "rf_claim_wait: sets its sleepers bit")                                                              \
    X(SLEEP_SEQ, "rf_claim_wait: observes work_seq")                                                                  \
    X(SLEEP_STOP, "rf_claim_wait: looks at stop")                                                                     \
    X(SLEEP_PASS, "sleep_for_work: futex wake, of the workers that a ticket is left to")                              \
    X(SLEEP_FUTEX, "rf_claim_wait: futex wait")                                                                       \
    X(SLEEP_ASLEEP, "asleep")                                                                                         \
    X(SLEEP_OVER, "rf_claim_wait: clears its sleepers bit")                                                           \
    X(STARTING, "is being started")                                                                                   \
    X(STOPPED, "has left: the ring is stopped")                                                                       \
    X(DEAD, "dead")                                                                                                   \
    X(ABSENT, "is nobody: the id is free")

/* ---- where a thread of the consumer process stands ---- */

#define THREAD_STEPS(X)                                                                                               \
    X(IDLE, "in the user's code")                                                                                     \
    X(BIND_TRY, "rf_bind: tries the lock")                                                                            \
    X(BIND_COLLECT, "bind_all: pops what was released")                                                               \
    X(BIND_SWEEP, "is_drained: sweeps a cell")                                                                        \
    X(BIND_SWEEP_STORE, "(broken) is_drained: plain store")                                                           \
    X(BIND_DRAINED, "collect_drained: empties the cells, frees the slot")                                             \
    X(BIND_NEXT, "bind_all: a free slot and a planned batch?")                                                        \
    X(BIND_RECORD, "bind_batch: writes record, indices and marks")                                                    \
    X(BIND_PLAN, "bind_batch: takes the batch off the plan")                                                          \
    X(BIND_ENTRY, "bind_batch: writes slot_of")                                                                       \
    X(BIND_CELLS, "bind_batch: stores the cells AVAIL")                                                               \
    X(BIND_BOUND, "bind_batch: stores bound")                                                                         \
    X(BIND_MOVED, "(broken) bind_batch: bumps reap_seq for a batch that had no slot")                                 \
    X(BIND_UNLOCK, "rf_unlock: stores lock")                                                                          \
    X(BIND_AGAIN, "rf_unlock: looks at the stack again")                                                              \
    X(BIND_RETRY, "rf_unlock: tries the lock again")                                                                  \
    X(WORK_BUMP, "rf_wake_workers: bumps work_seq")                                                                   \
    X(WORK_LOOK, "rf_wake_workers: loads sleepers")                                                                   \
    X(WORK_WAKE, "rf_wake_workers: futex wake")                                                                       \
    X(NEWS_BUMP, "rf_wake_consumer: bumps news_seq")                                                                  \
    X(NEWS_LOOK, "rf_wake_consumer: loads consumer_wait")                                                             \
    X(NEWS_WAKE, "rf_wake_consumer: futex wake")                                                                      \
    X(NEXT_LOCK, "rf_next: takes the take lock")                                                                      \
    X(NEXT_PLAN, "rf_plan: a batch")                                                                                  \
    X(LOOK_BOUND, "rf_look: is_bound")                                                                                \
    X(LOOK_AGAIN, "rf_look: is_bound, after rf_bind")                                                                 \
    X(LOOK_CELL, "rf_look: unfinished, loads a cell")                                                                 \
    X(LOOK_STOP, "rf_look: looks at stop")                                                                            \
    X(LOOK_ALARM, "rf_look: looks at the alarm")                                                                      \
    X(LOOK_LAST, "rf_look: is_bound, the last time; is anything planned or bound?")                                   \
    X(LOOK_ROOM, "(broken) rf_look: is anything planned?")                                                            \
    X(LOOK_HELD, "rf_look: all_held")                                                                                 \
    X(REST_BOUND, "sleep_once: is_bound")                                                                             \
    X(REST_CELL, "sleep_once: unfinished, loads a cell")                                                              \
    X(REST_FLAG, "sleep_once: writes consumer_wait")                                                                  \
    X(REST_SEQ, "sleep_once: observes news_seq")                                                                      \
    X(REST_AVAIL, "sleep_once: is the ticket AVAIL still?")                                                           \
    X(REST_ENDS, "has_news: looks at alarm and stop")                                                                 \
    X(REST_NEWS, "has_news: loads the cell, or goes to bind")                                                         \
    X(REST_NEWS_BOUND, "has_news: is_bound")                                                                          \
    X(REST_STAYS, "sleep_once: has news, withdraws consumer_wait")                                                    \
    X(REST_UNLOCK, "sleep_once: gives the take lock back")                                                            \
    X(REST_FUTEX, "sleep_once: futex wait")                                                                           \
    X(REST_ASLEEP, "asleep")                                                                                          \
    X(REST_OVER, "sleep_once: takes the take lock again, withdraws consumer_wait")                                    \
    X(TAKE_CELL, "rf_take: takes over a cell, stores EMPTY")                                                          \
    X(TAKE_HOLD, "rf_take: the slot is held")                                                                         \
    X(TAKE_EXPORT, "rf_hold: one more")                                                                               \
    X(TAKE_HEAD, "rf_take: stores head")                                                                              \
    X(BREAK_LOCK, "rf_cancel: takes the take lock")                                                                   \
    X(FENCE_LOCK, "rf_requeue: takes the take lock")                                                                  \
    X(CANCEL_LOCK, "rf_cancel, rf_requeue: takes the lock")                                                           \
    X(CANCEL_UPTO, "drain_bound: stores cancel_upto")                                                                 \
    X(CANCEL_SLOTS, "drain_bound: bound slots are draining")                                                          \
    X(CANCEL_HEAD, "drain_bound: stores head")                                                                        \
    X(CANCEL_PLAN, "rf_cancel: drops the plan; rf_requeue: sets it back")                                             \
    X(TELL_BUMP, "rf_tell_break: bumps break_seq")                                                                    \
    X(TELL_WAKE, "rf_tell_break: futex wake")                                                                         \
    X(BREAK_DONE, "rf_cancel: gives the take lock back")                                                              \
    X(FENCE_DONE, "the pool starts workers in the place of fenced ones")                                              \
    X(DROP_COUNT, "rf_drop: one less")                                                                                \
    X(DROP_STATE, "release_slot: the slot is free, loads the stack's top")                                            \
    X(DROP_PUSH, "release_slot: compare-exchange, pushes the slot")                                                   \
    X(REAP_LOCK, "rf_reap: takes the lock")                                                                           \
    X(REAP_FIND, "take_back: looks for the claim")                                                                    \
    X(REAP_BACK, "take_back: blames the row, stores the cell")                                                        \
    X(REAP_FORGET, "forget_line")                                                                                     \
    X(REAP_SEQ, "rf_reap: bumps reap_seq")                                                                            \
    X(REAP_RESPAWN, "starts a worker under the same id")                                                              \
    X(REAP_ALARM, "rf_alarm: sets the alarm")                                                                         \
    X(STOP_FLAG, "rf_stop: stores stop")                                                                              \
    X(OVER, "has ended")                                                                                              \
    X(DROP_NEWS, "") X(REAP_WAKE, "") X(REAP_NEWS, "") X(REAP_DONE, "") X(STOP_NEWS, "") /* no steps, see settle() */

#define AS_STEP(name, text) name,
enum worker_step { WORKER_STEPS(AS_STEP) };
enum thread_step { THREAD_STEPS(AS_STEP) };
#undef AS_STEP

/* Consumers, which are threads, run next() and break, releasers drop views, the watcher reaps, the closer stops. */
enum thread_name { CONSUMER_0, CONSUMER_1, RELEASER_0, RELEASER_1, WATCHER, CLOSER, THREADS };
enum actor { FIRST_THREAD = WORKERS, ENVIRONMENT = WORKERS + THREADS, ACTORS };

/* ---- the parts ---- */

struct line { /* struct rf_worker, as far as blame goes; batch and cell are the ticket */
    uint8_t batch, cell, attempt, row;
};

struct worker {
    uint8_t step;
    uint8_t pace;          /* tickets are short: of struct rf_control */
    uint8_t armed, changed; /* has observed work_seq; it was bumped since */
    uint8_t reaped;         /* reap_seq differs from the cursor's */
    uint8_t rescan, bound;  /* what rf_claim_next has loaded */
    uint8_t cursor_batch, cursor_cell;
    uint8_t slot, tickets;                 /* what slot_of said */
    uint8_t batch, cell, attempt, claimed; /* the claim; `claimed`: the compare-exchange was ours */
    uint8_t plan;                          /* which batch the claim's record was for */
    uint8_t row, index;                    /* inside the ticket; the index that stood there */
    uint8_t cancelled, final;              /* what it will publish */
    uint8_t watches, broke;                /* has observed break_seq; it was bumped since */
    uint8_t passed;                        /* it has left tickets to others and woken them; no bump of work_seq since */
    uint8_t frozen;                        /* makes no step: stopped, or stuck in the kernel */
    uint8_t fenced;                        /* was sent its SIGKILL, and dies as soon as it can; replaced meanwhile */
    struct line line;
};

struct thread {
    uint8_t step, then;  /* `then`: where it goes on after rf_bind, rf_unlock or a wake */
    uint8_t tickets;     /* that rf_unlock has bound, or workers to be woken */
    uint8_t slot, cell;  /* where a loop is, or the slot to drop, or what a sleeper looks at */
    uint8_t top, flag;   /* of the stack; a result kept for a few steps */
    uint8_t held;        /* rf_look has answered HELD */
    uint8_t batch, plan; /* what is being bound */
    uint8_t worker;      /* whom the watcher reaps */
    uint8_t epoch_id;    /* the epoch that it waits in, and 1; 0: it has not waited */
};

struct cell {
    uint8_t state, batch, attempt, owner;
};

struct slot {
    uint8_t state, count, next; /* struct rf_hold */
    uint8_t views;              /* references that nobody has begun to drop */
    uint8_t batch, plan;        /* struct rf_record: the batch, and which of all planned ones it is */
    uint8_t indices;            /* 1 + which planned batch's indices stand there; 0: nobody's that is not taken */
    struct cell cell[CELLS];
    uint8_t failure[CELLS]; /* 1 + the row of the failure record; 0: none */
    uint8_t content[ROWS], mark[ROWS], deaths[ROWS];
    uint8_t died[ROWS]; /* as `deaths`, but counted when a worker dies inside the row */
};

struct entry {
    uint8_t slot, tickets; /* of slot_of */
};

struct state {
    /* struct rf_control */
    _Alignas(16) uint8_t head;
    uint8_t bound, cancel_upto /* a batch */, stop, sleepers, consumer_wait;
    struct entry slot_of[SLOTS];
    /* struct rf_binder */
    uint8_t lock, released, alarm, free_count, draining, free_slots[SLOTS];
    uint8_t plan_read, plan_write; /* a batch's place in the plan is its id */
    uint8_t plan_bound, saved; /* what was bound once; a bit a batch to be bound again whose indices are kept elsewhere */
    uint8_t homeless;              /* only where a rule is broken: the batch that waits for a slot */
    uint8_t homeless_plan;
    /* what consumers share, under the take lock */
    uint8_t take_lock, asleep /* consumers that have announced a sleep */, epoch, planned, waiting, expected; /* planned: of this epoch; expected: the next id */
    uint8_t beyond; /* of those that wait: the next epoch's, behind the border */
    uint8_t pace;          /* tickets are short: of struct rf_control */
    uint8_t armed, changed; /* a bit a consumer: it has observed news_seq; it was bumped since */
    uint8_t shared_mutex;               /* only where a rule is broken */
    /* what may still happen */
    uint8_t kills, breaks, freezes, forks, paces, calls, closed, consumer_dead, reaps;
    struct worker worker[WORKERS];
    struct thread thread[THREADS];
    struct slot slot[SLOTS];
};

#endif
