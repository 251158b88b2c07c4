/* Numbers of one type as another, while they are written into a slot: the usual pairs of types,
 * with a check that every number arrives. NumPy does the others. */
#ifndef RF_CAST_H
#define RF_CAST_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes/numbers.h"

#define RF_CAST_LOOP(from, to, is_bad)                                                             \
    do {                                                                                           \
        const from *given = source;                                                                \
        to *made = target;                                                                         \
        int bad = 0;                                                                               \
        for (size_t i = 0; i < count; i++) {                                                       \
            made[i] = (to)given[i];                                                                \
            bad |= (is_bad);                                                                       \
        }                                                                                          \
        return !bad;                                                                               \
    } while (0)

#define RF_CAST_PAIR(from, to) ((uint32_t)(from) << 16 | (uint32_t)(to))

/* False for types that are not in here, and where a number does not arrive: a whole one as itself,
 * a finite one as finite. The target then holds anything. Both are aligned. */
static inline bool rf_cast(int from, int to, const void *source, void *target, size_t count)
{
    switch (RF_CAST_PAIR(from, to)) {
    case RF_CAST_PAIR(RF_NUMBER('f', 8), RF_NUMBER('f', 4)):
        RF_CAST_LOOP(double, float,
                     (fabsf(made[i]) == INFINITY) & (fabs(given[i]) != (double)INFINITY));
    case RF_CAST_PAIR(RF_NUMBER('f', 4), RF_NUMBER('f', 8)):
        RF_CAST_LOOP(float, double, 0);
    case RF_CAST_PAIR(RF_NUMBER('i', 8), RF_NUMBER('i', 4)):
        RF_CAST_LOOP(int64_t, int32_t, made[i] != given[i]);
    case RF_CAST_PAIR(RF_NUMBER('i', 4), RF_NUMBER('i', 8)):
        RF_CAST_LOOP(int32_t, int64_t, 0);
    case RF_CAST_PAIR(RF_NUMBER('i', 8), RF_NUMBER('f', 4)):
        RF_CAST_LOOP(int64_t, float, 0);
    case RF_CAST_PAIR(RF_NUMBER('i', 4), RF_NUMBER('f', 4)):
        RF_CAST_LOOP(int32_t, float, 0);
    case RF_CAST_PAIR(RF_NUMBER('i', 2), RF_NUMBER('f', 4)):
        RF_CAST_LOOP(int16_t, float, 0);
    case RF_CAST_PAIR(RF_NUMBER('u', 1), RF_NUMBER('f', 4)):
        RF_CAST_LOOP(uint8_t, float, 0);
    case RF_CAST_PAIR(RF_NUMBER('u', 1), RF_NUMBER('i', 4)):
        RF_CAST_LOOP(uint8_t, int32_t, 0);
    case RF_CAST_PAIR(RF_NUMBER('u', 1), RF_NUMBER('i', 8)):
        RF_CAST_LOOP(uint8_t, int64_t, 0);
    default:
        return false;
    }
}

#endif
