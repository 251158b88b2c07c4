#include "ring.h"

#include "binder.h"
#include "pages.h"
#include "wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FAST_NS 20000   /* a sleep and a wake take about that */
#define FASTEST_NS 3000 /* and a wake alone */

/* ---- making and keeping ---- */

void rf_format(struct rf_control *control, const struct rf_geometry *geometry)
{
    control->geometry = *geometry;
    control->control_size = (uint32_t)rf_control_size(geometry->slots, geometry->cells, geometry->ids);
    control->seal = rf_seal_geometry(geometry);
    control->abi = RF_ABI;
    control->magic = RF_MAGIC;
}

static bool lies_in(uint64_t size, uint64_t at, uint64_t bytes) { return at <= size && bytes <= size - at; }

static bool fits(const struct rf_geometry *geometry, uint64_t control_size, uint64_t slots_size)
{
    if (!geometry->slots || !geometry->cells || !geometry->workers || !geometry->rows || !geometry->slot_size ||
        geometry->cells > RF_MAX_CELLS || geometry->workers > RF_MAX_WORKERS || geometry->slots > RF_CONTROL_MAX ||
        geometry->ids < geometry->workers || geometry->ids > RF_MAX_IDS)
        return false;
    uint64_t size = geometry->slot_size;
    if (size % RF_FIELD_ALIGN || geometry->indices_at % sizeof(int64_t) || geometry->failures_at % sizeof(uint64_t))
        return false;
    return rf_control_size(geometry->slots, geometry->cells, geometry->ids) <= control_size &&
           size <= slots_size / geometry->slots &&
           lies_in(size, geometry->indices_at, geometry->rows * sizeof(int64_t)) &&
           lies_in(size, geometry->marks_at, geometry->rows) &&
           lies_in(size, geometry->failures_at, (uint64_t)geometry->cells * RF_FAILURE_SIZE);
}

static void place(struct rf_ring *ring)
{
    uint8_t *base = (uint8_t *)ring->control;
    uint32_t slots = ring->geometry.slots, ids = ring->geometry.ids;
    ring->workers = (struct rf_worker *)(base + rf_workers_at());
    ring->records = (struct rf_record *)(base + rf_records_at(ids));
    ring->slot_of = (_Atomic uint64_t *)(base + rf_slot_of_at(slots, ids));
    ring->cells = (struct rf_cell *)(base + rf_cells_at(slots, ids));
}

static void destroy(struct rf_ring *ring)
{
    if (ring->binder) {
        rf_delist(ring);
        free(ring->binder->holds);
        free(ring->binder->free_slots);
        free(ring->binder->deaths);
        free(ring->binder->bindings);
        free(ring->binder->slot_of);
        for (uint32_t place = 0; ring->binder->planned && place < ring->binder->capacity; place++)
            free(ring->binder->planned[place].saved);
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
    atomic_store_explicit(&ring->keep_ns, RF_KEEP_NS, memory_order_relaxed);
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
        ring->control->control_size != control_size || ring->control->seal != rf_seal_geometry(&ring->geometry) ||
        !fits(&ring->geometry, control_size, slots_size))
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

uint8_t *rf_slot_base(const struct rf_ring *ring, uint32_t slot)
{
    return ring->slots + slot * ring->geometry.slot_size;
}

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

void rf_populate_slot(struct rf_ring *ring, uint32_t slot)
{
    if (atomic_load_explicit(&ring->populated[slot], memory_order_relaxed))
        return;
    rf_populate(rf_slot_base(ring, slot), ring->geometry.slot_size);
    atomic_store_explicit(&ring->populated[slot], 1, memory_order_relaxed);
}

int rf_give_back(struct rf_ring *ring, uint32_t slot)
{
    rf_lock(ring->binder);
    bool kept = rf_keep_indices(ring, slot);
    rf_unlock(ring);
    if (!kept)
        return ENOMEM;
    atomic_store_explicit(&ring->populated[slot], 0, memory_order_relaxed);
    return rf_unpopulate(rf_slot_base(ring, slot), ring->geometry.slot_size);
}

/* ---- the consumer ---- */

/* The last cell of the batch that is not final, or NULL. The last, because cells are claimed in order: when it
 * is done, the others mostly are, and the consumer is woken once a batch. */
static struct rf_cell *unfinished(const struct rf_ring *ring, uint64_t batch, uint32_t *number)
{
    uint32_t slot = rf_slot_of(ring, batch);
    for (uint32_t cell = rf_binding_of(ring, slot)->tickets; cell-- > 0;) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        if (!rf_word_final(atomic_load_explicit(&place->word, memory_order_acquire))) { /* T: pairs with P */
            *number = cell;
            return place;
        }
    }
    return NULL;
}

bool rf_has_room(const struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        if (state == RF_SLOT_FREE || state == RF_SLOT_BOUND)
            return true;
    }
    return false;
}

bool rf_leaves_room(const struct rf_ring *ring, bool lets_go)
{
    uint32_t room = 0, held = 0;
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        enum rf_slot_state state = rf_slot_state(ring, slot);
        room += state == RF_SLOT_FREE || state == RF_SLOT_BOUND;
        held += state == RF_SLOT_HELD;
        if (room > 1)
            return true;
    }
    return lets_go && held == 1;
}

static bool all_held(const struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        if (rf_slot_state(ring, slot) != RF_SLOT_HELD && rf_slot_state(ring, slot) != RF_SLOT_PARKED)
            return false;
    return true; /* the first is never parked */
}

static bool is_bound(const struct rf_ring *ring) { return rf_head(ring) < rf_bound(ring); }

uint32_t rf_head_lane(const struct rf_ring *ring)
{
    return is_bound(ring) ? rf_binding_of(ring, rf_slot_of(ring, rf_head(ring)))->lane : 0;
}

enum rf_answer rf_look(struct rf_ring *ring)
{
    uint32_t cell;
    if (!is_bound(ring))
        rf_bind(ring);
    if (rf_is_damaged(ring))
        return RF_DAMAGED;
    if (is_bound(ring) && !unfinished(ring, rf_head(ring), &cell))
        return RF_TAKEABLE;
    if (atomic_load_explicit(&ring->binder->stop, memory_order_seq_cst))
        return RF_STOPPED;
    if (atomic_load_explicit(&ring->binder->alarm, memory_order_seq_cst))
        return RF_ALARMED;
    /* The plan first: a release may bind its last batch while we look. */
    bool planned = rf_is_planned(ring);
    if (is_bound(ring))
        return RF_PENDING;
    if (!planned)
        return RF_DRY;
    return all_held(ring) ? RF_HELD : RF_PENDING;
}

enum purpose { FOR_HEAD, FOR_SLOT, FOR_ROOM }; /* of a sleep; FOR_SLOT: only while the head batch has no slot */

/* Whether something has come that the consumer would sleep for: in `place`, or, if it is NULL, in a slot. */
static bool has_news(struct rf_ring *ring, const struct rf_cell *place, enum purpose purpose)
{
    if (atomic_load_explicit(&ring->binder->alarm, memory_order_seq_cst) ||
        atomic_load_explicit(&ring->binder->stop, memory_order_seq_cst))
        return true;
    if (place)
        return rf_word_final(atomic_load_explicit(&place->word, memory_order_seq_cst));
    rf_bind(ring);
    return is_bound(ring) || (purpose == FOR_ROOM && rf_has_room(ring));
}

/* Sleep once, until the next look would differ. What comes before our announcement, has_news() sees; what comes after
 * it bumps news_seq, on which we sleep. */
static int sleep_once(struct rf_ring *ring, enum purpose purpose, int64_t deadline_ns)
{
    struct rf_control *control = ring->control;
    uint64_t head = rf_head(ring);
    uint32_t cell = 0;
    bool bound = is_bound(ring);
    struct rf_cell *place = bound ? unfinished(ring, head, &cell) : NULL;
    if (bound && (!place || purpose != FOR_HEAD))
        return 0;
    if (RF_STATISTICS && purpose != FOR_ROOM &&
        !atomic_load_explicit(&control->wait_ns, memory_order_relaxed)) /* not a later slice */
        atomic_store_explicit(&control->wait_ns, (uint64_t)rf_now_ns(), memory_order_relaxed);
    uint64_t wait = bound ? head * ring->geometry.cells + cell + 1 : RF_WAIT_FREE;
    atomic_store_explicit(&control->consumer_wait, wait, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(&control->news_seq, memory_order_seq_cst);
    if (place && rf_word_state(atomic_load_explicit(&place->word, memory_order_relaxed)) == RF_AVAIL)
        rf_wake_claimers(ring);
    int slept = has_news(ring, place, purpose) ? 0 : rf_futex_wait(&control->news_seq, seen, deadline_ns);
    atomic_store_explicit(&control->consumer_wait, RF_WAIT_NONE, memory_order_relaxed);
    return slept;
}

enum rf_answer rf_wait_head(struct rf_ring *ring, int64_t deadline_ns)
{
    struct rf_waiter waiter = rf_begin_wait(ring, false);
    for (bool first = true;; first = false) {
        enum rf_answer answer = rf_look(ring);
        if (answer != RF_PENDING && answer != RF_HELD)
            return answer;
        if (answer == RF_PENDING && first)
            rf_wake_another(ring);
        if (answer == RF_PENDING && rf_look_again(ring, &waiter))
            continue;
        if (sleep_once(ring, FOR_HEAD, deadline_ns)) /* a signal, or the deadline */
            return rf_look(ring);
    }
}

enum rf_answer rf_wait_slot(struct rf_ring *ring, int64_t deadline_ns)
{
    enum rf_answer answer = rf_look(ring);
    for (; answer == RF_HELD; answer = rf_look(ring))
        if (sleep_once(ring, FOR_SLOT, deadline_ns)) /* a signal, or the deadline */
            return rf_look(ring);
    return answer;
}

/* Relaxed: what woke us has been seen in has_news(). */
static bool is_disturbed(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->stop, memory_order_relaxed) ||
           atomic_load_explicit(&ring->binder->alarm, memory_order_relaxed);
}

bool rf_wait_room(struct rf_ring *ring, int64_t deadline_ns)
{
    while (!rf_has_room(ring) && !is_disturbed(ring))
        if (sleep_once(ring, FOR_ROOM, deadline_ns)) /* a signal, or the deadline */
            return false;
    return true;
}

static void learn_pace(struct rf_ring *ring, uint64_t busy_ns, const struct rf_binding *binding)
{
    struct rf_binder *binder = ring->binder;
    uint64_t now = busy_ns / binding->rows + 1; /* never 0, which means unknown */
    uint64_t mean = atomic_load_explicit(&binder->row_ns, memory_order_relaxed);
    mean = mean ? (3 * mean + now) / 4 : now;
    atomic_store_explicit(&binder->row_ns, mean, memory_order_relaxed);
    uint64_t ticket_ns = mean * binding->rows_per_ticket;
    uint32_t pace = !ring->geometry.spin_ns || ticket_ns >= FAST_NS ? 0
                    : ticket_ns < FASTEST_NS                        ? RF_PACE_FASTEST
                                                                    : RF_PACE_FAST;
    if (pace != atomic_load_explicit(&ring->control->pace, memory_order_relaxed)) /* a store takes the line away */
        atomic_store_explicit(&ring->control->pace, pace, memory_order_relaxed);
}

struct rf_taken rf_take(struct rf_ring *ring)
{
    struct rf_control *control = ring->control;
    uint64_t batch = rf_head(ring), busy_ns = 0;
    uint32_t slot = rf_slot_of(ring, batch);
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    struct rf_taken taken = {.batch = batch,
                             .epoch = binding->epoch,
                             .slot = slot,
                             .tickets = binding->tickets,
                             .rows_per_ticket = binding->rows_per_ticket};
    for (uint32_t cell = 0; cell < binding->tickets; cell++) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        uint64_t word = atomic_load_explicit(&place->word, memory_order_acquire); /* T: pairs with P in rf_publish() */
        uint32_t rows = place->rows;
        if (!rf_is_sound(ring, slot, cell, word, rows)) {
            taken.damaged = true;
            return taken;
        }
        taken.failed_cells |= (uint64_t)(rf_word_state(word) == RF_FAILED) << cell;
        taken.rows += rows;
        busy_ns += place->busy_ns;
        atomic_store_explicit(&place->word, word & ~UINT64_C(0xf),
                              memory_order_relaxed); /* EMPTY; B orders the rebind */
    }
    taken.failed = taken.failed_cells != 0;
    learn_pace(ring, busy_ns, binding);
    struct rf_hold *hold = &ring->binder->holds[slot];
    int64_t now_ns = rf_now_ns();
    atomic_store_explicit(&hold->count, 1, memory_order_release); /* H: pairs with S in fork.c */
    atomic_store_explicit(&hold->since_ns, now_ns, memory_order_relaxed);
    if (RF_STATISTICS)
        atomic_store_explicit(&ring->records[slot].held_ns, (uint64_t)now_ns, memory_order_relaxed);
    rf_set_state(ring, slot, RF_SLOT_HELD);
    rf_count(&ring->binder->ledger.batches, &control->ledger.batches, 1);
    rf_count(&ring->binder->ledger.samples, &control->ledger.samples, taken.rows);
    uint64_t place = atomic_load_explicit(&ring->binder->plan_taken, memory_order_relaxed);
    atomic_store_explicit(&ring->binder->plan_taken, place + 1, memory_order_relaxed);
    atomic_store_explicit(&ring->binder->head, batch + 1, memory_order_relaxed);
    atomic_store_explicit(&control->head, batch + 1, memory_order_release);
    rf_populate_slot(ring, slot);
    return taken;
}

bool rf_head_has_failed(const struct rf_ring *ring)
{
    uint32_t slot = rf_slot_of(ring, rf_head(ring));
    for (uint32_t cell = 0; cell < rf_binding_of(ring, slot)->tickets; cell++) {
        const struct rf_cell *place = rf_cell_of(ring, slot, cell);
        if (rf_word_state(atomic_load_explicit(&place->word, memory_order_relaxed)) == RF_FAILED)
            return true;
    }
    return false;
}

enum rf_answer rf_take_ready(struct rf_ring *ring, struct rf_taken *taken)
{
    if (rf_is_copy(ring) || atomic_load_explicit(&ring->binder->stop, memory_order_relaxed))
        return RF_STOPPED;
    enum rf_answer answer = rf_look(ring);
    if (answer != RF_TAKEABLE)
        return answer;
    if (rf_head_has_failed(ring))
        return RF_ALARMED;
    *taken = rf_take(ring);
    return taken->damaged ? RF_DAMAGED : RF_TAKEABLE;
}

/* ---- looking on ---- */

struct rf_slot_report rf_report_slot(const struct rf_ring *ring, uint32_t slot)
{
    const struct rf_cell *cells = rf_cell_of(ring, slot, 0);
    struct rf_slot_report report = rf_read_slot(&ring->records[slot], cells, ring->geometry.cells);
    if (ring->binder) {
        const struct rf_hold *hold = &ring->binder->holds[slot];
        report.state = rf_slot_state(ring, slot);
        report.held_ns = (uint64_t)atomic_load_explicit(&hold->since_ns, memory_order_relaxed);
    }
    return report;
}

struct rf_worker_report rf_report_worker(const struct rf_ring *ring, uint32_t worker)
{
    return rf_read_worker(&ring->workers[worker]);
}

struct rf_consumer_report rf_report_consumer(const struct rf_ring *ring)
{
    if (!ring->binder)
        return rf_read_consumer(ring->control, &ring->control->ledger);
    struct rf_consumer_report report = rf_read_consumer(ring->control, &ring->binder->ledger);
    report.open_slots = rf_open_slots(ring);
    report.stopped = atomic_load_explicit(&ring->binder->stop, memory_order_relaxed) != 0;
    return report;
}
