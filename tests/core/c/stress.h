/* What the stress programs share: rows whose content tells which they are, a worker's work on them,
 * and a consumer that checks every batch against what it planned, breaks epochs off, and has slots
 * released by another thread.
 *
 * A dataset index is used once in a run, counting up. Some indices raise, some end their worker;
 * which, their number decides. Delivered rows must be right, or marked for a reason that is known.
 */
#ifndef RF_STRESS_H
#define RF_STRESS_H

#include "reap.h"
#include "ring.h"
#include "os/wait.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define STRESS_WORKERS 4u
#define STRESS_ROWS 7u
#define STRESS_WORDS 4u /* of a row */
#define STRESS_CAPACITY 6u
#define STRESS_INDICES (INT64_C(1) << 24)        /* a run ends when they are used up */
#define STRESS_PATIENCE_NS INT64_C(120000000000) /* nothing takes that long but a lost wake */

struct stress {
    struct rf_ring *ring;
    uint64_t seed;
    int64_t end_ns;
    _Atomic uint64_t checked, broken;
    _Atomic uint8_t *given_up; /* by index: its row has ended too many workers */
    int64_t fenced_below;      /* rows bound before a fence, whose deaths it may have forgotten */
    _Atomic bool over;         /* the consumer has left */
    _Atomic uint64_t deaths;
    struct { /* slots on their way to the releasing thread; a slot may be here twice */
        pthread_mutex_t lock;
        uint32_t slots[64], count;
    } leases;
};

/* ---- numbers by chance ---- */

uint64_t mixed(uint64_t number);
struct chance {
    uint64_t state;
};
uint64_t draw(struct chance *chance);
/* True once in `of` times. */
bool one_in(struct chance *chance, uint32_t of);
void linger(struct chance *chance); /* not at all, a moment, or long enough for others to run */

/* ---- the run ---- */

/* Read [seconds] [seed] from the command line, print the seed, and make a segment: two to
 * STRESS_WORKERS workers, few slots and cells, as the seed says. */
void stress_begin(struct stress *stress, int argc, char **argv);
/* Plan, take, check, hold, fence and break off until the time is over; then stop the ring. */
void stress_consume(struct stress *stress);
/* After all workers have ended and were reaped: nothing is left; prints the closing line, returns
 * the exit status. */
int stress_end(struct stress *stress, const char *program);
void stress_complain(struct stress *stress, const char *what, uint64_t got, uint64_t expected);

/* ---- a worker's work ---- */

enum fate { FATE_FILLED, FATE_CANCELLED, FATE_DEAD };
/* Fill the claim's rows; `dies` says, before each row and in the middle of each, whether the
 * worker ends here. */
enum fate stress_fill(struct stress *stress, struct rf_claim *claim, struct chance *chance,
                      bool (*dies)(struct chance *chance, bool poison));
/* Reap a dead worker and note which row it was that was given up. */
void stress_reap(struct stress *stress, uint32_t worker);
/* Check one delivered batch whose indices count up from `first`. */
void stress_check(struct stress *stress, const struct rf_taken *taken, int64_t first,
                  uint32_t rows);

#endif
