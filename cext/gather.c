#include "gather.h"

#include <string.h>

/* Small rows of a known size compile to one or two moves instead of a call. */
#define GATHER_FIXED(size)                                                                                             \
    case size:                                                                                                         \
        for (size_t row = 0; row < rows; row++)                                                                        \
            memcpy(target + row * (size), source + indices[row] * stride, size);                                       \
        return

void rf_gather(uint8_t *target, const uint8_t *source, ptrdiff_t stride, size_t row_size, const int64_t *indices,
               size_t rows)
{
    switch (row_size) {
        GATHER_FIXED(1);
        GATHER_FIXED(2);
        GATHER_FIXED(4);
        GATHER_FIXED(8);
    default:
        for (size_t row = 0; row < rows; row++)
            memcpy(target + row * row_size, source + indices[row] * stride, row_size);
    }
}
