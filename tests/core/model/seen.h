/* The states that were seen, each as 63 bits of a hash, and one bit more for whoever searches. */
#ifndef RF_MODEL_SEEN_H
#define RF_MODEL_SEEN_H

#include "state.h"

struct seen {
    uint64_t *places; /* bit 0 is the searcher's */
    uint64_t capacity, count;
};

void seen_begin(struct seen *seen);
void seen_end(struct seen *seen);
uint64_t fingerprint(const struct state *s);
/* The place of a fingerprint; where it is new, it is put there, and *fresh set. Valid until the next call. */
uint64_t *seen_place(struct seen *seen, uint64_t print, bool *fresh);

#endif
