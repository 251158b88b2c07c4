/* What was overwritten: found by the consumer, which compares what is shared with its own copies,
 * and by the seals of what workers have left. After that the ring hands out nothing more, and binds
 * nothing. */
#include "internal.h"

#include <string.h>

#define CELL_SHIFT 32
#define WHAT_SHIFT 48

void rf_note_damage(struct rf_ring *ring, enum rf_damage what, uint32_t slot, uint32_t cell)
{
    uint64_t none = 0, found = (uint64_t)what << WHAT_SHIFT | (uint64_t)cell << CELL_SHIFT | slot;
    atomic_compare_exchange_strong_explicit(&ring->binder->damage, &none, found,
                                            memory_order_relaxed, memory_order_relaxed);
}

bool rf_is_possible(const struct rf_ring *ring, const struct rf_binding *binding, uint32_t cell,
                    uint64_t word)
{
    enum rf_state state = rf_word_state(word);
    return rf_word_ticket(word) == (uint32_t)(binding->batch * ring->geometry.cells + cell) &&
           state >= RF_AVAIL && state <= RF_CANCELLED &&
           (state == RF_AVAIL || rf_word_owner(word) < ring->geometry.ids);
}

/* ---- a published ticket ---- */

static bool is_given_up(struct rf_ring *ring, uint32_t slot, uint32_t row)
{
    rf_lock(ring->binder);
    const struct rf_death *death = rf_deaths_of(ring->binder, slot, row);
    bool given_up = death && death->count >= ring->binder->max_attempts;
    death = rf_deaths_of(ring->binder, slot, RF_ALL_ROWS);
    given_up = given_up || (death && death->count >= ring->binder->max_attempts);
    rf_unlock(ring);
    return given_up;
}

bool rf_read_failure(const struct rf_ring *ring, uint32_t slot, uint32_t cell,
                     struct rf_failure *failure)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    /* What is looked at is what is used. */
    memcpy(failure, rf_slot_failure(ring, slot, cell), sizeof *failure);
    return failure->size <= sizeof failure->payload &&
           failure->row / binding->rows_per_ticket == cell &&
           failure->seal == rf_seal_failure(binding->batch * ring->geometry.cells + cell, failure,
                                            failure->payload);
}

static bool has_its_indices(const struct rf_ring *ring, uint32_t slot, uint32_t cell)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    uint32_t first = cell * binding->rows_per_ticket;
    const int64_t *indices = rf_indices_of(ring, slot) + first;
    return rf_sum_indices(indices, first, rf_rows_of(binding, cell)) == binding->sum[cell];
}

/* Whether the marks of a ticket that failed say why. */
static bool is_explained(struct rf_ring *ring, uint32_t slot, uint32_t cell)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    uint32_t row = cell * binding->rows_per_ticket, end = row + rf_rows_of(binding, cell),
             killed = 0, raised = 0;
    struct rf_failure failure;
    for (; row < end; row++) {
        uint8_t mark = rf_slot_marks(ring, slot)[row];
        raised += mark == RF_ROW_RAISED;
        killed += mark == RF_ROW_KILLED;
        if (mark > RF_ROW_KILLED || (mark == RF_ROW_KILLED && !is_given_up(ring, slot, row)))
            return false;
    }
    return raised + killed && (!raised || rf_read_failure(ring, slot, cell, &failure));
}

bool rf_is_sound(struct rf_ring *ring, uint32_t slot, uint32_t cell, uint64_t word, uint32_t rows)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    enum rf_state state = rf_word_state(word);
    uint64_t sum = binding->sum[cell];
    if (state == RF_FAILED)
        sum = rf_sum_bytes(sum, rf_slot_marks(ring, slot) + cell * binding->rows_per_ticket,
                           rf_rows_of(binding, cell));
    uint64_t seal = rf_seal(word, rows, binding->epoch, binding->version, sum);
    enum rf_damage damage = RF_INTACT;
    if ((state != RF_READY && state != RF_FAILED) || !rf_is_possible(ring, binding, cell, word) ||
        seal != rf_cell_of(ring, slot, cell)->seal)
        damage = has_its_indices(ring, slot, cell) ? RF_DAMAGED_CELL : RF_DAMAGED_INDICES;
    else if (state == RF_FAILED && !has_its_indices(ring, slot, cell)) /* an error names them */
        damage = RF_DAMAGED_INDICES;
    else if (state == RF_FAILED && !is_explained(ring, slot, cell))
        damage = RF_DAMAGED_FAILURE;
    if (damage)
        rf_note_damage(ring, damage, slot, cell);
    return !damage;
}

/* ---- what the consumer has written ---- */

static bool is_header_intact(const struct rf_ring *ring)
{
    const struct rf_control *control = ring->control;
    const struct rf_binder *binder = ring->binder;
    /* Before our own, which is first. */
    bool stopped = atomic_load_explicit(&control->stop, memory_order_seq_cst) != 0;
    return control->magic == RF_MAGIC && control->abi == RF_ABI &&
           control->control_size == ring->control_size &&
           control->seal == rf_seal_geometry(&ring->geometry) &&
           rf_seal_geometry(&control->geometry) == control->seal &&
           atomic_load_explicit(&control->head, memory_order_relaxed) == rf_head(ring) &&
           atomic_load_explicit(&control->bound, memory_order_relaxed) == rf_bound(ring) &&
           atomic_load_explicit(&control->cancel_upto, memory_order_relaxed) ==
               binder->cancel_upto &&
           (!stopped || atomic_load_explicit(&binder->stop, memory_order_seq_cst));
}

static bool is_record_intact(const struct rf_ring *ring, uint32_t slot)
{
    const struct rf_record *record = &ring->records[slot];
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    return atomic_load_explicit(&record->batch, memory_order_relaxed) == binding->batch &&
           atomic_load_explicit(&record->epoch, memory_order_relaxed) == binding->epoch &&
           atomic_load_explicit(&record->rows, memory_order_relaxed) == binding->rows &&
           atomic_load_explicit(&record->tickets, memory_order_relaxed) == binding->tickets &&
           record->version == binding->version &&
           record->rows_per_ticket == binding->rows_per_ticket &&
           rf_entry_of(ring, binding->batch) == ((uint64_t)binding->tickets << 32 | slot);
}

static void check_slot(struct rf_ring *ring, uint32_t slot)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    if (!is_record_intact(ring, slot))
        rf_note_damage(ring, RF_DAMAGED_RECORD, slot, RF_MAX_CELLS);
    for (uint32_t cell = 0; cell < binding->tickets; cell++) {
        uint64_t word =
            atomic_load_explicit(&rf_cell_of(ring, slot, cell)->word, memory_order_relaxed);
        if (!rf_is_possible(ring, binding, cell, word) || rf_word_state(word) == RF_CANCELLED)
            rf_note_damage(ring, RF_DAMAGED_CELL, slot, cell);
    }
}

void rf_check(struct rf_ring *ring)
{
    if (rf_is_copy(ring))
        return;
    /* What another thread takes changes the header, and the cells of a slot. */
    rf_lock_taking(ring);
    /* Another thread binds right now: the next slice looks again. */
    if (rf_try_lock(ring->binder)) {
        if (!is_header_intact(ring))
            rf_note_damage(ring, RF_DAMAGED_HEADER, 0, RF_MAX_CELLS);
        for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
            if (rf_slot_state(ring, slot) == RF_SLOT_BOUND)
                check_slot(ring, slot);
        rf_unlock(ring);
    }
    rf_unlock_taking(ring);
}

struct rf_damage_report rf_damage_of(const struct rf_ring *ring)
{
    uint64_t found = atomic_load_explicit(&ring->binder->damage, memory_order_relaxed);
    uint32_t slot = (uint32_t)found, cell = found >> CELL_SHIFT & 0xff;
    struct rf_damage_report report = {.what = (enum rf_damage)(found >> WHAT_SHIFT), .slot = slot};
    if (report.what == RF_INTACT || report.what == RF_DAMAGED_HEADER)
        return report;
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    uint64_t sum = 0;
    bool one = cell < binding->tickets;
    for (uint32_t each = 0; each < binding->tickets; each++)
        sum += !one || each == cell ? binding->sum[each] : 0;
    report.batch = binding->batch;
    report.epoch = binding->epoch;
    report.first_row = one ? cell * binding->rows_per_ticket : 0;
    report.rows = one ? rf_rows_of(binding, cell) : binding->rows;
    const int64_t *indices = rf_indices_of(ring, slot) + report.first_row;
    report.indices = rf_sum_indices(indices, report.first_row, report.rows) == sum;
    return report;
}
