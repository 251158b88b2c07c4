#include "bytes/entries.h"

#include <string.h>

#define LANES 8
#define WORD sizeof(uint64_t)
/* Odd, so that no two words are multiplied to one. */
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)

/* The turn brings the upper bits down, where the next multiplication spreads them. */
static inline uint64_t mix(uint64_t lane, uint64_t word)
{
    lane ^= word;
    return (lane << 29 | lane >> 35) * FACTOR;
}

static inline uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, WORD);
    return word;
}

uint64_t rf_sum_of(const uint8_t *bytes, size_t size, uint64_t seed)
{
    uint64_t lanes[LANES], all = size;
    for (uint64_t lane = 0; lane < LANES; lane++)
        lanes[lane] = mix(lane + 1, seed);
    const size_t words = size / WORD;
    size_t word = 0;
    /* Lanes do not wait for each other: the sum comes at the speed of memory. */
    for (; word + LANES <= words; word += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] = mix(lanes[lane], word_at(bytes + (word + lane) * WORD));
    for (size_t lane = 0; word < words; word++, lane++)
        lanes[lane] = mix(lanes[lane], word_at(bytes + word * WORD));
    for (size_t lane = 0; lane < LANES; lane++)
        all = mix(all ^ all >> 32, lanes[lane]);
    return all ^ all >> 32;
}

uint64_t rf_mark_of(uint64_t run, uint64_t offset, uint64_t size)
{
    return mix(mix(run, offset), size) | 1;
}

/* Find a record, and copy its entry: another process may write that meanwhile. */
static enum rf_found find(const struct rf_records *records, uint64_t index, struct rf_entry *now)
{
    const struct rf_entry *entry = &records->entries[index];
    /* R */
    now->mark = atomic_load_explicit((const _Atomic uint64_t *)&entry->mark, memory_order_acquire);
    if (!now->mark)
        return RF_ABSENT;
    now->sum = *(const volatile uint64_t *)&entry->sum;
    now->offset = *(const volatile uint64_t *)&entry->offset;
    now->size = *(const volatile uint64_t *)&entry->size;
    if (now->offset < records->begins || now->size < WORD)
        return RF_BROKEN;
    if (now->offset > records->size || now->size > records->size - now->offset)
        return RF_BEYOND;
    if (now->mark == rf_mark_of(records->run, now->offset, now->size))
        return RF_HERE;
    /* Each of the threads of this process finds the same; an entry that was written anew is not. */
    _Atomic uint64_t *seen = (_Atomic uint64_t *)&records->seen[index];
    const uint64_t entry_now = rf_mark_of(now->mark, now->offset, now->size);
    if (atomic_load_explicit(seen, memory_order_relaxed) != entry_now) {
        const uint64_t seed = index ^ records->identity;
        if (rf_sum_of(records->bytes + now->offset, now->size, seed) != now->sum)
            return RF_BROKEN;
        atomic_store_explicit(seen, entry_now, memory_order_relaxed);
    }
    return RF_HERE;
}

enum rf_found rf_find(const struct rf_records *records, uint64_t index, uint64_t *offset)
{
    struct rf_entry now;
    enum rf_found found = find(records, index, &now);
    *offset = now.offset;
    return found;
}

bool rf_find_rows(const struct rf_records *records, const int64_t *indices, uint32_t rows,
                  const uint8_t *head, size_t head_size, int64_t *places)
{
    for (uint32_t row = 0; row < rows; row++) {
        struct rf_entry now;
        if (indices[row] < 0 || (uint64_t)indices[row] >= records->count ||
            find(records, (uint64_t)indices[row], &now) != RF_HERE)
            return false;
        if (now.size < head_size || memcmp(records->bytes + now.offset, head, head_size))
            return false;
        places[row] = (int64_t)now.offset;
    }
    return true;
}
