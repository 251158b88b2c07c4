/* Rows that differ in shape: placed by several writers, put together, and whatever their records
 * say, within the field. */
#include "check.h"
#include "bytes/forms.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 32
#define MOST 7 /* units of a row */

static const uint8_t padding[2] = {0xab, 0xcd};

/* A field alone in its memory, so that a sanitizer sees every byte that is touched outside. */
struct place {
    struct rf_form form;
    uint8_t *memory, *field;
    size_t before, size;
};

static struct place place_of(struct rf_form form)
{
    struct place place = {.form = form};
    place.form.itemsize = sizeof(padding);
    place.form.padding = padding;
    size_t row = place.form.unit;
    for (int axis = 0; axis < form.axes; axis++)
        row *= (size_t)form.most[axis];
    place.before = RF_FORM_HEADER + ROWS * rf_record_size(&place.form);
    place.size = form.total ? (size_t)(form.total + MOST) * form.unit : ROWS * row;
    place.memory = calloc(1, place.before + place.size);
    place.field = place.memory + place.before;
    return place;
}

static int64_t length_of(uint32_t row) { return (row * 5 + 3) % (MOST + 1); }

static int64_t length_of_all(void)
{
    int64_t sum = 0;
    for (uint32_t row = 0; row < ROWS; row++)
        sum += length_of(row);
    return sum;
}

static void write_row(struct place *place, uint32_t row, int64_t start)
{
    memset(place->field + (size_t)start * place->form.unit, (int)row + 1,
           (size_t)length_of(row) * place->form.unit);
}

static bool holds(const struct place *place, const int64_t *rows, uint32_t count,
                  const int64_t *splits)
{
    int64_t end = 0;
    for (uint32_t number = 0; number < count; number++) {
        const uint32_t row = rows == NULL ? number : (uint32_t)rows[number];
        if (splits[number] != end)
            return false;
        end += length_of(row);
        for (int64_t byte = splits[number] * (int64_t)place->form.unit;
             byte < end * (int64_t)place->form.unit; byte++)
            if (place->field[byte] != row + 1)
                return false;
    }
    return splits[count] == end;
}

/* Rows of tickets of four, one after another from the first one's place on. */
static void fill_tickets(struct place *place)
{
    int64_t next = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        const int64_t length = length_of(row);
        next = row % 4 ? next : (int64_t)row * MOST;
        rf_note_row(place->field, &place->form, row, next, &length);
        write_row(place, row, next);
        next += length;
    }
}

static void gaps_are_closed(void)
{
    const int64_t some[] = {1, 2, 9, 30};
    int64_t splits[ROWS + 1];
    for (int selected = 0; selected < 2; selected++) {
        struct place place = place_of((struct rf_form){.axes = 1, .unit = 6, .most = {MOST}});
        const uint32_t count = selected ? 4 : ROWS;
        fill_tickets(&place);
        CHECK(rf_close_up(place.field, &place.form, selected ? some : NULL, count, splits));
        CHECK(holds(&place, selected ? some : NULL, count, splits));
        free(place.memory);
    }
    struct place place = place_of((struct rf_form){.axes = 1, .unit = 6, .most = {MOST}});
    CHECK(rf_close_up(place.field, &place.form, NULL, 0, splits));
    CHECK_EQ(splits[0], 0);
    free(place.memory);
}

static struct place with_total(int64_t total)
{
    return place_of((struct rf_form){.axes = 1, .unit = 6, .most = {MOST}, .total = total});
}

/* Rows come in another order, in a slot that another batch has used; then some of
 * them once more. */
static void any_order_within_a_total(void)
{
    struct place place = with_total(length_of_all());
    int64_t splits[ROWS + 1];
    for (uint64_t batch = 1; batch < 4; batch++) {
        const struct rf_filled filled = {batch, ROWS};
        for (uint32_t step = 0; step < ROWS + 9; step++) {
            const uint32_t row = step * 13 % ROWS;
            const int64_t start =
                rf_place_row(place.field, &place.form, &filled, row, length_of(row));
            CHECK(start >= 0);
            write_row(&place, row, start);
        }
        CHECK_EQ(rf_needed(place.field, &place.form, batch, ROWS), -1);
        CHECK(rf_close_up(place.field, &place.form, NULL, ROWS, splits));
        CHECK(holds(&place, NULL, ROWS, splits));
    }
    free(place.memory);
}

/* One unit too many: some row has no room, and what all need is known when all have told it. */
static void more_than_the_total(void)
{
    struct place place = with_total(length_of_all() - 1);
    const struct rf_filled filled = {5, ROWS};
    uint32_t refused = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        bool is_refused =
            rf_place_row(place.field, &place.form, &filled, row, length_of(row)) == RF_NO_ROOM;
        CHECK_EQ(rf_refused(place.field, &place.form, 5, row), is_refused ? length_of(row) : -1);
        CHECK_EQ(rf_refused(place.field, &place.form, 6, row), -1);
        refused += is_refused;
    }
    CHECK(refused >= 1);
    CHECK_EQ(rf_needed(place.field, &place.form, 5, ROWS), length_of_all());
    CHECK_EQ(rf_needed(place.field, &place.form, 6, ROWS), -1);
    free(place.memory);
}

static void forget_start(struct place *place, uint32_t row)
{
    const int64_t none = RF_NO_PLACE;
    memcpy(place->field - RF_FORM_HEADER - (row + 1) * rf_record_size(&place->form) + 8, &none,
           sizeof(none));
}

/* A writer that ends between the move of the cursor and the note of where its row lies: its room is
 * lost, and the total holds all the same. */
static void a_death_between_two_steps(void)
{
    struct place place = with_total(length_of_all());
    const struct rf_filled filled = {7, ROWS};
    int64_t splits[ROWS + 1];
    for (uint32_t row = 0; row < ROWS; row++) {
        int64_t start = rf_place_row(place.field, &place.form, &filled, row, length_of(row));
        if (row == 3) {
            forget_start(&place, row);
            start = rf_place_row(place.field, &place.form, &filled, row, length_of(row));
        }
        CHECK(start >= 0);
        write_row(&place, row, start);
    }
    CHECK(rf_close_up(place.field, &place.form, NULL, ROWS, splits));
    CHECK(holds(&place, NULL, ROWS, splits));
    free(place.memory);
}

/* The room of one row may be lost, of the longest too, and all rows still lie within the field;
 * that of two may not. */
static void the_field_ends_one_row_behind_the_total(void)
{
    struct place place = with_total(2 * MOST);
    const struct rf_filled filled = {7, ROWS};
    CHECK_EQ(rf_place_row(place.field, &place.form, &filled, 0, MOST), 0);
    forget_start(&place, 0);
    CHECK_EQ(rf_place_row(place.field, &place.form, &filled, 0, MOST), MOST);
    CHECK_EQ(rf_place_row(place.field, &place.form, &filled, 1, MOST), 2 * MOST);
    forget_start(&place, 1);
    CHECK_EQ(rf_place_row(place.field, &place.form, &filled, 1, MOST), RF_NO_ROOM);
    free(place.memory);
}

/* Who fills a whole batch again, with rows of other lengths, has all of the room. */
static void a_batch_that_is_placed_anew(void)
{
    struct place place = with_total(2 * MOST);
    const struct rf_filled filled = {7, ROWS};
    for (int64_t attempt = 0; attempt < 9; attempt++) {
        rf_place_anew(place.field, &place.form, &filled);
        CHECK_EQ(rf_place_row(place.field, &place.form, &filled, 0, MOST - attempt % 2), 0);
        CHECK_EQ(rf_place_row(place.field, &place.form, &filled, 1, MOST - 1 + attempt % 2),
                 MOST - attempt % 2);
    }
    CHECK_EQ(rf_needed(place.field, &place.form, 7, ROWS), -1);
    free(place.memory);
}

struct writer {
    struct place *place;
    uint32_t first;
    bool done;
};

static void *write_half(void *given)
{
    struct writer *writer = given;
    const struct rf_filled filled = {9, ROWS};
    writer->done = true;
    for (uint32_t row = writer->first; row < ROWS; row += 2) {
        const int64_t start =
            rf_place_row(writer->place->field, &writer->place->form, &filled, row, length_of(row));
        writer->done &= start >= 0;
        if (start >= 0)
            write_row(writer->place, row, start);
    }
    return NULL;
}

static void two_writers(void)
{
    int64_t splits[ROWS + 1];
    for (int repetition = 0; repetition < 200; repetition++) {
        struct place place = with_total(length_of_all());
        struct writer writers[2] = {{.place = &place, .first = 0}, {.place = &place, .first = 1}};
        pthread_t threads[2];
        for (int number = 0; number < 2; number++)
            CHECK_EQ(pthread_create(&threads[number], NULL, write_half, &writers[number]), 0);
        for (int number = 0; number < 2; number++)
            CHECK_EQ(pthread_join(threads[number], NULL), 0);
        CHECK(writers[0].done && writers[1].done);
        CHECK(rf_close_up(place.field, &place.form, NULL, ROWS, splits));
        CHECK(holds(&place, NULL, ROWS, splits));
        free(place.memory);
    }
}

#define HIGH 5
#define WIDE 3
#define DEEP 4 /* bytes of a unit */

static struct place picture_place(void)
{
    return place_of(
        (struct rf_form){.axes = 2, .padded = true, .unit = DEEP, .most = {HIGH, WIDE}});
}

static uint8_t *line_of(const struct place *place, uint32_t row, int64_t line)
{
    return place->field + ((size_t)row * HIGH + (size_t)line) * WIDE * DEEP;
}

static void write_picture(struct place *place, uint32_t row, int64_t height, int64_t width)
{
    const int64_t lengths[] = {height, width};
    rf_note_row(place->field, &place->form, row, 0, lengths);
    for (int64_t line = 0; line < height; line++)
        memset(line_of(place, row, line), (int)(row * 8 + (uint32_t)line + 1),
               (size_t)width * DEEP);
}

static uint8_t expected_byte(uint32_t row, int64_t line, int64_t column, int64_t byte)
{
    const bool inside = line < (int64_t)(row % HIGH) + 1 && column < (int64_t)(row % WIDE) + 1;
    return inside ? (uint8_t)(row * 8 + (uint32_t)line + 1) : padding[byte % 2];
}

/* Pictures of each size, to the size of the largest of them, and to larger ones. */
static void pictures_are_padded(void)
{
    const int64_t shapes[][2] = {{4, 2}, {4, 3}, {5, 2}, {5, 3}};
    const int64_t rows[] = {0, 1, 3, 16, 18};
    for (int shape = 0; shape < 4; shape++) {
        struct place place = picture_place();
        int64_t lengths[ROWS * 2];
        for (uint32_t row = 0; row < ROWS; row++)
            write_picture(&place, row, row % HIGH + 1, row % WIDE + 1);
        rf_read_lengths(place.field, &place.form, rows, 5, lengths);
        rf_pad(place.field, &place.form, rows, 5, lengths, shapes[shape]);
        const uint8_t *byte = place.field;
        for (int number = 0; number < 5; number++)
            for (int64_t line = 0; line < shapes[shape][0]; line++)
                for (int64_t column = 0; column < shapes[shape][1]; column++)
                    for (int64_t part = 0; part < DEEP; part++)
                        CHECK_EQ(*byte++,
                                 expected_byte((uint32_t)rows[number], line, column, part));
        free(place.memory);
    }
}

/* Records that were overwritten: all that is read and written lies within the field, which
 * a sanitizer watches. */
static void damaged_records(void)
{
    const struct rf_form forms[] = {
        {.axes = 1, .unit = 6, .most = {MOST}},
        {.axes = 1, .unit = 6, .most = {MOST}, .total = 40},
        {.axes = 2, .padded = true, .unit = DEEP, .most = {HIGH, WIDE}}};
    const int64_t some[] = {1, 2, 9, 30};
    int64_t found[2 * ROWS + 1];
    srand(1);
    for (int repetition = 0; repetition < 3000; repetition++) {
        struct place place = place_of(forms[repetition % 3]);
        const struct rf_filled filled = {1, ROWS};
        const bool all = repetition % 2;
        const uint32_t count = all ? ROWS : 4;
        for (size_t byte = 0; byte < place.before; byte++)
            place.memory[byte] =
                (uint8_t)(byte % 8 > 1 && repetition % 7 ? (repetition % 5 ? 0 : 255) : rand());
        if (place.form.total)
            rf_place_row(place.field, &place.form, &filled, (uint32_t)rand() % ROWS, MOST);
        if (place.form.padded) {
            int64_t shape[] = {HIGH, WIDE};
            rf_read_lengths(place.field, &place.form, all ? NULL : some, count, found);
            for (uint32_t row = 0; row < count; row++)
                CHECK(found[2 * row] >= 0 && found[2 * row] <= HIGH && found[2 * row + 1] <= WIDE);
            rf_pad(place.field, &place.form, all ? NULL : some, count, found, shape);
        } else {
            CHECK(rf_close_up(place.field, &place.form, all ? NULL : some, count, found));
            for (uint32_t row = 0; row < count; row++)
                CHECK(found[row] <= found[row + 1]);
            CHECK((size_t)found[count] * place.form.unit <= place.size);
            CHECK(!place.form.total || found[count] <= place.form.total);
        }
        free(place.memory);
    }
}

int main(void)
{
    check_begin();
    RUN(gaps_are_closed);
    RUN(any_order_within_a_total);
    RUN(more_than_the_total);
    RUN(a_death_between_two_steps);
    RUN(the_field_ends_one_row_behind_the_total);
    RUN(a_batch_that_is_placed_anew);
    RUN(two_writers);
    RUN(pictures_are_padded);
    RUN(damaged_records);
    return check_end("test_forms");
}
