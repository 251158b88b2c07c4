#include "bytes/permute.h"

#define MULTIPLIER_LOW UINT32_C(0xb1ce6e93) /* the halves of Philox2x64's 0xd2b74407b1ce6e93 */
#define MULTIPLIER_HIGH UINT32_C(0xd2b74407)
#define BLOCK 64 /* numbers that go round together, so that no round waits for its own product */

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif
/* Each loop is written once and compiled twice, as in convert.c. */
#if defined(__x86_64__) && defined(__GNUC__)
#define TWICE 1
#else
#define TWICE 0
#endif

/* Of the numbers: the left one has bits / 2 bits, the right one the rest: 31 at most. */
struct halves {
    uint32_t low_bits, high_bits, low_mask, high_mask;
};

static struct halves halves_of(uint64_t length)
{
    uint32_t bits = 0;
    for (uint64_t most = length - 1; most; most >>= 1)
        bits += 1;
    uint32_t low = bits / 2, high = bits - bits / 2;
    return (struct halves){low, high, (UINT32_C(1) << low) - 1, (UINT32_C(1) << high) - 1};
}

/* One pass of VariablePhilox over a block. `odd` is a constant where this is compiled: the right
 * half has a bit more than the left one, which moves down to its low end. */
INLINE void pass(uint64_t *numbers, const struct halves *halves, const uint32_t keys[RF_ROUNDS],
                 int odd)
{
    const struct halves h = *halves;
    uint32_t left[BLOCK], right[BLOCK];
    for (size_t i = 0; i < BLOCK; i++) {
        left[i] = (uint32_t)(numbers[i] >> h.high_bits);
        right[i] = (uint32_t)numbers[i] & h.high_mask;
    }
    for (size_t round = 0; round < RF_ROUNDS; round++) {
        const uint32_t key = keys[round];
        for (size_t i = 0; i < BLOCK; i++) {
            const uint32_t low = left[i] * MULTIPLIER_LOW;
            const uint32_t high =
                (uint32_t)((uint64_t)left[i] * MULTIPLIER_LOW >> 32) + left[i] * MULTIPLIER_HIGH;
            left[i] = (high ^ key ^ right[i]) & h.low_mask;
            right[i] = (odd ? right[i] >> h.low_bits | low << 1 : low) & h.high_mask;
        }
    }
    for (size_t i = 0; i < BLOCK; i++)
        numbers[i] = (uint64_t)left[i] << h.high_bits | right[i];
}

INLINE void permute(uint64_t *numbers, size_t count, uint64_t length,
                    const uint32_t keys[RF_ROUNDS])
{
    const struct halves halves = halves_of(length);
    const int odd = halves.low_bits != halves.high_bits;
    uint64_t block[BLOCK];
    size_t place[BLOCK], next = 0, filled = 0;
    while (next < count || filled) {
        for (; filled < BLOCK && next < count; filled++, next++) { /* beside those that walk on */
            block[filled] = numbers[next];
            place[filled] = next;
        }
        for (size_t i = filled; i < BLOCK; i++)
            block[i] = 0;
        if (odd)
            pass(block, &halves, keys, 1);
        else
            pass(block, &halves, keys, 0);
        size_t walking = 0;
        for (size_t i = 0; i < filled; i++) {
            numbers[place[i]] = block[i];
            block[walking] = block[i];
            place[walking] = place[i];
            walking += block[i] >= length; /* no sample: through again, until it is one */
        }
        filled = walking;
    }
}

#if TWICE
__attribute__((target("avx2"))) static void
permute_avx2(uint64_t *numbers, size_t count, uint64_t length, const uint32_t keys[RF_ROUNDS])
{
    permute(numbers, count, length, keys);
}
#endif

void rf_permute(uint64_t *numbers, size_t count, uint64_t length, const uint32_t keys[RF_ROUNDS])
{
#if TWICE
    if (__builtin_cpu_supports("avx2")) {
        permute_avx2(numbers, count, length, keys);
        return;
    }
#endif
    permute(numbers, count, length, keys);
}
