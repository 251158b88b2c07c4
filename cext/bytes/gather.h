/* Copying rows into a slot without the GIL. */
#ifndef RF_GATHER_H
#define RF_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copy `rows` rows of `row_size` bytes from source + indices[i] * stride to target + i * row_size,
 * as rf_copy() does; what was streamed has ended. The caller has checked the indices. */
void rf_gather(uint8_t *target, const uint8_t *source, ptrdiff_t stride, size_t row_size,
               const int64_t *indices, size_t rows, bool stream);

#endif
