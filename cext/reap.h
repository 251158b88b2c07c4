/* What happens to the claims of a worker that is proven dead. */
#ifndef RF_REAP_H
#define RF_REAP_H

#include "ring.h"

struct rf_reaped {
    uint32_t claims; /* tickets taken back */
    uint32_t deaths; /* that the blamed row has cost so far; 0: no row was to blame */
    /* 0, or the stage that is to blame: then the row is the first of those it had. */
    uint32_t stage;
    int64_t index;  /* the dataset index of that row, or -1 */
    uint64_t batch; /* and where it was */
    uint64_t epoch;
    uint32_t row;
    bool given_up; /* the row reached max_attempts and will be delivered as a failure */
};

/* Take back what `worker` had claimed. Its death must be proven (its pidfd fired, or it is this
 * very thread), and its id must not be used again before. `blame`: count the death against the row
 * it was in. */
struct rf_reaped rf_reap(struct rf_ring *ring, uint32_t worker, bool blame);

#endif
