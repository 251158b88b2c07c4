#include "bytes/gather.h"
#include "bytes/copy.h"

#include <string.h>

#define LINE 64   /* bytes */
#define PAGE 4096 /* bytes: where the processor's own prefetching ends */
/* Lines of a page that are asked for; it sees by them that the others are wanted, too. */
#define FIRST 4
#define AHEAD 8192   /* bytes: so far before a row is copied, it is asked for */
#define MOST_ROWS 64 /* the same, for small rows */

/* Small rows of a known size compile to one or two moves instead of a call, and are all under way
 * at once anyway. */
#define GATHER_FIXED(size)                                                                         \
    case size:                                                                                     \
        for (size_t row = 0; row < rows; row++)                                                    \
            memcpy(target + row * (size), source + indices[row] * stride, size);                   \
        return

/* Ask for a row that lies anywhere in memory, before it is needed: all of it, or the beginning
 * of each page. */
static inline void ask_for(const uint8_t *row, size_t size)
{
    const size_t span = size < PAGE ? PAGE : FIRST * LINE;
    for (size_t page = 0; page < size; page += PAGE)
        for (size_t place = page; place < size && place < page + span; place += LINE)
            __builtin_prefetch(row + place);
}

static inline size_t rows_ahead(size_t row_size)
{
    const size_t ahead = AHEAD / row_size;
    return ahead < 1 ? 1 : ahead < MOST_ROWS ? ahead : MOST_ROWS;
}

static void gather(uint8_t *target, const uint8_t *source, ptrdiff_t stride, size_t row_size,
                   const int64_t *indices, size_t rows, bool stream)
{
    const size_t ahead = rows_ahead(row_size);
    for (size_t row = 0; row < rows && row < ahead; row++)
        ask_for(source + indices[row] * stride, row_size);
    for (size_t row = 0; row < rows; row++) {
        if (row + ahead < rows)
            ask_for(source + indices[row + ahead] * stride, row_size);
        rf_copy(target + row * row_size, source + indices[row] * stride, row_size, stream);
    }
}

/* The same for rows within a line or two. */
static void gather_small(uint8_t *target, const uint8_t *source, ptrdiff_t stride, size_t row_size,
                         const int64_t *indices, size_t rows)
{
    for (size_t row = 0; row < rows; row++) {
        if (row + MOST_ROWS < rows)
            __builtin_prefetch(source + indices[row + MOST_ROWS] * stride);
        memcpy(target + row * row_size, source + indices[row] * stride, row_size);
    }
}

void rf_gather(uint8_t *target, const uint8_t *source, ptrdiff_t stride, size_t row_size,
               const int64_t *indices, size_t rows, bool stream)
{
    switch (row_size) {
        GATHER_FIXED(1);
        GATHER_FIXED(2);
        GATHER_FIXED(4);
        GATHER_FIXED(8);
    default:
        if (row_size <= LINE) {
            gather_small(target, source, stride, row_size, indices, rows);
            return;
        }
        gather(target, source, stride, row_size, indices, rows, stream);
        if (stream)
            rf_stream_end();
    }
}
