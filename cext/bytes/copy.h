/* Copying into a slot, past the caches where what is copied would not be found there by the time it
 * is taken: a store that goes around them does not first read what it replaces, which is a third of
 * what a copy moves. */
#ifndef RF_COPY_H
#define RF_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"

/* bytes: below it, what is done at both ends costs more than is saved. */
#define RF_STREAM_LEAST 1024

/* Whether rows that go into the slot of a claim should be streamed: `beyond` is how many bytes of
 * open slots are too many for them to be found in a cache. */
static inline bool rf_streams(const struct rf_claim *claim, uint64_t beyond)
{
    const struct rf_control *control = claim->control;
    const uint64_t slot_size = control->geometry.slot_size;
    if (control->geometry.slots * slot_size < beyond)
        return false; /* without a look at a line that the consumer writes all the time */
    /* Relaxed: it only says which way is faster. */
    return atomic_load_explicit(&control->open_slots, memory_order_relaxed) * slot_size >= beyond;
}

/* Copy by stores that go past the caches, where the processor is one that does this faster. They
 * come after each other and before others in no order at all: rf_stream_end() must follow, in this
 * thread, before another thread is told of them. */
void rf_stream(void *target, const void *source, size_t size);

/* Have all that this thread has streamed come before whatever it stores next. The store that
 * publishes a ticket is a locked instruction, which orders them as well; that is the processor's
 * word about an instruction which the compiler chose, and C's memory orders say nothing of
 * streaming stores. */
void rf_stream_end(void);

/* memcpy, or rf_stream() where that is wanted and pays. */
static inline void rf_copy(void *target, const void *source, size_t size, bool stream)
{
    if (stream && size >= RF_STREAM_LEAST)
        rf_stream(target, source, size);
    else
        memcpy(target, source, size);
}

#endif
