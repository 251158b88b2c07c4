/* The ring of a scene, and what its threads do there. */
#ifndef RF_WEAK_STAGE_H
#define RF_WEAK_STAGE_H

#include "internal.h"
#include "reap.h"
#include "scenes.h"

#define FOREVER INT64_MAX /* nobody may depend on a deadline */

extern struct rf_ring *ring;

/* Row r of the batch that begins with index `first` is to hold first + r. */
void plan(int64_t first);
int64_t *row_of(uint32_t slot, uint32_t row);
void check_rows(uint32_t slot, int64_t first);
/* Wait for the batch that begins with this index, take it, and read it; returns its slot. */
uint32_t take(int64_t first);
/* Claim, fill and publish until the ring stops. */
void work(uint32_t worker);
void work_by(uint32_t worker, struct rf_cursor *cursor);

#endif
