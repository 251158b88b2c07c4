/* Rings to test on, and short ways to place and read their states. */
#ifndef RF_PLACE_H
#define RF_PLACE_H

#include "internal.h"
#include "os/pages.h"
#include "reap.h"
#include "ring.h"
#include "os/wait.h"

#define PLACE_CAPACITY 8u /* batches planned ahead */
#define PLACE_ATTEMPTS 3u

int memfd_of(uint64_t size);
/* Rows of `row_size` bytes, then all else that a slot holds. */
struct rf_geometry geometry_of(uint32_t slots, uint32_t cells, uint32_t workers, uint32_t rows,
                               uint32_t row_size);
/* Open a segment with this geometry in its header. NULL with *why on failure. */
struct rf_ring *open_as(const struct rf_geometry *geometry, int *why);
/* A consumer's ring with rows of 8 bytes; to be unreferenced. */
struct rf_ring *ring_of(uint32_t slots, uint32_t cells, uint32_t workers, uint32_t rows);

/* Plan `count` batches of `rows` rows, whose indices count up from 0, and bind what
 * can be bound. */
void bind_batches(struct rf_ring *ring, uint32_t count, uint32_t rows);
/* Claim the next ticket as `worker`, from a fresh cursor. False where there is none. */
bool claim_as(struct rf_ring *ring, uint32_t worker, struct rf_claim *claim);
/* Claim and publish all that is available, as `worker`; the number of tickets. */
uint32_t fill_all(struct rf_ring *ring, uint32_t worker);

/* Take the head batch, which is ready. */
struct rf_taken taken_of(struct rf_ring *ring);

uint64_t word_at(const struct rf_ring *ring, uint32_t slot, uint32_t cell);
void place_word(struct rf_ring *ring, uint32_t slot, uint32_t cell, uint64_t word);
/* As if so many batches had been bound and taken before. */
/* As a worker would leave it that has filled the ticket. */
void place_published(struct rf_ring *ring, uint32_t slot, uint32_t cell, enum rf_state state);
void place_batches(struct rf_ring *ring, uint64_t batches);

int64_t soon_ns(int64_t milliseconds); /* a deadline */
/* Run `child` in a forked process; true where it exits with 0, within seconds. */
bool in_child(void (*child)(struct rf_ring *ring), struct rf_ring *ring);

#endif
