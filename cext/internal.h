/* The consumer's process-local state: what is planned, which slots are free, what is held. And what
 * the files of the core share among themselves; no other file includes it. */
#ifndef RF_INTERNAL_H
#define RF_INTERNAL_H

#include "ring.h"
#include "os/wait.h"

#define RF_NO_SLOT UINT32_MAX
#define RF_ALL INT32_MAX
#define RF_NO_BORDER UINT64_MAX
/* Work worth a ticket: long against its 3 us of protocol, short against a batch. */
#define RF_TICKET_NS 200000
/* The part of it that is the least, one in so many, however many workers there are. */
#define RF_LEAST_PART 50

struct rf_planned {
    uint64_t epoch;
    uint32_t rows, version, stream;
    /* The slot its indices stand in, as long as it is to be bound again;
     * RF_NO_SLOT: see `indices`. */
    uint32_t source;
    uint64_t sum;   /* of its indices */
    int64_t *saved; /* they themselves, where another batch was given that slot */
};

/* What a slot was bound to: the consumer's own copy of what workers are told. Written under the
 * lock before `bound`, and as it is until the slot is free again. */
struct rf_binding {
    uint64_t batch, epoch;
    uint32_t version, rows, rows_per_ticket, tickets, stream;
    uint64_t sum[RF_MAX_CELLS]; /* of each ticket's indices */
};

#define RF_ALL_ROWS UINT32_MAX

struct rf_death { /* of workers in one row of a bound batch, or in a stage that has RF_ALL_ROWS */
    uint32_t slot, row, count;
};

struct rf_hold {
    _Atomic uint32_t count;   /* leases and exports of the slot */
    _Atomic uint32_t next;    /* below it on the stack of released slots */
    _Atomic uint32_t state;   /* enum rf_slot_state */
    _Atomic int64_t since_ns; /* when it was taken */
    bool blamed;              /* some row of its deaths is not 0; under the lock */
};

struct rf_binder {
    struct rf_ring *next; /* of the consumers of this process: for fork.c */
    /* Taken by exchange; held for microseconds, never while sleeping or in Python. */
    _Atomic uint32_t lock;
    /* Top of a stack: pushed by any thread, popped whole by the binder. */
    _Atomic uint32_t released;
    _Atomic uint32_t alarm;
    struct rf_hold *holds;

    _Atomic uint32_t take_lock; /* of the threads that take: see take.c */
    /* Under it. */
    int64_t epoch_id;    /* whose batches these are; 0 after a break */
    int64_t due_ns;      /* from then on the engine is asked; 0: never; below it: at once */
    uint64_t looked_at;  /* the head when that was set */
    int64_t waited_ns;   /* in vain, since a batch was taken */
    uint64_t stalled_ns; /* what was counted as waits since a batch was taken */
    uint32_t low_water;  /* batches that stay planned until the engine has planned more */
    uint32_t asleep;     /* threads that have announced that they sleep */
    /* Where in the plan the next epoch's batches begin, or RF_NO_BORDER; of the engine. */
    _Atomic uint64_t border;

    /* Under the lock. */
    uint32_t *free_slots;
    uint32_t free_count;
    uint32_t draining;
    struct rf_death *deaths;
    uint32_t death_count, death_room;
    uint32_t max_attempts;
    uint64_t cancel_upto; /* as in struct rf_control, like the next four */
    struct rf_binding *bindings;
    uint32_t *slot_of;      /* of the batch, modulo the slots */
    _Atomic uint64_t head;  /* written under the take lock */
    _Atomic uint64_t bound; /* written under the lock */
    _Atomic uint32_t stop;
    /* What of the shared memory is not as it was left; 0: nothing was found, see damage.c. */
    _Atomic uint64_t damage;

    _Atomic uint32_t open; /* slots from this one on are parked; written under the lock */
    _Atomic uint32_t crew; /* workers that are not to leave */
    /* Work worth a ticket; this and the next two: see rf_set_pace(), under the lock. */
    uint64_t ticket_ns;
    uint32_t ticket_rows; /* at most, 0: no bound */
    uint32_t more;        /* tickets that are worked on at a time beyond one a worker */
    uint32_t cpus;        /* that this process may use */
    /* The head when rf_wake_another() last woke a worker; under the take lock. */
    uint64_t last_wake_head;

    /* Planned batches, a queue written under the take lock and read under the binder's. A batch
     * keeps its place until it is taken, so that it can be bound again. Its indices are here until
     * it is bound for the first time, `window` batches of them; then they stand in its slot. */
    struct rf_planned *planned;
    int64_t *indices;
    uint32_t capacity, window;
    uint32_t stream;                        /* of what is planned now; of the engine */
    _Atomic uint64_t plan_write, plan_read; /* plan_read: the next to be bound */
    /* All before it have been bound once; written under the lock. */
    _Atomic uint64_t plan_bound;
    _Atomic uint64_t plan_taken; /* the next to be taken; under the take lock */

    struct rf_ledger ledger; /* written under the take lock */

    _Atomic uint64_t row_ns; /* running mean of the work a row takes; written under the take lock */
};

/* Also where observers see it. */
void rf_set_state(struct rf_ring *ring, uint32_t slot, enum rf_slot_state state);
/* Whether every open slot is held. */
bool rf_all_held(const struct rf_ring *ring);
/* Free, or parked where it is not among the open ones. Under the lock. */
void rf_set_free(struct rf_ring *ring, uint32_t slot);

void rf_lock_taking(struct rf_ring *ring);
void rf_unlock_taking(struct rf_ring *ring);
/* Under the take lock: what rf_look() answers, and the stream of the head batch. */
enum rf_answer rf_look_now(struct rf_ring *ring);
uint32_t rf_stream_of_head(const struct rf_ring *ring);

bool rf_try_lock(struct rf_binder *binder);
void rf_lock(struct rf_binder *binder);
/* Unlock, and bind what was released meanwhile: a thread that could not lock has left that
 * to this one. */
void rf_unlock(struct rf_ring *ring);

/* Whether a planned batch is not taken yet. By what the threads that take count: plan_read, which
 * another one may be about to store, would have one sleep for a batch that it has taken already. */
bool rf_is_planned(const struct rf_ring *ring);

/* Bump work_seq, and wake `count` sleepers, or RF_ALL. At a fast pace a smaller count wakes no
 * worker while one is awake, since that one looks before it sleeps, and otherwise no more workers
 * than there are processors. */
void rf_wake_workers(struct rf_ring *ring, uint32_t count);
/* Under the take lock, before one sleeps on an unclaimed ticket: wake as many sleepers as there are
 * such tickets, even while others are awake, since those may be slow to come. */
void rf_wake_claimers(struct rf_ring *ring);
/* Under the take lock, when one begins to wait at a fast pace: now and then wake one sleeper more
 * for unclaimed tickets, while fewer are awake than there are processors. No caller
 * relies on it. */
void rf_wake_another(struct rf_ring *ring);

#define RF_KEEP_NS 500 /* what a yield costs that no thread had waited for */

struct rf_waiter {
    int64_t began_ns; /* when the first look was in vain */
    int64_t yield_ns; /* until when the processor is not given away */
    bool spare;       /* others may do what it would do next */
};

struct rf_waiter rf_begin_wait(const struct rf_ring *ring, bool spare);
/* Whether to look once more instead of sleeping: after a pause, or after a yield. */
bool rf_look_again(struct rf_ring *ring, struct rf_waiter *waiter);
/* How long to keep the processor before the next yield, after one that took so long: not at all
 * where another thread ran meanwhile, otherwise longer than before. */
int64_t rf_keep_after(int64_t keep_ns, int64_t yield_ns);
/* Have workers that hold several tickets look whether they are cancelled, or the ring stopped. */
void rf_tell_holders(struct rf_ring *ring);
/* Also by workers, where the consumer waits for what they have published. */
void rf_wake_consumer(struct rf_ring *ring);

static inline struct rf_cell *rf_cell_of(const struct rf_ring *ring, uint32_t slot, uint32_t cell)
{
    return &ring->cells[(uint64_t)slot * ring->geometry.cells + cell];
}

/* ---- by the consumer: what is bound, as it knows it ---- */

static inline uint64_t rf_head(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->head, memory_order_relaxed);
}

/* Acquire: what is below it has its binding. */
static inline uint64_t rf_bound(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->bound, memory_order_acquire);
}

static inline bool rf_is_bound(const struct rf_ring *ring)
{
    return rf_head(ring) < rf_bound(ring);
} /* the head batch */

static inline uint32_t rf_slot_of(const struct rf_ring *ring, uint64_t batch)
{
    return ring->binder->slot_of[batch % ring->geometry.slots];
}

static inline const struct rf_binding *rf_binding_of(const struct rf_ring *ring, uint32_t slot)
{
    return &ring->binder->bindings[slot];
}

/* The last cell of the batch that is not final, or NULL. The last, because cells are claimed in
 * order: when it is done, the others mostly are, and the consumer is woken once a batch. */
struct rf_cell *rf_unfinished(const struct rf_ring *ring, uint64_t batch, uint32_t *number);

/* How many rows the ticket of this cell has. */
static inline uint32_t rf_rows_of(const struct rf_binding *binding, uint32_t cell)
{
    uint32_t left = binding->rows - cell * binding->rows_per_ticket;
    return left < binding->rows_per_ticket ? left : binding->rows_per_ticket;
}

static inline int64_t *rf_indices_of(const struct rf_ring *ring, uint32_t slot)
{
    return (int64_t *)(rf_slot_base(ring, slot) + ring->geometry.indices_at);
}

/* Count in the ledger: in the consumer's own, and in the one for observers. Each has one writer
 * at a time. */
static inline void rf_count(_Atomic uint64_t *own, _Atomic uint64_t *shown, uint64_t more)
{
    uint64_t sum = atomic_load_explicit(own, memory_order_relaxed) + more;
    atomic_store_explicit(own, sum, memory_order_relaxed);
    atomic_store_explicit(shown, sum, memory_order_relaxed);
}

/* Note what was found; only the first counts. `cell`: RF_MAX_CELLS where it is
 * none in particular. */
void rf_note_damage(struct rf_ring *ring, enum rf_damage what, uint32_t slot, uint32_t cell);
static inline bool rf_is_damaged(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->damage, memory_order_relaxed) != 0;
}
/* Whether a published ticket of a bound slot is what its worker has left; its failure is looked
 * at as well. */
bool rf_is_sound(struct rf_ring *ring, uint32_t slot, uint32_t cell, uint64_t word, uint32_t rows);
/* Whether a word can stand in this cell of a bound or draining slot. */
bool rf_is_possible(const struct rf_ring *ring, const struct rf_binding *binding, uint32_t cell,
                    uint64_t word);
/* Under the lock. */
struct rf_death *rf_deaths_of(struct rf_binder *binder, uint32_t slot, uint32_t row);
void rf_forget_deaths(struct rf_binder *binder, uint32_t slot);

/* Keep the indices that stand in a free slot, if a batch is to be bound again from them;
 * false without memory. */
bool rf_keep_indices(struct rf_ring *ring, uint32_t slot);

/* ---- by a worker ---- */

/* The slot and the tickets of a batch; of another one, if the entry has moved on: then no cell has
 * the ticket. */
static inline uint64_t rf_entry_of(const struct rf_ring *ring, uint64_t batch)
{
    return atomic_load_explicit(&ring->slot_of[batch % ring->geometry.slots], memory_order_relaxed);
}

/* Map all pages of a slot at this process's first use of it, in one call instead of a
 * fault a page. */
void rf_populate_slot(struct rf_ring *ring, uint32_t slot);

/* Have the children that this process forks see the ring as it was at the fork, in private
 * copies: see fork.c. */
void rf_enlist(struct rf_ring *ring);
void rf_delist(struct rf_ring *ring);

/* Whether this is a forked child's copy of its parent's ring. */
static inline bool rf_is_copy(const struct rf_ring *ring)
{
    return ring->generation != rf_fork_generation();
}

#endif
