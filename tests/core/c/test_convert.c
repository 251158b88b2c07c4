/* The conversion of uint8 samples, against one that takes every step alone and cannot be
 * merged or vectorised. */
#include "check.h"
#include "bytes/convert.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CHANNELS 200
#define GUARD 16 /* elements before and behind the target that nobody may write */
#define GUARDED 0x7b7b7b7bu

struct steps {
    float scale, offset;
    float mean[MOST_CHANNELS], std[MOST_CHANNELS];
    size_t count, channels;
    bool planar;
};

static float expected(const struct steps *steps, uint8_t element, size_t channel)
{
    const size_t number = steps->count == 1 ? 0 : channel;
    volatile float value = (float)element;
    value = value * steps->scale;
    value = value + steps->offset;
    value = value - steps->mean[number];
    value = value / steps->std[number];
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Steps with a number of their own for each channel, or with those that change nothing. */
static struct steps steps_of(size_t channels, bool planar, unsigned left_out)
{
    struct steps steps = {.channels = channels, .count = channels, .planar = planar};
    steps.scale = left_out & 1 ? RF_NO_SCALE : 1.0f / 255;
    steps.offset = left_out & 2 ? RF_NO_OFFSET : -0.3f;
    for (size_t channel = 0; channel < channels; channel++) {
        steps.mean[channel] = left_out & 4 ? RF_NO_MEAN : 0.485f + 0.0137f * (float)channel;
        steps.std[channel] = left_out & 8 ? RF_NO_STD : 0.229f + 0.0071f * (float)channel;
    }
    return steps;
}

static struct rf_conversion *conversion_of(const struct steps *steps)
{
    return rf_conversion_new(steps->scale, steps->offset, steps->mean, steps->std, steps->count,
                             steps->channels, steps->planar);
}

/* Element `i` of a sample as it lies, and where it comes out. */
static size_t place_of(const struct steps *steps, size_t i, size_t pixels)
{
    return steps->planar ? i % steps->channels * pixels + i / steps->channels : i;
}

/* Convert `rows` rows of `pixels` pixels, which lie `stride` bytes apart and are taken last first;
 * compare every bit. */
static void check_rows(const struct steps *steps, size_t pixels, size_t rows, size_t stride)
{
    const size_t size = pixels * steps->channels;
    uint8_t *source = malloc(rows * stride + 1);
    uint32_t *memory = malloc((rows * size + 2 * GUARD) * sizeof(uint32_t));
    int64_t *indices = malloc(rows * sizeof(int64_t));
    struct rf_conversion *conversion = conversion_of(steps);
    for (size_t i = 0; i < rows * stride; i++)
        source[i] = (uint8_t)(i * 7 + i / 256);
    memset(memory, 0x7b, (rows * size + 2 * GUARD) * sizeof(uint32_t));
    for (size_t row = 0; row < rows; row++)
        indices[row] = (int64_t)(rows - 1 - row);
    rf_convert(conversion, (float *)(void *)(memory + GUARD), source, (ptrdiff_t)stride, indices,
               rows, size);
    bool same = true;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < size; i++) {
            const float wanted =
                expected(steps, source[(size_t)indices[row] * stride + i], i % steps->channels);
            same &= memory[GUARD + row * size + place_of(steps, i, pixels)] == bits_of(wanted);
        }
    for (size_t i = 0; i < GUARD; i++)
        same &= memory[i] == GUARDED && memory[GUARD + rows * size + i] == GUARDED;
    free(conversion);
    free(indices);
    free(memory);
    free(source);
    CHECK(same);
}

/* All bytes, with every step taken or left out, for as many channels as pictures have, are those
 * of single steps. */
static void every_byte_and_step(void)
{
    for (size_t channels = 1; channels <= 5; channels++)
        for (unsigned left_out = 0; left_out < 16; left_out++)
            for (int planar = 0; planar < 2; planar++) {
                const struct steps steps = steps_of(channels, planar, left_out);
                check_rows(&steps, 256 + channels, 1, (256 + channels) * channels);
            }
}

/* A sample of any length, none included, has its last elements converted and
 * nothing behind them. */
static void any_length(void)
{
    const size_t channels[] = {1, 2, 3, 4, 5, 7, 48, MOST_CHANNELS};
    for (size_t c = 0; c < sizeof(channels) / sizeof(*channels); c++)
        for (size_t pixels = 0; pixels <= 70; pixels++)
            for (int planar = 0; planar < 2; planar++) {
                const struct steps steps = steps_of(channels[c], planar, 0);
                check_rows(&steps, pixels, 2, pixels * channels[c]);
            }
}

/* Planes that are made in several turns meet without a seam. */
static void long_planes(void)
{
    const size_t pixels[] = {2047, 2048, 2049, 6143};
    for (size_t channels = 1; channels <= 5; channels++)
        for (size_t p = 0; p < sizeof(pixels) / sizeof(*pixels); p++) {
            const struct steps steps = steps_of(channels, true, 0);
            check_rows(&steps, pixels[p], 1, pixels[p] * channels);
        }
}

/* Rows are taken by their indices from a source with gaps, at addresses of no alignment. */
static void rows_with_gaps(void)
{
    for (size_t channels = 1; channels <= 4; channels++)
        for (int planar = 0; planar < 2; planar++) {
            const struct steps steps = steps_of(channels, planar, 0);
            check_rows(&steps, 37, 9, 37 * channels + 5);
        }
}

/* One number for all channels is used for each of them, whichever way they come out. */
static void one_number_for_all(void)
{
    for (size_t channels = 1; channels <= 5; channels++)
        for (int planar = 0; planar < 2; planar++) {
            struct steps steps = steps_of(channels, planar, 0);
            steps.count = 1;
            check_rows(&steps, 259, 1, 259 * channels);
        }
}

/* A step that is left out keeps the sign of a zero, as it is after a negative scale. */
static void signs_of_zeros(void)
{
    for (size_t channels = 1; channels <= 3; channels++) {
        struct steps steps = steps_of(channels, false, 15);
        steps.scale = -1.0f;
        check_rows(&steps, 300, 1, 300 * channels);
        struct rf_conversion *conversion = conversion_of(&steps);
        const uint8_t zeros[3] = {0};
        float found[3];
        rf_convert(conversion, found, zeros, 0, NULL, 1, channels);
        free(conversion);
        CHECK_EQ(bits_of(found[0]), 0x80000000u);
    }
}

/* Without indices the rows come one after another. */
static void rows_in_order(void)
{
    const struct steps steps = steps_of(1, false, 15);
    struct rf_conversion *conversion = conversion_of(&steps);
    const uint8_t source[6] = {1, 2, 9, 3, 4, 9};
    float found[4];
    rf_convert(conversion, found, source, 3, NULL, 2, 2);
    free(conversion);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(found[i], i + 1);
}

int main(void)
{
    check_begin();
    RUN(every_byte_and_step);
    RUN(any_length);
    RUN(long_planes);
    RUN(rows_with_gaps);
    RUN(one_number_for_all);
    RUN(signs_of_zeros);
    RUN(rows_in_order);
    return check_end("test_convert");
}
