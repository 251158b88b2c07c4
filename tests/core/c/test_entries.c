/* The table of a cache: what is found in it, whatever stands there. */
#include "check.h"
#include "bytes/entries.h"

#include <stdlib.h>

#define COUNT 4
#define SIZE 1000 /* bytes of a record: no whole number of lines */
#define THIS_RUN 7
#define IDENTITY 0xABCDEF /* of the samples */

/* A file of a table and a record for each entry. */
struct file {
    struct rf_entry entries[COUNT];
    uint8_t bytes[COUNT][SIZE];
};

static struct rf_records records_of(struct file *file, uint64_t *seen, uint64_t run)
{
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t byte = 0; byte < SIZE; byte++)
            file->bytes[i][byte] = (uint8_t)(i * 31 + byte * 7 + byte / 256);
        const uint64_t offset = sizeof file->entries + i * SIZE;
        file->entries[i] = (struct rf_entry){
            .mark = rf_mark_of(THIS_RUN, offset, SIZE),
            .sum = rf_sum_of(file->bytes[i], SIZE, i ^ IDENTITY),
            .offset = offset,
            .size = SIZE,
        };
    }
    memset(seen, 0, COUNT * sizeof *seen);
    return (struct rf_records){
        .bytes = (const uint8_t *)file,
        .size = sizeof *file,
        .entries = file->entries,
        .count = COUNT,
        .begins = sizeof file->entries,
        .run = run,
        .identity = IDENTITY,
        .seen = seen,
    };
}

static struct file file;
static uint64_t seen[COUNT];

/* Of this run and of another one; the offset is that of the record. */
static void what_was_written(void)
{
    for (uint64_t run = THIS_RUN; run < THIS_RUN + 2; run++) {
        const struct rf_records records = records_of(&file, seen, run);
        for (uint64_t i = 0; i < COUNT; i++) {
            uint64_t offset = 0;
            CHECK(rf_find(&records, i, &offset) == RF_HERE);
            CHECK(offset == file.entries[i].offset);
            CHECK((seen[i] != 0) == (run != THIS_RUN));
        }
    }
}

/* Any one bit of a record, of any word and lane. */
static void any_flipped_bit(void)
{
    const struct rf_records records = records_of(&file, seen, THIS_RUN + 1);
    uint64_t offset;
    bool found = false;
    for (size_t byte = 0; byte < SIZE; byte++)
        for (int bit = 0; bit < 8; bit++) {
            file.bytes[1][byte] ^= (uint8_t)(1 << bit);
            found |= rf_find(&records, 1, &offset) == RF_HERE;
            file.bytes[1][byte] ^= (uint8_t)(1 << bit);
        }
    CHECK(!found);
    CHECK(rf_find(&records, 1, &offset) == RF_HERE);
    /* After a right checksum a process looks no more. */
    file.bytes[1][0] ^= 1;
    CHECK(rf_find(&records, 1, &offset) == RF_HERE);
    /* But at an entry that was written anew it does. */
    file.entries[1].mark = rf_mark_of(THIS_RUN + 2, offset, SIZE);
    CHECK(rf_find(&records, 1, &offset) == RF_BROKEN);
}

/* Whole records, in a file that another dataset's run made at the same moment. */
static void of_another_dataset(void)
{
    struct rf_records records = records_of(&file, seen, THIS_RUN + 1);
    uint64_t offset;
    records.identity ^= 1;
    for (uint64_t i = 0; i < COUNT; i++)
        CHECK(rf_find(&records, i, &offset) == RF_BROKEN);
}

/* Two equal flips in the top bits of one lane, which a plain product would not see. */
static void two_flipped_bits(void)
{
    const struct rf_records records = records_of(&file, seen, THIS_RUN + 1);
    uint64_t offset;
    for (size_t word = 0; word + 64 < SIZE; word += 64) {
        file.bytes[2][word + 7] ^= 0x80;
        file.bytes[2][word + 64 + 7] ^= 0x80;
        CHECK(rf_find(&records, 2, &offset) == RF_BROKEN);
        file.bytes[2][word + 7] ^= 0x80;
        file.bytes[2][word + 64 + 7] ^= 0x80;
    }
}

/* Half of an entry of this run, and half of another: its mark does not fit, so its sum is looked at. */
static void half_an_entry(void)
{
    const struct rf_records records = records_of(&file, seen, THIS_RUN);
    uint64_t offset;
    file.entries[3].offset = file.entries[2].offset;
    CHECK(rf_find(&records, 3, &offset) == RF_BROKEN);
    file.entries[3].size = SIZE - 8;
    CHECK(rf_find(&records, 3, &offset) == RF_BROKEN);
    file.entries[3].mark = 0;
    CHECK(rf_find(&records, 3, &offset) == RF_ABSENT);
}

/* No offset and no size leads out of the mapping. */
static void places_that_are_none(void)
{
    const uint64_t ends[] = {0, 1, 8, SIZE, sizeof file, UINT64_MAX - 8, UINT64_MAX};
    const struct rf_records records = records_of(&file, seen, THIS_RUN);
    uint64_t offset;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
            file.entries[0].offset = ends[i];
            file.entries[0].size = ends[k];
            file.entries[0].mark = rf_mark_of(THIS_RUN + 1, ends[i], ends[k]);
            CHECK(rf_find(&records, 0, &offset) >= RF_BEYOND);
        }
}

/* Rows are found together, if each is there and begins alike. */
static void rows(void)
{
    const struct rf_records records = records_of(&file, seen, THIS_RUN);
    const int64_t all[] = {2, 0, 2}, beyond[] = {2, COUNT}, negative[] = {-1};
    int64_t places[3];
    memset(file.bytes[0], 1, 8);
    memset(file.bytes[2], 1, 8);
    CHECK(rf_find_rows(&records, all, 3, file.bytes[0], 8, places));
    CHECK(places[0] == (int64_t)file.entries[2].offset && places[0] == places[2]);
    CHECK(places[1] == (int64_t)file.entries[0].offset);
    CHECK(!rf_find_rows(&records, all, 3, file.bytes[0], 9, places));
    CHECK(!rf_find_rows(&records, all, 3, file.bytes[0], SIZE + 1, places));
    CHECK(!rf_find_rows(&records, beyond, 2, file.bytes[0], 8, places));
    CHECK(!rf_find_rows(&records, negative, 1, file.bytes[0], 8, places));
    file.entries[0].mark = 0;
    CHECK(!rf_find_rows(&records, all, 3, file.bytes[0], 8, places));
}

int main(void)
{
    check_begin();
    RUN(what_was_written);
    RUN(any_flipped_bit);
    RUN(of_another_dataset);
    RUN(two_flipped_bits);
    RUN(half_an_entry);
    RUN(places_that_are_none);
    RUN(rows);
    return check_end("test_entries");
}
