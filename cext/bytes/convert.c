#include "bytes/convert.h"

#include <stdlib.h>

/* Each loop is written once and compiled twice: for every processor, and for those with AVX2, which
 * are told apart when it runs. No ifunc: not every C library has it, and it runs before a sanitizer
 * is ready. */
#if defined(__x86_64__) && defined(__GNUC__)
#define TWICE 1
#else
#define TWICE 0
#endif
#define INLINE static inline __attribute__((always_inline))

#define VECTOR 16 /* elements: two vectors of AVX2 */
#define WIDE 96   /* elements: as many as make the turns of a loop cheap */
/* Pixels, whose bytes stay in the first cache while plane after plane is made of them. */
#define BLOCK 2048

/* ---- one sample ---- */

INLINE float convert(uint8_t element, float scale, float offset, float mean, float std)
{
    return ((float)element * scale + offset - mean) / std;
}

/* `count` elements, `step` apart, of one channel. */
INLINE void convert_channel(const struct rf_conversion *how, size_t channel, float *restrict target,
                            const uint8_t *restrict source, size_t step, size_t count)
{
    const float scale = how->scale, offset = how->offset, mean = how->mean[channel],
                std = how->std[channel];
    for (size_t i = 0; i < count; i++)
        target[i] = convert(source[i * step], scale, offset, mean, std);
}

/* At most `width` elements, which begin with the first channel. */
INLINE void convert_pixels(const struct rf_conversion *how, float *restrict target,
                           const uint8_t *restrict source, size_t count)
{
    const float scale = how->scale, offset = how->offset;
    const float *restrict mean = how->mean, *restrict std = how->std;
    for (size_t i = 0; i < count; i++)
        target[i] = convert(source[i], scale, offset, mean[i], std[i]);
}

INLINE void convert_as_it_lies(const struct rf_conversion *how, float *target,
                               const uint8_t *source, size_t size)
{
    if (how->width == 1) {
        convert_channel(how, 0, target, source, 1, size);
        return;
    }
    for (; size >= how->width; size -= how->width, source += how->width, target += how->width)
        convert_pixels(how, target, source, how->width);
    convert_pixels(how, target, source, size);
}

/* `channels` is a constant where this is compiled, if it is one that pictures have. */
INLINE void convert_planes(const struct rf_conversion *how, float *target, const uint8_t *source,
                           size_t size, size_t channels)
{
    const size_t pixels = size / channels;
    for (size_t first = 0; first < pixels; first += BLOCK) {
        const size_t count = pixels - first < BLOCK ? pixels - first : BLOCK;
        for (size_t channel = 0; channel < channels; channel++)
            convert_channel(how, how->width == 1 ? 0 : channel, target + channel * pixels + first,
                            source + first * channels + channel, channels, count);
    }
}

INLINE void convert_sample(const struct rf_conversion *how, float *target, const uint8_t *source,
                           size_t size)
{
    if (!how->planar)
        convert_as_it_lies(how, target, source, size);
    else if (how->channels == 2)
        convert_planes(how, target, source, size, 2);
    else if (how->channels == 3)
        convert_planes(how, target, source, size, 3);
    else if (how->channels == 4)
        convert_planes(how, target, source, size, 4);
    else
        convert_planes(how, target, source, size, how->channels);
}

/* ---- some rows ---- */

INLINE void convert_rows(const struct rf_conversion *how, float *target, const uint8_t *source,
                         ptrdiff_t stride, const int64_t *indices, size_t rows, size_t size)
{
    for (size_t row = 0; row < rows; row++)
        convert_sample(how, target + row * size,
                       source + (indices ? indices[row] : (int64_t)row) * stride, size);
}

#if TWICE
__attribute__((target("avx2"))) static void
convert_rows_avx2(const struct rf_conversion *how, float *target, const uint8_t *source,
                  ptrdiff_t stride, const int64_t *indices, size_t rows, size_t size)
{
    convert_rows(how, target, source, stride, indices, rows, size);
}
#endif

void rf_convert(const struct rf_conversion *conversion, float *target, const uint8_t *source,
                ptrdiff_t stride, const int64_t *indices, size_t rows, size_t size)
{
#if TWICE
    if (__builtin_cpu_supports("avx2")) {
        convert_rows_avx2(conversion, target, source, stride, indices, rows, size);
        return;
    }
#endif
    convert_rows(conversion, target, source, stride, indices, rows, size);
}

/* ---- what to do ---- */

/* How often the numbers of the channels are repeated, so that a loop over them
 * fills its vectors. */
static size_t repeats(size_t count)
{
    size_t times = VECTOR;
    while (count * times / 2 >= WIDE && times > 1)
        times /= 2;
    return times;
}

struct rf_conversion *rf_conversion_new(float scale, float offset, const float *mean,
                                        const float *std, size_t count, size_t channels,
                                        bool planar)
{
    size_t width = planar || count == 1 ? count : count * repeats(count);
    struct rf_conversion *made = malloc(sizeof(*made) + 2 * width * sizeof(float));
    if (!made)
        return NULL;
    *made = (struct rf_conversion){.scale = scale, .offset = offset, .channels = channels};
    made->planar = planar && channels > 1; /* of one channel, both are the same */
    made->width = width;
    made->mean = made->numbers;
    made->std = made->numbers + width;
    for (size_t i = 0; i < width; i++) {
        made->mean[i] = mean[i % count];
        made->std[i] = std[i % count];
    }
    return made;
}
