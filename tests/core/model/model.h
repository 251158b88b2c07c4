/* The model: what may happen in a state, and what must never be so. */
#ifndef RF_MODEL_MODEL_H
#define RF_MODEL_MODEL_H

#include "rules.h"
#include "state.h"

struct configuration {
    const char *name, *about;
    bool bounded;                          /* small enough for every test run */
    uint8_t workers, slots, cells, rows;   /* workers: ids for them; rows: of one batch */
    uint8_t away;                          /* a bit a worker whose rows are made elsewhere, perhaps never */
    bool yields;                           /* those claim only what is left by workers that sleep */
    uint8_t spare;                         /* ids that nobody has at first: for those who replace fenced workers */
    uint8_t epochs, batches, tickets[4];   /* batches of an epoch; tickets of each, 0: as many as cells */
    uint8_t ahead;                         /* batches planned in one go */
    bool crosses;                          /* the next epoch is planned, too, while this one's last batches are taken */
    uint8_t window;                        /* planned batches that may have no slot yet; 0: any number */
    uint8_t consumers, releasers, exports; /* exports: holds beside the lease's own */
    uint8_t kills, breaks, freezes, forks; /* how many may happen */
    uint8_t paces;                         /* how often tickets may become pace, or long */
    uint8_t calls;                         /* how often a consumer that begins to wait may wake a worker more */
    uint8_t max_attempts, alarm_after;     /* alarm_after deaths the pool gives up; 0: never */
    uint16_t raises, flaky, poison;        /* a bit an index, see index_of(): always raises, may raise, kills */
    bool closes, dies;                     /* the loader may be closed; the consumer may die */
    bool pace;                            /* tickets are, from the beginning */
    bool slow_starts;                      /* a worker that is started is up at some time, or never */
    bool fences;                           /* after timeout_s, whoever makes no step; else that is a StallError */
};

extern const struct configuration *configuration;
const struct configuration *configuration_named(const char *name);
const struct configuration *configuration_at(unsigned number); /* NULL after the last */

enum outcome { NO_MORE, NOT_NOW, STEPPED }; /* NO_MORE: no step of this number nor of a higher one */

void first_state(struct state *s);
/* Make the step of `actor` that is number `choice`, if there is one. */
enum outcome make_step(struct state *s, unsigned actor, unsigned choice);

enum outcome worker_step(struct state *s, unsigned number, unsigned choice);
enum outcome binder_step(struct state *s, unsigned thread, unsigned choice);
enum outcome row_step(struct state *s, unsigned number, unsigned choice); /* of a worker with a claim */
enum outcome consumer_step(struct state *s, unsigned thread);
enum outcome cancel_step(struct state *s, struct thread *thread); /* of a thread that breaks off */
enum outcome side_step(struct state *s, unsigned thread, unsigned choice);
void settle(struct state *s, unsigned thread);
enum outcome environment_step(struct state *s, unsigned choice);

/* An actor of whom alone the next steps need be tried, or ACTORS. */
unsigned private_actor(const struct state *s);

/* Give actors that differ in their number only the numbers of one order. */
void sort_twins(struct state *s);

/* What went wrong, or NULL. Set by wrong(), the first time in a step. */
extern const char *violation;
void wrong(const char *what);
/* Everything that must be so in every state, and in one where none can go on by itself. */
void check_state(const struct state *s);
void check_rest(const struct state *s);
void check_taken(const struct state *s, const struct slot *slot);
void check_blame(const struct slot *slot, unsigned number);
void check_write(const struct slot *slot);

/* Whether this choice of the environment's kills `worker` or makes it stand still. */
bool strikes(unsigned choice, unsigned worker);
const char *environment_text(unsigned choice);
void print_step(const struct state *before, const struct state *after, unsigned actor, unsigned choice);
void print_state(const struct state *s);

/* ---- shared by the actors ---- */

enum { WAIT_NONE = 0, WAIT_FREE = 0xff };

static inline uint8_t ticket_of(unsigned batch, unsigned cell) { return (uint8_t)(batch * CELLS + cell); }
static inline uint8_t tickets_of(unsigned plan)
{
    uint8_t tickets = configuration->tickets[plan % configuration->batches];
    return tickets ? tickets : configuration->cells;
}
static inline unsigned rows_per_ticket(unsigned plan)
{
    return (configuration->rows + tickets_of(plan) - 1u) / tickets_of(plan);
}
static inline unsigned rows_of_ticket(unsigned plan, unsigned cell)
{
    unsigned first = cell * rows_per_ticket(plan), left = configuration->rows - first;
    return left < rows_per_ticket(plan) ? left : rows_per_ticket(plan);
}
/* The dataset index of a row: the epochs count on, so that no two batches share one. */
static inline uint8_t index_of(unsigned plan, unsigned row) { return (uint8_t)(plan * configuration->rows + row); }
static inline bool has(uint16_t set, unsigned index) { return index < 16 && (set >> index & 1); }

static inline bool is_final(const struct cell *cell) { return cell->state >= READY; }
static inline unsigned place_of(unsigned batch)
{
    return batch % (broken(LATE_SLOT_CHOICE) ? SLOTS : configuration->slots);
}
static inline struct entry entry_of(const struct state *s, unsigned batch) { return s->slot_of[place_of(batch)]; }
/* Whether this epoch's batches are all taken, and what waits is the next one's. */
static inline bool is_at_border(const struct state *s)
{
    return s->beyond && s->waiting == s->beyond && !broken(BORDER_IGNORED);
}

static inline bool is_bound(const struct state *s) { return s->head < s->bound; }
/* Whether the head batch has a slot: it has if it is bound, unless that rule is broken. */
static inline bool is_housed(const struct state *s) { return is_bound(s) && entry_of(s, s->head).slot != NO_SLOT; }
static inline bool is_alive(const struct worker *worker)
{
    return worker->step != DEAD && worker->step != STOPPED && worker->step != ABSENT;
}
/* How many are at work, or are to be. */
static inline unsigned crew(void) { return configuration->workers - configuration->spare; }
static inline bool is_away(unsigned worker) { return configuration->away >> worker & 1; }
static inline bool is_asleep(const struct worker *worker) { return worker->step == SLEEP_ASLEEP; }

/* Where an empty slot ends and a finished cell begins, its owner and attempt have told all they had to. */
static inline void finish_cell(struct cell *cell, enum cell_state state)
{
    cell->state = (uint8_t)state;
    cell->attempt = 0;
    cell->owner = NO_OWNER;
}
static inline void empty_cell(struct cell *cell) { *cell = (struct cell){.state = EMPTY, .owner = NO_OWNER}; }

/* Whether a worker stands still in a slot whose batch is awaited. */
bool has_suspect(const struct state *s);
/* Nobody reads a slot's rows and record any more: taken over and checked, or drained. */
void forget_rows(struct slot *slot);
void bump_news(struct state *s);
void bump_work(struct state *s);
void bump_reaps(struct state *s);
void bump_breaks(struct state *s);
void wake_holders(struct state *s);
void go_away(struct worker *worker);
void away_step(struct state *s, unsigned number);
void begin_rows(struct state *s, unsigned number);
/* FUTEX_WAKE: some `count` of the sleepers, the choice is nobody's. False where there are fewer choices. */
bool wake_workers(struct state *s, unsigned count, unsigned choice);
bool wake_consumers(struct state *s, unsigned choice);
/* A consumer thread's sleep is over: it announces none. */
void withdraw(struct state *s);
/* Forget what the steps to come do not need, so that states which differ in nothing else are one. */
void forget_claim(struct worker *worker);
void look_for_work(struct worker *worker);
unsigned row_in_batch(const struct worker *worker); /* the one it is at */
void end_epoch(struct state *s);
bool lock_taking(struct state *s); /* false where another thread has their lock */
void go_idle(struct state *s, struct thread *thread);
void worker_wakes(struct state *s, unsigned number);
bool must_die(const struct state *s, unsigned number);
void worker_dies(struct state *s, unsigned number);
void fill_up(struct state *s); /* start workers in the place of those that are gone or fenced, if there are ids */
void go_wake_workers(struct thread *thread, uint8_t count, enum thread_step then);
void go_bind(struct thread *thread, enum thread_step then);

#endif
