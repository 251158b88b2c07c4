#include "bytes/copy.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define LINE 64 /* bytes: a cache line, whose stores leave together when all of it is written */

/* Copy whole lines to a target that starts one; returns the bytes copied. */
__attribute__((target("avx2"))) static size_t stream_lines(uint8_t *target, const uint8_t *source,
                                                           size_t size)
{
    size_t done = 0;
    for (; done + 2 * LINE <= size; done += 2 * LINE) {
        const __m256i *from = (const __m256i *)(const void *)(source + done);
        __m256i *to = (__m256i *)(void *)(target + done);
        const __m256i first = _mm256_loadu_si256(from), second = _mm256_loadu_si256(from + 1);
        const __m256i third = _mm256_loadu_si256(from + 2), fourth = _mm256_loadu_si256(from + 3);
        _mm256_stream_si256(to, first);
        _mm256_stream_si256(to + 1, second);
        _mm256_stream_si256(to + 2, third);
        _mm256_stream_si256(to + 3, fourth);
    }
    return done;
}

void rf_stream(void *target, const void *source, size_t size)
{
    uint8_t *to = target;
    const uint8_t *from = source;
    const size_t head = -(uintptr_t)to % LINE;
    size_t done = 0;
    if (head < size && __builtin_cpu_supports("avx2")) {
        memcpy(to, from, head);
        done = head + stream_lines(to + head, from + head, size - head);
    }
    memcpy(to + done, from + done, size - done);
}

void rf_stream_end(void) { _mm_sfence(); }

#else

void rf_stream(void *target, const void *source, size_t size) { memcpy(target, source, size); }

void rf_stream_end(void) {}

#endif
