/* Every state that can be reached: depth first to visit them all, breadth first for the shortest way to a fault. */
#ifndef RF_MODEL_SEARCH_H
#define RF_MODEL_SEARCH_H

#include "model.h"

struct found {
    const char *violation; /* NULL: none */
    uint64_t states, steps;
    unsigned depth; /* the longest run, or the steps to the violation */
    double seconds;
    bool complete; /* false: `limit` states were not enough */
};

/* Whether even those orders are tried that can make no difference; see reduce.c. */
extern bool every_order;

/* Visit every state once, and find every cycle: a run that comes to no end. */
struct found search_deep(uint64_t limit);
/* Find a shortest run to a violation; `tell` prints it. */
struct found search_wide(uint64_t limit, bool tell);

#endif
