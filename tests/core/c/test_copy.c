/* Copies past the caches and rows from anywhere: every byte arrives, and none beside it changes. */
#include "check.h"
#include "bytes/copy.h"
#include "bytes/gather.h"

#include <stdlib.h>

#define GUARD 64 /* bytes before and behind the target that nobody may write */
#define UNTOUCHED 0x7b
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* A place of `size` bytes that starts `offset` bytes behind a cache line, between guards; to be
 * freed by its memory. */
struct place {
    uint8_t *memory, *start;
    size_t size;
};

static struct place place_of(size_t size, size_t offset)
{
    const size_t all = (offset + size + 2 * GUARD + 63) / 64 * 64;
    struct place place = {.memory = aligned_alloc(64, all), .size = size};
    memset(place.memory, UNTOUCHED, all);
    place.start = place.memory + GUARD + offset;
    return place;
}

static bool is_guarded(const struct place *place)
{
    bool guarded = true;
    for (size_t i = 1; i <= GUARD; i++)
        guarded &= place->start[-(ptrdiff_t)i] == UNTOUCHED &&
                   place->start[place->size + i - 1] == UNTOUCHED;
    return guarded;
}

/* Bytes of no period that a line or a vector has, and none that the guards have. */
static void fill(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)((i * 7 + i / 251) % 97);
}

static bool is_copied(size_t size, size_t target_offset, size_t source_offset, int how)
{
    struct place source = place_of(size, source_offset), target = place_of(size, target_offset);
    fill(source.start, size);
    if (how == 0)
        rf_stream(target.start, source.start, size);
    else
        rf_copy(target.start, source.start, size, how == 1);
    rf_stream_end();
    const bool same = memcmp(target.start, source.start, size) == 0 && is_guarded(&target);
    free(source.memory);
    free(target.memory);
    return same;
}

/* Any size is copied from and to an address of any alignment: streamed, streamed where it pays, or
 * not at all. */
static void any_size_and_alignment(void)
{
    const size_t sizes[] = {0,   1,   15,  16,  31,  32,  63,   64,   65,   127,  128,  129,  191,
                            192, 193, 255, 256, 257, 300, 1023, 1024, 1025, 1087, 1151, 1152, 4097};
    const size_t source_offsets[] = {0, 1, 16, 63};
    bool same = true;
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t offset = 0; offset < 64; offset++)
            for (size_t o = 0; o < COUNT(source_offsets); o++)
                for (int how = 0; how < 3; how++)
                    same &= is_copied(sizes[s], offset, source_offsets[o], how);
    CHECK(same);
}

/* Gather `rows` rows, taken in no order and some twice, which lie `stride` bytes apart. */
static bool is_gathered(size_t row_size, size_t rows, ptrdiff_t stride, size_t offset, bool stream)
{
    const size_t extent = (size_t)(stride < 0 ? -stride : stride), all = rows * extent + row_size;
    struct place target = place_of(rows * row_size, offset);
    /* No byte more, so that a sanitizer sees what is read beyond it. */
    uint8_t *source = malloc(all ? all : 1);
    int64_t *indices = malloc(rows * sizeof(int64_t) + 1);
    fill(source, all);
    for (size_t row = 0; row < rows; row++)
        indices[row] = (int64_t)(row * row * 31 % rows);
    const uint8_t *first = stride < 0 ? source + rows * extent : source;
    rf_gather(target.start, first, stride, row_size, indices, rows, stream);
    bool same = is_guarded(&target);
    for (size_t row = 0; row < rows; row++)
        same &= memcmp(target.start + row * row_size, first + indices[row] * stride, row_size) == 0;
    free(indices);
    free(source);
    free(target.memory);
    return same;
}

/* Rows of any size, with gaps between them or backwards, come in the order asked for, however
 * many there are. */
static void any_rows(void)
{
    const size_t sizes[] = {1,   2,   3,   4,    7,    8,    16,   63,   64,   65,
                            100, 128, 500, 1023, 1024, 1100, 4095, 4096, 4160, 8200};
    const size_t counts[] = {0, 1, 2, 7, 63, 64, 65, 130};
    bool same = true;
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t c = 0; c < COUNT(counts); c++)
            for (int stream = 0; stream < 2; stream++) {
                const ptrdiff_t stride = (ptrdiff_t)sizes[s] + (ptrdiff_t)(c % 3);
                same &= is_gathered(sizes[s], counts[c], stride, 0, stream);
                same &= is_gathered(sizes[s], counts[c], -stride, 13, stream);
            }
    CHECK(same);
}

/* What a claim's control block says: the answer for `slots` slots, so many of them open. */
static bool streams(uint32_t slots, uint32_t open, uint64_t slot_size, uint64_t beyond)
{
    static struct rf_control control;
    const struct rf_claim claim = {.control = &control};
    control.geometry = (struct rf_geometry){.slots = slots, .slot_size = slot_size};
    atomic_store_explicit(&control.open_slots, open, memory_order_relaxed);
    return rf_streams(&claim, beyond);
}

/* Only the slots that are open count, the whole of each, however large they are. */
static void from_how_many_slots(void)
{
    const uint64_t sizes[] = {4096, UINT64_C(3) << 32};
    for (size_t s = 0; s < COUNT(sizes); s++) {
        CHECK(streams(4, 4, sizes[s], 4 * sizes[s]));
        CHECK(!streams(4, 4, sizes[s], 4 * sizes[s] + 1));
        CHECK(streams(4, 2, sizes[s], 2 * sizes[s]));
        CHECK(!streams(4, 2, sizes[s], 2 * sizes[s] + 1));
        CHECK(streams(4, 2, sizes[s], 0));
        CHECK(!streams(4, 2, sizes[s], UINT64_MAX));
    }
}

int main(void)
{
    check_begin();
    RUN(any_size_and_alignment);
    RUN(any_rows);
    RUN(from_how_many_slots);
    return check_end("test_copy");
}
