#include "ring.h"

#include "binder.h"
#include "wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BRISK_NS 20000 /* a sleep and a wake take about that */

/* ---- making and keeping ---- */

static uint64_t workers_at(void) { return rf_round_up(sizeof(struct rf_control), RF_LINE); }
static uint64_t records_at(uint32_t workers) { return workers_at() + (uint64_t)workers * sizeof(struct rf_worker); }

static uint64_t slot_of_at(uint32_t slots, uint32_t workers)
{
    return records_at(workers) + (uint64_t)slots * sizeof(struct rf_record);
}

static uint64_t cells_at(uint32_t slots, uint32_t workers)
{
    return rf_round_up(slot_of_at(slots, workers) + (uint64_t)slots * sizeof(uint64_t), RF_LINE);
}

uint64_t rf_control_size(uint32_t slots, uint32_t cells, uint32_t workers)
{
    return rf_round_up(cells_at(slots, workers) + (uint64_t)slots * cells * sizeof(struct rf_cell), RF_PAGE);
}

void rf_format(struct rf_control *control, const struct rf_geometry *geometry)
{
    control->geometry = *geometry;
    control->control_size = (uint32_t)rf_control_size(geometry->slots, geometry->cells, geometry->workers);
    control->abi = RF_ABI;
    control->magic = RF_MAGIC;
}

static bool lies_in(uint64_t size, uint64_t at, uint64_t bytes) { return at <= size && bytes <= size - at; }

static bool fits(const struct rf_geometry *geometry, uint64_t control_size, uint64_t slots_size)
{
    if (!geometry->slots || !geometry->cells || !geometry->workers || !geometry->rows || !geometry->slot_size ||
        geometry->cells > RF_MAX_CELLS || geometry->workers > RF_MAX_WORKERS || geometry->slots > RF_CONTROL_MAX)
        return false;
    uint64_t size = geometry->slot_size;
    if (size % RF_FIELD_ALIGN || geometry->indices_at % sizeof(int64_t) || geometry->failures_at % sizeof(uint32_t))
        return false;
    return rf_control_size(geometry->slots, geometry->cells, geometry->workers) <= control_size &&
           size <= slots_size / geometry->slots &&
           lies_in(size, geometry->indices_at, geometry->rows * sizeof(int64_t)) &&
           lies_in(size, geometry->marks_at, geometry->rows) &&
           lies_in(size, geometry->failures_at, (uint64_t)geometry->cells * RF_FAILURE_SIZE);
}

static void place(struct rf_ring *ring)
{
    uint8_t *base = (uint8_t *)ring->control;
    uint32_t slots = ring->geometry.slots, workers = ring->geometry.workers;
    ring->workers = (struct rf_worker *)(base + workers_at());
    ring->records = (struct rf_record *)(base + records_at(workers));
    ring->slot_of = (_Atomic uint64_t *)(base + slot_of_at(slots, workers));
    ring->cells = (struct rf_cell *)(base + cells_at(slots, workers));
}

static void destroy(struct rf_ring *ring)
{
    if (ring->binder) {
        free(ring->binder->holds);
        free(ring->binder->free_slots);
        free(ring->binder->deaths);
        free(ring->binder->planned);
        free(ring->binder->indices);
        free(ring->binder);
    }
    if (ring->control)
        rf_unmap(ring->control, ring->control_size);
    if (ring->slots)
        rf_unmap(ring->slots, ring->slots_size);
    free((void *)ring->populated);
    free(ring);
}

struct rf_ring *rf_open(int control_fd, int slots_fd, uint64_t control_size, uint64_t slots_size, int inherit, int *why)
{
    struct rf_ring *ring = calloc(1, sizeof *ring);
    *why = ENOMEM;
    if (!ring)
        return NULL;
    ring->control_size = control_size;
    ring->slots_size = slots_size;
    ring->references = 1;
    ring->generation = rf_fork_generation();
    *why = EPROTO;
    if (control_size < sizeof(struct rf_control))
        goto failed;
    ring->control = rf_map(control_fd, control_size, inherit);
    *why = errno;
    if (!ring->control)
        goto failed;
    ring->geometry = ring->control->geometry;
    *why = EPROTO;
    if (ring->control->magic != RF_MAGIC || ring->control->abi != RF_ABI ||
        ring->control->control_size != control_size || !fits(&ring->geometry, control_size, slots_size))
        goto failed;
    ring->slots = rf_map(slots_fd, slots_size, inherit);
    *why = errno;
    if (!ring->slots)
        goto failed;
    *why = ENOMEM;
    ring->populated = calloc(ring->geometry.slots, sizeof *ring->populated);
    if (!ring->populated)
        goto failed;
    place(ring);
    *why = 0;
    return ring;
failed:
    destroy(ring);
    return NULL;
}

void rf_reference(struct rf_ring *ring) { atomic_fetch_add_explicit(&ring->references, 1, memory_order_relaxed); }

void rf_unreference(struct rf_ring *ring)
{
    if (rf_is_copy(ring))
        return; /* a forked child owns none of the references it copied */
    if (atomic_fetch_sub_explicit(&ring->references, 1, memory_order_acq_rel) == 1)
        destroy(ring);
}

uint8_t *rf_slot_base(const struct rf_ring *ring, uint32_t slot) { return ring->slots + slot * ring->geometry.slot_size; }

const uint8_t *rf_slot_marks(const struct rf_ring *ring, uint32_t slot)
{
    return rf_slot_base(ring, slot) + ring->geometry.marks_at;
}

const int64_t *rf_slot_indices(const struct rf_ring *ring, uint32_t slot)
{
    return (const int64_t *)(rf_slot_base(ring, slot) + ring->geometry.indices_at);
}

const struct rf_failure *rf_slot_failure(const struct rf_ring *ring, uint32_t slot, uint32_t cell)
{
    return (const struct rf_failure *)(rf_slot_base(ring, slot) + ring->geometry.failures_at) + cell;
}

/* Map all pages of a slot at this process's first use of it, in one call instead of a fault a page. */
static void populate(struct rf_ring *ring, uint32_t slot)
{
    if (atomic_load_explicit(&ring->populated[slot], memory_order_relaxed))
        return;
    rf_populate(rf_slot_base(ring, slot), ring->geometry.slot_size);
    atomic_store_explicit(&ring->populated[slot], 1, memory_order_relaxed);
}

/* ---- the consumer ---- */

static uint64_t entry_of(const struct rf_ring *ring, uint64_t batch)
{
    return atomic_load_explicit(&ring->slot_of[batch % ring->geometry.slots], memory_order_relaxed);
}

/* The last cell of the batch that is not final, or NULL. The last, because cells are claimed in order: when it
 * is done, the others mostly are, and the consumer is woken once a batch. */
static struct rf_cell *unfinished(const struct rf_ring *ring, uint64_t batch, uint32_t *number)
{
    uint64_t entry = entry_of(ring, batch);
    for (uint32_t cell = (uint32_t)(entry >> 32); cell-- > 0;) {
        struct rf_cell *place = rf_cell_of(ring, (uint32_t)entry, cell);
        if (!rf_word_final(atomic_load_explicit(&place->word, memory_order_acquire))) { /* T: pairs with P */
            *number = cell;
            return place;
        }
    }
    return NULL;
}

static bool all_held(const struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        if (rf_slot_state(ring, slot) != RF_SLOT_HELD)
            return false;
    return true;
}

static bool is_bound(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->control->head, memory_order_relaxed) <
           atomic_load_explicit(&ring->control->bound, memory_order_seq_cst);
}

enum rf_answer rf_look(struct rf_ring *ring)
{
    uint32_t cell;
    if (!is_bound(ring))
        rf_bind(ring);
    if (is_bound(ring) && !unfinished(ring, atomic_load_explicit(&ring->control->head, memory_order_relaxed), &cell))
        return RF_TAKEABLE;
    if (atomic_load_explicit(&ring->control->stop, memory_order_seq_cst))
        return RF_STOPPED;
    if (atomic_load_explicit(&ring->binder->alarm, memory_order_seq_cst))
        return RF_ALARMED;
    /* The plan first: a release may bind its last batch while we look, but never takes it out before it is bound. */
    bool planned = rf_plan_room(ring) < ring->binder->capacity;
    if (is_bound(ring))
        return RF_PENDING;
    if (!planned)
        return RF_DRY;
    return all_held(ring) ? RF_HELD : RF_PENDING;
}

/* Whether something has come that the consumer would sleep for: in `place`, or, if it is NULL, in a slot. */
static bool has_news(struct rf_ring *ring, const struct rf_cell *place)
{
    if (atomic_load_explicit(&ring->binder->alarm, memory_order_seq_cst) ||
        atomic_load_explicit(&ring->control->stop, memory_order_seq_cst))
        return true;
    if (place)
        return rf_word_final(atomic_load_explicit(&place->word, memory_order_seq_cst));
    rf_bind(ring);
    return is_bound(ring);
}

/* Sleep once, until the next look would differ. What comes before our announcement, has_news() sees; what comes after
 * it bumps news_seq, on which we sleep. */
static int sleep_once(struct rf_ring *ring, int64_t deadline_ns)
{
    struct rf_control *control = ring->control;
    uint64_t head = atomic_load_explicit(&control->head, memory_order_relaxed);
    uint32_t cell = 0;
    bool bound = is_bound(ring);
    struct rf_cell *place = bound ? unfinished(ring, head, &cell) : NULL;
    if (bound && !place)
        return 0;
    uint64_t wait = bound ? head * ring->geometry.cells + cell + 1 : RF_WAIT_FREE;
    atomic_store_explicit(&control->consumer_wait, wait, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(&control->news_seq, memory_order_seq_cst);
    if (place && rf_word_state(atomic_load_explicit(&place->word, memory_order_relaxed)) == RF_AVAIL)
        rf_wake_workers(ring, RF_ALL); /* nobody may have been woken for it: see there */
    int slept = has_news(ring, place) ? 0 : rf_futex_wait(&control->news_seq, seen, deadline_ns);
    atomic_store_explicit(&control->consumer_wait, RF_WAIT_NONE, memory_order_relaxed);
    return slept;
}

enum rf_answer rf_wait_head(struct rf_ring *ring, int64_t deadline_ns)
{
    int64_t began_ns = rf_now_ns();
    for (;;) {
        enum rf_answer answer = rf_look(ring);
        if (answer != RF_PENDING && answer != RF_HELD)
            return answer;
        if (answer == RF_PENDING && rf_look_again(ring, began_ns))
            continue;
        if (sleep_once(ring, deadline_ns)) /* a signal, or the deadline */
            return rf_look(ring);
    }
}

static void learn_pace(struct rf_ring *ring, uint64_t busy_ns, const struct rf_record *record)
{
    struct rf_binder *binder = ring->binder;
    uint64_t now = busy_ns / record->rows + 1; /* never 0, which means unknown */
    uint64_t mean = atomic_load_explicit(&binder->row_ns, memory_order_relaxed);
    mean = mean ? (3 * mean + now) / 4 : now;
    atomic_store_explicit(&binder->row_ns, mean, memory_order_relaxed);
    uint32_t brisk = ring->geometry.spin_ns && mean * record->rows_per_ticket < BRISK_NS;
    if (brisk != atomic_load_explicit(&ring->control->brisk, memory_order_relaxed)) /* a store takes the line away */
        atomic_store_explicit(&ring->control->brisk, brisk, memory_order_relaxed);
}

struct rf_taken rf_take(struct rf_ring *ring)
{
    struct rf_control *control = ring->control;
    uint64_t batch = atomic_load_explicit(&control->head, memory_order_relaxed), busy_ns = 0;
    uint32_t slot = (uint32_t)entry_of(ring, batch);
    const struct rf_record *record = &ring->records[slot];
    struct rf_taken taken = {.batch = batch, .epoch = record->epoch, .slot = slot, .tickets = record->tickets};
    for (uint32_t cell = 0; cell < record->tickets; cell++) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        uint64_t word = atomic_load_explicit(&place->word, memory_order_acquire); /* T: pairs with P in rf_publish() */
        taken.failed |= rf_word_state(word) == RF_FAILED;
        taken.rows += place->rows;
        busy_ns += place->busy_ns;
        atomic_store_explicit(&place->word, word & ~UINT64_C(0xf), memory_order_relaxed); /* EMPTY; B orders the rebind */
    }
    learn_pace(ring, busy_ns, record);
    struct rf_hold *hold = &ring->binder->holds[slot];
    atomic_store_explicit(&hold->count, 1, memory_order_relaxed);
    atomic_store_explicit(&hold->since_ns, rf_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&hold->state, RF_SLOT_HELD, memory_order_relaxed);
    atomic_store_explicit(&control->head, batch + 1, memory_order_release);
    populate(ring, slot);
    return taken;
}

/* ---- looking on ---- */

bool rf_slot_ready(const struct rf_ring *ring, uint32_t slot)
{
    /* All cells, since the record may be written meanwhile: those without a ticket are EMPTY. */
    for (uint32_t cell = 0; cell < ring->geometry.cells; cell++) {
        uint64_t word = atomic_load_explicit(&rf_cell_of(ring, slot, cell)->word, memory_order_relaxed);
        if (rf_word_state(word) == RF_AVAIL || rf_word_state(word) == RF_CLAIMED)
            return false;
    }
    return true;
}

struct rf_worker_report rf_report(const struct rf_ring *ring, uint32_t worker)
{
    const struct rf_worker *line = &ring->workers[worker];
    return (struct rf_worker_report){
        .index = atomic_load_explicit(&line->index, memory_order_relaxed),
        .since_ns = atomic_load_explicit(&line->since_ns, memory_order_relaxed),
        .busy_ns = atomic_load_explicit(&line->busy_ns, memory_order_relaxed),
        .wait_ns = atomic_load_explicit(&line->wait_ns, memory_order_relaxed),
        .samples = atomic_load_explicit(&line->samples, memory_order_relaxed),
        .tickets = atomic_load_explicit(&line->tickets, memory_order_relaxed),
        .in_row = atomic_load_explicit(&line->row, memory_order_relaxed) != 0,
    };
}

/* ---- the worker ---- */

static void fill_claim(struct rf_ring *ring, uint32_t worker, uint64_t ticket, uint32_t slot, uint32_t cell,
                       uint32_t attempt, struct rf_claim *claim)
{
    const struct rf_record *record = &ring->records[slot];
    uint8_t *base = rf_slot_base(ring, slot);
    uint32_t first = cell * record->rows_per_ticket;
    uint32_t left = record->rows - first;
    uint32_t rows = left < record->rows_per_ticket ? left : record->rows_per_ticket;
    *claim = (struct rf_claim){
        .ticket = ticket, .batch = record->batch, .epoch = record->epoch, .worker = worker, .slot = slot, .cell = cell,
        .attempt = attempt, .version = record->version, .first_row = first, .rows = rows, .base = base,
        .indices = (const int64_t *)(base + ring->geometry.indices_at) + first,
        .marks = base + ring->geometry.marks_at + first,
        .failure = (struct rf_failure *)(base + ring->geometry.failures_at) + cell,
        .line = &ring->workers[worker], .control = ring->control, .claimed_ns = rf_now_ns(), .rows_delivered = rows};
    claim->failure->size = 0;
    for (uint32_t row = 0; attempt && row < rows; row++) /* what an earlier attempt saw fail is run again */
        if (claim->marks[row] == RF_ROW_RAISED)
            claim->marks[row] = RF_ROW_OK;
    struct rf_worker *line = claim->line;
    atomic_store_explicit(&line->ticket, ticket, memory_order_relaxed);
    atomic_store_explicit(&line->attempt, attempt, memory_order_relaxed);
    atomic_store_explicit(&line->since_ns, (uint64_t)claim->claimed_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&line->tickets, 1, memory_order_relaxed);
}

/* C: claim and owner in one step, so that a death between two steps cannot lose a ticket. */
static bool try_claim(struct rf_ring *ring, uint32_t worker, uint64_t batch, uint32_t slot, uint32_t cell,
                      struct rf_claim *claim)
{
    struct rf_cell *place = rf_cell_of(ring, slot, cell);
    uint64_t ticket = batch * ring->geometry.cells + cell;
    uint64_t word = atomic_load_explicit(&place->word, memory_order_relaxed);
    if (rf_word_state(word) != RF_AVAIL || rf_word_ticket(word) != (uint32_t)ticket)
        return false;
    uint32_t attempt = rf_word_attempt(word);
    uint64_t mine = rf_word(ticket, attempt, worker, RF_CLAIMED);
    if (!atomic_compare_exchange_strong_explicit(&place->word, &word, mine, memory_order_acq_rel, memory_order_relaxed))
        return false;
    fill_claim(ring, worker, ticket, slot, cell, attempt, claim);
    populate(ring, slot);
    return true;
}

bool rf_claim_next(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor, struct rf_claim *claim)
{
    struct rf_control *control = ring->control;
    uint32_t reaps = atomic_load_explicit(&control->reap_seq, memory_order_seq_cst);
    uint64_t bound = atomic_load_explicit(&control->bound, memory_order_seq_cst);
    uint64_t head = atomic_load_explicit(&control->head, memory_order_acquire);
    if (reaps != cursor->reaps || cursor->batch < head)
        *cursor = (struct rf_cursor){.batch = head, .reaps = reaps};
    for (; cursor->batch < bound; cursor->batch++, cursor->cell = 0) {
        uint64_t entry = entry_of(ring, cursor->batch);
        while (cursor->cell < (uint32_t)(entry >> 32))
            if (try_claim(ring, worker, cursor->batch, (uint32_t)entry, cursor->cell++, claim))
                return true;
    }
    return false;
}

static void set_asleep(struct rf_ring *ring, uint32_t worker, bool asleep)
{
    _Atomic uint64_t *word = &ring->control->sleepers[worker / 64];
    uint64_t bit = UINT64_C(1) << worker % 64;
    if (asleep)
        atomic_fetch_or_explicit(word, bit, memory_order_seq_cst);
    else
        atomic_fetch_and_explicit(word, ~bit, memory_order_relaxed);
}

enum rf_answer rf_claim_wait(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor, struct rf_claim *claim,
                             int64_t deadline_ns)
{
    struct rf_control *control = ring->control;
    if (atomic_load_explicit(&control->stop, memory_order_seq_cst))
        return RF_STOPPED;
    if (rf_claim_next(ring, worker, cursor, claim))
        return RF_TAKEABLE;
    int64_t began_ns = rf_now_ns();
    enum rf_answer answer = RF_PENDING;
    while (answer == RF_PENDING && rf_look_again(ring, began_ns))
        if (rf_claim_next(ring, worker, cursor, claim))
            answer = RF_TAKEABLE;
    int slept = 0;
    set_asleep(ring, worker, answer == RF_PENDING); /* before the last look, so that a binder who is not seen sees us */
    while (answer == RF_PENDING && !slept) {
        uint32_t seen = atomic_load_explicit(&control->work_seq, memory_order_seq_cst);
        if (atomic_load_explicit(&control->stop, memory_order_seq_cst))
            answer = RF_STOPPED;
        else if (rf_claim_next(ring, worker, cursor, claim))
            answer = RF_TAKEABLE;
        else
            slept = rf_futex_wait(&control->work_seq, seen, deadline_ns);
    }
    set_asleep(ring, worker, false);
    atomic_fetch_add_explicit(&ring->workers[worker].wait_ns, (uint64_t)(rf_now_ns() - began_ns), memory_order_relaxed);
    return answer;
}

void rf_publish(struct rf_ring *ring, const struct rf_claim *claim, bool cancelled)
{
    struct rf_control *control = ring->control;
    struct rf_cell *place = rf_cell_of(ring, claim->slot, claim->cell);
    uint64_t mine = rf_word(claim->ticket, claim->attempt, claim->worker, RF_CLAIMED);
    if (atomic_load_explicit(&place->word, memory_order_relaxed) != mine)
        return; /* we were taken for dead: cell and line are another's */
    enum rf_state state = cancelled ? RF_CANCELLED : RF_READY;
    for (uint32_t row = 0; !cancelled && row < claim->rows; row++)
        if (claim->marks[row] != RF_ROW_OK)
            state = RF_FAILED;
    uint64_t busy_ns = (uint64_t)(rf_now_ns() - claim->claimed_ns);
    place->busy_ns = busy_ns;
    place->rows = claim->rows_delivered;
    rf_blame_none(claim);
    atomic_store_explicit(&claim->line->since_ns, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&claim->line->busy_ns, busy_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&claim->line->samples, claim->rows, memory_order_relaxed);
    uint64_t final = rf_word(claim->ticket, claim->attempt, claim->worker, state);
    /* P: pairs with T in rf_take(). It fails only if we are taken for dead just now. */
    if (!atomic_compare_exchange_strong_explicit(&place->word, &mine, final, memory_order_seq_cst, memory_order_relaxed))
        return;
    uint64_t wait = atomic_load_explicit(&control->consumer_wait, memory_order_seq_cst);
    if (wait == claim->ticket + 1 || wait == RF_WAIT_FREE)
        rf_wake_consumer(ring);
}

void rf_fail(const struct rf_claim *claim, uint32_t row, const void *payload, uint32_t size)
{
    claim->marks[row] = RF_ROW_RAISED;
    if (claim->failure->size)
        return;
    uint32_t kept = size < sizeof claim->failure->payload ? size : (uint32_t)sizeof claim->failure->payload;
    claim->failure->row = claim->first_row + row;
    claim->failure->size = kept;
    memcpy(claim->failure->payload, payload, kept);
}
