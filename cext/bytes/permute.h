/* The bijection behind the shuffled order: see src/ringfeed/orders/permutation.py, which says
 * what it is. */
#ifndef RF_PERMUTE_H
#define RF_PERMUTE_H

#include <stddef.h>
#include <stdint.h>

#define RF_ROUNDS 24

/* Replace each of `count` numbers below `length` by its place in the order; length: over 1,
 * at most 2**62. */
void rf_permute(uint64_t *numbers, size_t count, uint64_t length, const uint32_t keys[RF_ROUNDS]);

#endif
