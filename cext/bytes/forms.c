#include "bytes/forms.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CURSOR_BITS 40

struct record {
    _Atomic uint64_t batch;
    _Atomic int64_t start;
    _Atomic int64_t lengths[];
};

static struct record *record_of(uint8_t *field, const struct rf_form *form, uint64_t row)
{
    return (struct record *)(field - RF_FORM_HEADER - (row + 1) * rf_record_size(form));
}

static int64_t clamp(int64_t value, int64_t most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

/* Units that the field of so many rows has: with a total, one row more than is promised, for what a
 * worker has lost that was killed when it had moved the cursor and not yet noted
 * the row's start. */
static int64_t capacity_of(const struct rf_form *form, uint64_t rows)
{
    return form->total ? form->total + form->most[0] : (int64_t)rows * form->most[0];
}

/* ---- the worker ---- */

void rf_note_row(uint8_t *field, const struct rf_form *form, uint32_t row, int64_t start,
                 const int64_t *lengths)
{
    struct record *record = record_of(field, form, row);
    atomic_store_explicit(&record->start, start, memory_order_relaxed);
    for (int axis = 0; axis < form->axes; axis++)
        atomic_store_explicit(&record->lengths[axis], lengths[axis], memory_order_relaxed);
}

/* What the rows of a batch need together that have told their length. Sequentially consistent, as
 * are the stores of lengths: of two rows that are placed at once, one at least sees both. */
static int64_t sum_of(uint8_t *field, const struct rf_form *form, uint64_t batch, uint64_t rows)
{
    int64_t sum = 0;
    for (uint64_t row = 0; row < rows; row++) {
        struct record *record = record_of(field, form, row);
        if (atomic_load(&record->batch) == batch)
            sum += clamp(atomic_load(&record->lengths[0]), form->most[0]);
    }
    return sum;
}

/* Move the cursor past a row; returns where it was. What it says of another batch counts as 0. */
static int64_t move_cursor(uint8_t *field, const struct rf_form *form,
                           const struct rf_filled *filled, int64_t length)
{
    _Atomic uint64_t *cursor = (_Atomic uint64_t *)(field - RF_FORM_HEADER);
    const uint64_t mine = filled->batch << CURSOR_BITS, mask = (UINT64_C(1) << CURSOR_BITS) - 1;
    uint64_t found = atomic_load(cursor), next;
    int64_t start;
    do {
        start = (found & ~mask) == mine ? (int64_t)(found & mask) : 0;
        if (start + length > form->total) {
            if (start + length > capacity_of(form, filled->rows) ||
                sum_of(field, form, filled->batch, filled->rows) > form->total)
                return RF_NO_ROOM;
        }
        next = mine | (uint64_t)(start + length);
    } while (!atomic_compare_exchange_weak(cursor, &found, next));
    return start;
}

int64_t rf_place_row(uint8_t *field, const struct rf_form *form, const struct rf_filled *filled,
                     uint32_t row, int64_t length)
{
    struct record *record = record_of(field, form, row);
    const bool again = atomic_load(&record->batch) == filled->batch;
    const int64_t before = atomic_load(&record->start), room = atomic_load(&record->lengths[0]);
    if (again && before >= 0 && length <= room && room <= form->most[0] &&
        before + room <= capacity_of(form, filled->rows)) {
        atomic_store(&record->lengths[0], length);
        return before;
    }
    atomic_store(&record->start, RF_NO_PLACE);
    atomic_store(&record->lengths[0], length);
    atomic_store(&record->batch, filled->batch);
    const int64_t start = move_cursor(field, form, filled, length);
    atomic_store(&record->start, start);
    return start;
}

void rf_place_anew(uint8_t *field, const struct rf_form *form, const struct rf_filled *filled)
{
    _Atomic uint64_t *cursor = (_Atomic uint64_t *)(field - RF_FORM_HEADER);
    for (uint64_t row = 0; form->total && row < filled->rows; row++)
        atomic_store(&record_of(field, form, row)->batch, ~filled->batch);
    atomic_store(cursor, filled->batch << CURSOR_BITS);
}

/* ---- the consumer ---- */

int64_t rf_look_up_row(uint8_t *field, const struct rf_form *form, uint32_t row, int64_t *lengths)
{
    struct record *record = record_of(field, form, row);
    for (int axis = 0; axis < form->axes; axis++)
        lengths[axis] = clamp(atomic_load_explicit(&record->lengths[axis], memory_order_relaxed),
                              form->most[axis]);
    if (form->padded)
        return (int64_t)row * form->most[0];
    const int64_t start = atomic_load_explicit(&record->start, memory_order_relaxed);
    return clamp(start, capacity_of(form, (uint64_t)row + 1) - lengths[0]);
}

int64_t rf_refused(uint8_t *field, const struct rf_form *form, uint64_t batch, uint32_t row)
{
    struct record *record = record_of(field, form, row);
    if (!form->total || atomic_load(&record->batch) != batch ||
        atomic_load(&record->start) != RF_NO_ROOM)
        return -1;
    return clamp(atomic_load(&record->lengths[0]), form->most[0]);
}

int64_t rf_needed(uint8_t *field, const struct rf_form *form, uint64_t batch, uint32_t rows)
{
    for (uint32_t row = 0; form->total && row < rows; row++)
        if (rf_refused(field, form, batch, row) >= 0)
            return sum_of(field, form, batch, rows);
    return -1;
}

/* Where rows lie in a field: their starts, and their ends as sums of lengths. */
struct places {
    int64_t *starts;
    const int64_t *splits;
    uint32_t count;
};

/* Whether rows can be moved one after another: none lies before its new place, or before the end of
 * the one before. */
static bool in_order(const struct places *places)
{
    int64_t end = 0;
    for (uint32_t row = 0; row < places->count; row++) {
        if (places->starts[row] < end)
            return false;
        end = places->starts[row] + places->splits[row + 1] - places->splits[row];
    }
    return true;
}

static void move_rows(uint8_t *field, const struct places *places, size_t unit)
{
    for (uint32_t row = 0; row < places->count; row++)
        if (places->starts[row] != places->splits[row])
            memmove(field + (size_t)places->splits[row] * unit,
                    field + (size_t)places->starts[row] * unit,
                    (size_t)(places->splits[row + 1] - places->splits[row]) * unit);
}

static bool sort_rows(uint8_t *field, const struct places *places, size_t unit)
{
    const size_t size = (size_t)places->splits[places->count] * unit;
    uint8_t *sorted = malloc(size + 1);
    if (sorted == NULL)
        return false;
    for (uint32_t row = 0; row < places->count; row++)
        memcpy(sorted + (size_t)places->splits[row] * unit,
               field + (size_t)places->starts[row] * unit,
               (size_t)(places->splits[row + 1] - places->splits[row]) * unit);
    memcpy(field, sorted, size);
    free(sorted);
    return true;
}

bool rf_close_up(uint8_t *field, const struct rf_form *form, const int64_t *rows, uint32_t count,
                 int64_t *splits)
{
    const uint64_t all = count == 0 ? 0 : rows == NULL ? count : (uint64_t)rows[count - 1] + 1;
    const int64_t most = form->total ? form->total : capacity_of(form, all);
    struct places places = {malloc((count + 1) * sizeof(int64_t)), splits, count};
    if (places.starts == NULL)
        return false;
    splits[0] = 0;
    for (uint32_t place = 0; place < count; place++) {
        int64_t length;
        places.starts[place] =
            rf_look_up_row(field, form, rows == NULL ? place : (uint32_t)rows[place], &length);
        /* More only where records were overwritten. */
        splits[place + 1] = clamp(splits[place] + length, most);
    }
    bool done = true;
    if (in_order(&places))
        move_rows(field, &places, form->unit);
    else
        done = sort_rows(field, &places, form->unit);
    free(places.starts);
    return done;
}

void rf_read_lengths(uint8_t *field, const struct rf_form *form, const int64_t *rows,
                     uint32_t count, int64_t *lengths)
{
    for (uint32_t place = 0; place < count; place++)
        rf_look_up_row(field, form, rows == NULL ? place : (uint32_t)rows[place],
                       lengths + place * form->axes);
}

/* ---- padding ---- */

static void fill(uint8_t *target, size_t size, const struct rf_form *form)
{
    size_t done = form->itemsize < size ? form->itemsize : size;
    memcpy(target, form->padding, done);
    for (; done < size; done *= 2)
        memcpy(target + done, target, done < size - done ? done : size - done);
}

/* One row of a batch that is padded: bytes from one index to the next along each axis, where it
 * lies and where it goes. */
struct strides {
    const struct rf_form *form;
    const int64_t *lengths, *shape;
    size_t from[RF_FORM_AXES], to[RF_FORM_AXES];
};

/* Each element goes to where it lies or before it, and elements are visited as they lie: none
 * is overwritten unread. */
static void pad_axis(const struct strides *strides, int axis, uint8_t *target,
                     const uint8_t *source)
{
    const size_t length = (size_t)strides->lengths[axis], step = strides->to[axis];
    if (axis + 1 == strides->form->axes) {
        if (target != source)
            memmove(target, source, length * step);
    } else {
        for (size_t index = 0; index < length; index++)
            pad_axis(strides, axis + 1, target + index * step,
                     source + index * strides->from[axis]);
    }
    const size_t all = (size_t)strides->shape[axis];
    if (all > length)
        fill(target + length * step, (all - length) * step, strides->form);
}

void rf_pad(uint8_t *field, const struct rf_form *form, const int64_t *rows, uint32_t count,
            const int64_t *lengths, const int64_t *shape)
{
    struct strides strides = {.form = form, .shape = shape};
    size_t from = form->unit, to = form->unit;
    for (int axis = form->axes - 1; axis >= 0; axis--) {
        strides.from[axis] = from;
        strides.to[axis] = to;
        from *= (size_t)form->most[axis];
        to *= (size_t)shape[axis];
    }
    for (uint32_t place = 0; place < count; place++) {
        strides.lengths = lengths + place * form->axes;
        pad_axis(&strides, 0, field + place * to,
                 field + (rows == NULL ? place : (size_t)rows[place]) * from);
    }
}
