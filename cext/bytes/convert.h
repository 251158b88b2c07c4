/* uint8 samples to float32, while they are written into a slot: ((x * scale + offset) - mean) /
 * std, each step rounded to float32 by itself, so that the result is that of NumPy, bit for bit.
 * This needs -ffp-contract=off. */
#ifndef RF_CONVERT_H
#define RF_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What each step has, and what leaves every float32 as it is, the sign of a zero included. */
#define RF_NO_SCALE 1.0f
#define RF_NO_OFFSET (-0.0f)
#define RF_NO_MEAN 0.0f
#define RF_NO_STD 1.0f

struct rf_conversion {
    float scale, offset;
    size_t channels; /* along the last axis of a sample */
    /* One plane a channel comes out, in place of the channels of each pixel side by side. */
    bool planar;
    size_t width; /* of mean and std: one number, or those of all channels, several times over */
    float *mean, *std;
    float numbers[]; /* where mean and std point to */
};

/* Return a conversion, for free(); NULL where there is no memory. `mean` and `std`: `count` numbers
 * each, one a channel; or one alone, for all channels. Channels are only looked at where count > 1
 * or `planar`. */
struct rf_conversion *rf_conversion_new(float scale, float offset, const float *mean,
                                        const float *std, size_t count, size_t channels,
                                        bool planar);

/* Convert `rows` samples of `size` elements each, which is a multiple of the channels, from source
 * + indices[i] * stride to target + i * size. NULL indices are 0, 1, …; the caller has checked the
 * others. */
void rf_convert(const struct rf_conversion *conversion, float *target, const uint8_t *source,
                ptrdiff_t stride, const int64_t *indices, size_t rows, size_t size);

#endif
