#define _GNU_SOURCE
#include "export/feed_registry.h"

#include <stdlib.h>

#include "internal.h"

static pthread_mutex_t known = PTHREAD_MUTEX_INITIALIZER; /* held for a look, never while waiting */
static struct rf_feed *first;
static uint64_t last_number;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;
static _Atomic uint32_t exiting, asking;

static void lock_known(void) { pthread_mutex_lock(&known); }
static void unlock_known(void) { pthread_mutex_unlock(&known); }
/* A child must not inherit it locked by a thread that it does not have. */
static void start_watching(void) { pthread_atfork(lock_known, unlock_known, unlock_known); }

void rf_feed_unreference(struct rf_feed *feed)
{
    if (atomic_fetch_sub_explicit(&feed->references, 1, memory_order_acq_rel) != 1)
        return;
    if (feed->ring)
        rf_unreference(feed->ring);
    pthread_mutex_destroy(&feed->lock);
    free(feed);
}

struct rf_feed *rf_feed_find(uint64_t number)
{
    lock_known();
    struct rf_feed *feed = first;
    while (feed && feed->number != number)
        feed = feed->next;
    if (feed)
        atomic_fetch_add_explicit(&feed->references, 1, memory_order_relaxed);
    unlock_known();
    return feed;
}

struct rf_feed *rf_feed_make(const struct rf_callbacks *asks, uint32_t rows, uint32_t parts)
{
    pthread_once(&watch_forks, start_watching);
    struct rf_feed *feed = calloc(1, sizeof *feed + parts * sizeof feed->part[0]);
    if (!feed)
        return NULL;
    pthread_mutex_init(&feed->lock, NULL);
    feed->asks = asks;
    atomic_init(&feed->references, 1);
    atomic_init(&feed->untouched, UNBEGUN);
    feed->generation = rf_fork_generation();
    feed->rows = rows;
    feed->parts = parts;
    lock_known();
    feed->number = ++last_number;
    feed->next = first;
    first = feed;
    unlock_known();
    return feed;
}

void rf_feed_end(struct rf_feed *feed)
{
    lock_known();
    struct rf_feed **place = &first;
    while (*place != feed)
        place = &(*place)->next;
    *place = feed->next;
    unlock_known();
    rf_feed_unreference(feed);
}

/* ---- asking ---- */

bool rf_feed_may_ask(void)
{
    atomic_fetch_add_explicit(&asking, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&exiting, memory_order_seq_cst))
        return true;
    atomic_fetch_sub_explicit(&asking, 1, memory_order_seq_cst);
    return false;
}

void rf_feed_asked(void) { atomic_fetch_sub_explicit(&asking, 1, memory_order_seq_cst); }

uint32_t rf_feed_leave(void)
{
    atomic_store_explicit(&exiting, 1, memory_order_seq_cst);
    return atomic_load_explicit(&asking, memory_order_seq_cst);
}
