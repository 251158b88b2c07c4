#define _DEFAULT_SOURCE /* madvise */
#include "seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* In large pages where there are any: states lie all over it, and each look would need another small one. */
static uint64_t *empty_places(uint64_t capacity)
{
    size_t size = capacity * sizeof(uint64_t);
    void *places = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (places == MAP_FAILED) {
        fprintf(stderr, "model: no memory for %llu states; choose a smaller configuration\n",
                (unsigned long long)capacity);
        exit(2);
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(places, size, MADV_HUGEPAGE);
#endif
    return places;
}

void seen_begin(struct seen *seen)
{
    seen->capacity = 1u << 16;
    seen->count = 0;
    seen->places = empty_places(seen->capacity);
}

void seen_end(struct seen *seen) { munmap(seen->places, seen->capacity * sizeof *seen->places); }

static uint64_t mix(uint64_t hash)
{
    hash ^= hash >> 32;
    hash *= UINT64_C(0xd6e8feb86659fd93);
    return hash ^ hash >> 29;
}

/* Two lanes, so that one multiplication need not wait for the other. */
uint64_t fingerprint(const struct state *s)
{
    uint64_t words[sizeof *s / 8], even = UINT64_C(0x9e3779b97f4a7c15), odd = 1;
    _Static_assert(sizeof *s % 16 == 0, "a state is hashed two words at a time");
    memcpy(words, s, sizeof words);
    for (unsigned word = 0; word < sizeof words / sizeof *words; word += 2) {
        even = (even ^ words[word]) * UINT64_C(0xff51afd7ed558ccd);
        odd = (odd ^ words[word + 1]) * UINT64_C(0xc4ceb9fe1a85ec53);
        even ^= even >> 31;
        odd ^= odd >> 33;
    }
    return mix(even ^ mix(odd + UINT64_C(0x2545f4914f6cdd1d))) | 2; /* never 0, which is an empty place */
}

static uint64_t *find(const struct seen *seen, uint64_t print)
{
    uint64_t at = mix(print >> 1) & (seen->capacity - 1);
    while (seen->places[at] && seen->places[at] >> 1 != print >> 1)
        at = (at + 1) & (seen->capacity - 1);
    return &seen->places[at];
}

static void grow(struct seen *seen)
{
    struct seen larger = {.capacity = seen->capacity * 2, .count = seen->count};
    larger.places = empty_places(larger.capacity);
    for (uint64_t at = 0; at < seen->capacity; at++)
        if (seen->places[at])
            *find(&larger, seen->places[at]) = seen->places[at];
    seen_end(seen);
    *seen = larger;
}

uint64_t *seen_place(struct seen *seen, uint64_t print, bool *fresh)
{
    if (seen->count * 4 > seen->capacity * 3)
        grow(seen);
    uint64_t *place = find(seen, print);
    *fresh = *place == 0;
    if (*fresh) {
        *place = print & ~UINT64_C(1);
        seen->count++;
    }
    return place;
}
