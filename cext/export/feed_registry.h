/* Inside a feed, and which feeds there are: for feed.c only. */
#ifndef RF_FEED_REGISTRY_H
#define RF_FEED_REGISTRY_H

#include <pthread.h>

#include "export/feed.h"

enum { TOUCHED = -1, UNBEGUN = -2 };

struct rf_feed {
    const struct rf_callbacks *asks;
    uint64_t number;
    _Atomic uint32_t references;
    uint32_t generation; /* of forks, when it was made */
    struct rf_feed *next;
    uint32_t rows, parts;

    pthread_mutex_t lock;
    /* Under the lock. */
    struct rf_ring *ring; /* whose batches are taken; NULL: none */
    int64_t timeout_ns;

    /* The newest epoch id while its epoch has given nothing, or TOUCHED or UNBEGUN. */
    _Atomic int64_t untouched;
    _Atomic int64_t step;    /* at which its iteration will ask again: one more with each error */
    _Atomic int64_t newest;  /* the newest epoch id */
    _Atomic int64_t reached; /* the step that its iteration has come to */
    _Atomic uint32_t told;   /* of which Ctrl-C */

    struct rf_part part[];
};

struct rf_feed *rf_feed_make(const struct rf_callbacks *asks, uint32_t rows, uint32_t parts);
/* The owner is going: rf_feed_find() no longer finds the feed. */
void rf_feed_end(struct rf_feed *feed);
/* NULL where there is none of this number; else rf_feed_unreference() must follow. */
struct rf_feed *rf_feed_find(uint64_t number);
void rf_feed_unreference(struct rf_feed *feed);

/* Whether Python may be asked; then rf_feed_asked() must follow. */
bool rf_feed_may_ask(void);
void rf_feed_asked(void);
/* Refuse all further calls of Python. Returns how many are still running. */
uint32_t rf_feed_leave(void);

#endif
