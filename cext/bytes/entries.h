/* The table of a cache's file, and the records whose places it says: see src/ringfeed/cache/file.py.
 *
 * A record is written before its entry, and never again. An entry may be written by several
 * processes at once, field by field, and one of them may die: so its mark says of which run it is
 * and which place and size belong to it.
 *
 *     R  a reader acquires the mark; pairs with the fence at W, ahead of the write of the mark
 *
 * An entry that has the mark of this run is whole: its record has only been in memory that all
 * processes share. Any other may be half written, of another run and damaged on disk, or of another
 * dataset, whose run made the file at the same moment: it is read after its checksum is right. */
#ifndef RF_ENTRIES_H
#define RF_ENTRIES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rf_entry {
    uint64_t mark; /* of the run that has written it, the offset and the size; 0: there is none */
    uint64_t sum;  /* of the record, the number of the entry, and whose samples the file has */
    uint64_t offset, size; /* bytes, of the file */
};

_Static_assert(sizeof(struct rf_entry) == 32, "the table has 32 bytes an entry on every machine");

/* A file as one mapping shows it. Only `seen` is written, by this process. */
struct rf_records {
    const uint8_t *bytes;
    uint64_t size;
    const struct rf_entry *entries;
    uint64_t count;    /* entries */
    uint64_t begins;   /* where the first record may lie */
    uint64_t run;      /* whose records need no check */
    uint64_t identity; /* of the samples: another dataset's records have other checksums */
    uint64_t *seen;    /* by entry: mark, place and size in one word, once the checksum was right */
};

enum rf_found {
    RF_HERE,
    RF_ABSENT,
    RF_BEYOND, /* of this mapping: the file is longer by now, or the entry is damaged */
    RF_BROKEN,
};

/* Return the checksum of a record of whole words; `seed`: index ^ identity. */
uint64_t rf_sum_of(const uint8_t *bytes, size_t size, uint64_t seed);
/* W: have what was written before seen ahead of what is written next. */
static inline void rf_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

/* Never 0. */
uint64_t rf_mark_of(uint64_t run, uint64_t offset, uint64_t size);
/* Look up a record; `offset` is set where it is here. */
enum rf_found rf_find(const struct rf_records *records, uint64_t index, uint64_t *offset);
/* Look up the places of some rows; false unless all are here, and their records begin with `head`. */
bool rf_find_rows(const struct rf_records *records, const int64_t *indices, uint32_t rows,
                  const uint8_t *head, size_t head_size, int64_t *places);

#endif
