/* Fields whose rows differ in shape, of which several workers write some and the consumer makes one
 * array.
 *
 *     ... record 2 | record 1 | record 0 | header | row, row, row ...
 *                                                 ^ field
 *
 * A record says where its row lies and how long it is along each axis up to the last that varies.
 * Workers write records and rows; the consumer closes the gaps (ragged) or fills up what is short
 * (padded) when the batch is taken, and trusts no record: whatever one says, no read and no write
 * goes beyond the field.
 *
 *     ragged, a place for each row    the rows of a ticket lie one after another from the place of its first row on
 *     ragged, a total                 each row lies where the header's cursor was when its length was known
 *     padded                          each row lies in its own place, strided as the longest row would be
 */
#ifndef RF_FORMS_H
#define RF_FORMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"

#define RF_FORM_AXES 32
#define RF_FORM_HEADER 64 /* bytes; begins with the cursor: 24 bits of the batch, 40 of elements */
#define RF_FORM_TOTAL ((INT64_C(1) << 40) - 1)

#define RF_NO_ROOM INT64_C(-1)  /* in the place of a row's start: it did not fit into the total */
#define RF_NO_PLACE INT64_C(-2) /* it has none yet */

struct rf_form {
    int axes; /* of a sample, up to the last that varies; what lies behind them is one unit */
    bool padded;
    size_t unit;                /* bytes */
    size_t itemsize;            /* bytes of an element, of which a unit has several perhaps */
    int64_t most[RF_FORM_AXES]; /* what a row has room for, by axis */
    int64_t total;              /* units that a batch may have; 0: each row has its place */
    const uint8_t *padding;     /* an element */
};

/* Bytes of a record. */
static inline size_t rf_record_size(const struct rf_form *form)
{
    return (2 + (size_t)form->axes) * sizeof(int64_t);
}

/* The rows that a worker fills some of: the number of their batch, and how many they
 * are at most. */
struct rf_filled {
    uint64_t batch;
    uint32_t rows;
};

static inline struct rf_filled rf_filled_by(const struct rf_claim *claim)
{
    return (struct rf_filled){claim->batch, claim->control->geometry.rows};
}

/* Return where a row that is `length` units long is to be written, in units from the field's start:
 * where it lay before if it is written again, else where the cursor is. RF_NO_ROOM where the rows
 * of this batch are too long together. */
int64_t rf_place_row(uint8_t *field, const struct rf_form *form, const struct rf_filled *filled,
                     uint32_t row, int64_t length);
/* Have all rows of a batch placed anew, by the one worker that fills it: what its records and the
 * cursor say is void. */
void rf_place_anew(uint8_t *field, const struct rf_form *form, const struct rf_filled *filled);
/* Note where a row lies, and its length along each axis; for fields without a total. */
void rf_note_row(uint8_t *field, const struct rf_form *form, uint32_t row, int64_t start,
                 const int64_t *lengths);
/* Return where a row lies, in units, and its lengths: both within the field. */
int64_t rf_look_up_row(uint8_t *field, const struct rf_form *form, uint32_t row, int64_t *lengths);
/* Return the length of a row of this batch that did not fit into the total; -1 where it is none. */
int64_t rf_refused(uint8_t *field, const struct rf_form *form, uint64_t batch, uint32_t row);
/* Return how many units a batch would need, if it needs more than the total; else -1. */
int64_t rf_needed(uint8_t *field, const struct rf_form *form, uint64_t batch, uint32_t rows);

/* Have these rows lie one after another from the field's start on, in this order; splits[i] says
 * where row i begins, in units, and splits[count] where the last one ends. `rows`: ascending
 * numbers, or NULL for the first `count`. False without memory for rows that lie
 * in another order. */
bool rf_close_up(uint8_t *field, const struct rf_form *form, const int64_t *rows, uint32_t count,
                 int64_t *splits);
/* Read the lengths of these rows along all axes, `count` times `axes` of them. */
void rf_read_lengths(uint8_t *field, const struct rf_form *form, const int64_t *rows,
                     uint32_t count, int64_t *lengths);
/* Have these rows lie one after another, as an array whose axes are `shape`, none longer than
 * `most`, and fill up what is short. */
void rf_pad(uint8_t *field, const struct rf_form *form, const int64_t *rows, uint32_t count,
            const int64_t *lengths, const int64_t *shape);

#endif
