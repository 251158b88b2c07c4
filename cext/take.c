/* The consumer takes: it looks and takes, in any of its threads, each look under the take
 * lock. See await.c. */
#include "internal.h"
#include "os/wait.h"

#define FAST_NS 20000   /* a sleep and a wake take about that */
#define FASTEST_NS 3000 /* and a wake alone */

/* ---- the take lock: before the binder's; held for microseconds, never asleep or in Python ---- */

void rf_lock_taking(struct rf_ring *ring)
{
    for (unsigned attempt = 0;
         atomic_exchange_explicit(&ring->binder->take_lock, 1, memory_order_acquire); attempt++)
        rf_yield(attempt);
}

void rf_unlock_taking(struct rf_ring *ring)
{
    atomic_store_explicit(&ring->binder->take_lock, 0, memory_order_release);
}

/* ---- settings of the engine ---- */

void rf_begin(struct rf_ring *ring, int64_t epoch_id)
{
    rf_lock_taking(ring);
    ring->binder->epoch_id = epoch_id;
    ring->binder->waited_ns = 0;
    ring->binder->stalled_ns = 0;
    atomic_store_explicit(&ring->binder->border, RF_NO_BORDER, memory_order_relaxed);
    rf_unlock_taking(ring);
}

void rf_set_border(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    rf_lock_taking(ring);
    atomic_store_explicit(&binder->border,
                          atomic_load_explicit(&binder->plan_write, memory_order_relaxed),
                          memory_order_relaxed);
    rf_unlock_taking(ring);
}

void rf_set_low_water(struct rf_ring *ring, uint32_t batches)
{
    rf_lock_taking(ring);
    ring->binder->low_water = batches;
    rf_unlock_taking(ring);
}

void rf_set_due(struct rf_ring *ring, int64_t due_ns)
{
    rf_lock_taking(ring);
    ring->binder->due_ns = due_ns;
    ring->binder->looked_at = rf_head(ring);
    rf_unlock_taking(ring);
}

int64_t rf_waited_ns(struct rf_ring *ring)
{
    rf_lock_taking(ring);
    int64_t waited_ns = ring->binder->waited_ns;
    rf_unlock_taking(ring);
    return waited_ns;
}

void rf_set_waited(struct rf_ring *ring, int64_t waited_ns)
{
    rf_lock_taking(ring);
    ring->binder->waited_ns = waited_ns;
    rf_unlock_taking(ring);
}

/* ---- looking ---- */

struct rf_cell *rf_unfinished(const struct rf_ring *ring, uint64_t batch, uint32_t *number)
{
    uint32_t slot = rf_slot_of(ring, batch);
    for (uint32_t cell = rf_binding_of(ring, slot)->tickets; cell-- > 0;) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        /* T: pairs with P. */
        if (!rf_word_final(atomic_load_explicit(&place->word, memory_order_acquire))) {
            *number = cell;
            return place;
        }
    }
    return NULL;
}

uint32_t rf_stream_of_head(const struct rf_ring *ring)
{
    return rf_is_bound(ring) ? rf_binding_of(ring, rf_slot_of(ring, rf_head(ring)))->stream : 0;
}

uint32_t rf_head_stream(struct rf_ring *ring)
{
    rf_lock_taking(ring);
    uint32_t stream = rf_stream_of_head(ring);
    rf_unlock_taking(ring);
    return stream;
}

/* Whether all of this epoch's batches are taken, and the head batch is the next epoch's. */
static bool is_at_border(const struct rf_ring *ring)
{
    return atomic_load_explicit(&ring->binder->border, memory_order_relaxed) == rf_plan_taken(ring);
}

enum rf_answer rf_look_now(struct rf_ring *ring)
{
    uint32_t cell;
    bool over = is_at_border(ring);
    if (!rf_is_bound(ring))
        rf_bind(ring);
    if (rf_is_damaged(ring))
        return RF_DAMAGED;
    if (!over && rf_is_bound(ring) && !rf_unfinished(ring, rf_head(ring), &cell))
        return RF_TAKEABLE;
    if (atomic_load_explicit(&ring->binder->stop, memory_order_seq_cst))
        return RF_STOPPED;
    if (over) /* ahead of an alarm: what is not filled for it is the next epoch's */
        return RF_DRY;
    if (atomic_load_explicit(&ring->binder->alarm, memory_order_seq_cst))
        return RF_ALARMED;
    /* The plan first: a release may bind its last batch while we look. */
    bool planned = rf_is_planned(ring);
    if (rf_is_bound(ring))
        return RF_PENDING;
    if (!planned)
        return RF_DRY;
    return rf_all_held(ring) ? RF_HELD : RF_PENDING;
}

enum rf_answer rf_look(struct rf_ring *ring)
{
    if (rf_is_copy(ring))
        return RF_STOPPED;
    rf_lock_taking(ring);
    enum rf_answer answer = rf_look_now(ring);
    rf_unlock_taking(ring);
    return answer;
}

/* ---- taking ---- */

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
    /* A store takes the line away. */
    if (pace != atomic_load_explicit(&ring->control->pace, memory_order_relaxed))
        atomic_store_explicit(&ring->control->pace, pace, memory_order_relaxed);
}

/* Count how long the batch that is taken now was waited for: one that was ready was not. */
static void count_wait(struct rf_ring *ring)
{
    struct rf_binder *binder = ring->binder;
    uint64_t stalled_ns = binder->stalled_ns;
    binder->stalled_ns = 0;
    if (!(stalled_ns >> RF_WAIT_SHORTEST) ||
        !atomic_load_explicit(&binder->ledger.batches, memory_order_relaxed))
        return;
    uint32_t bucket = rf_wait_bucket(stalled_ns);
    _Atomic uint32_t *own = &binder->ledger.waits[bucket];
    uint32_t count = atomic_load_explicit(own, memory_order_relaxed) + 1;
    atomic_store_explicit(own, count, memory_order_relaxed);
    atomic_store_explicit(&ring->control->ledger.waits[bucket], count, memory_order_relaxed);
}

static struct rf_taken take_head(struct rf_ring *ring)
{
    struct rf_control *control = ring->control;
    uint64_t batch = rf_head(ring), busy_ns = 0;
    uint32_t slot = rf_slot_of(ring, batch);
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    struct rf_taken taken = {.batch = batch,
                             .place = rf_plan_taken(ring),
                             .epoch = binding->epoch,
                             .slot = slot,
                             .tickets = binding->tickets,
                             .rows_per_ticket = binding->rows_per_ticket};
    for (uint32_t cell = 0; cell < binding->tickets; cell++) {
        struct rf_cell *place = rf_cell_of(ring, slot, cell);
        /* T: pairs with P in rf_publish(). */
        uint64_t word = atomic_load_explicit(&place->word, memory_order_acquire);
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
    ring->binder->waited_ns = 0;
    learn_pace(ring, busy_ns, binding);
    struct rf_hold *hold = &ring->binder->holds[slot];
    int64_t now_ns = rf_now_ns();
    atomic_store_explicit(&hold->count, 1, memory_order_release); /* H: pairs with S in fork.c */
    atomic_store_explicit(&hold->since_ns, now_ns, memory_order_relaxed);
    if (RF_STATISTICS)
        atomic_store_explicit(&ring->records[slot].held_ns, (uint64_t)now_ns, memory_order_relaxed);
    rf_set_state(ring, slot, RF_SLOT_HELD);
    if (RF_COUNTS_WAITS)
        count_wait(ring);
    rf_count(&ring->binder->ledger.batches, &control->ledger.batches, 1);
    rf_count(&ring->binder->ledger.samples, &control->ledger.samples, taken.rows);
    atomic_store_explicit(&ring->binder->plan_taken, taken.place + 1, memory_order_relaxed);
    atomic_store_explicit(&ring->binder->head, batch + 1, memory_order_relaxed);
    atomic_store_explicit(&control->head, batch + 1, memory_order_release);
    rf_populate_slot(ring, slot);
    return taken;
}

static bool head_has_failed(const struct rf_ring *ring)
{
    uint32_t slot = rf_slot_of(ring, rf_head(ring));
    for (uint32_t cell = 0; cell < rf_binding_of(ring, slot)->tickets; cell++) {
        const struct rf_cell *place = rf_cell_of(ring, slot, cell);
        if (rf_word_state(atomic_load_explicit(&place->word, memory_order_relaxed)) == RF_FAILED)
            return true;
    }
    return false;
}

static enum rf_answer take(struct rf_ring *ring, struct rf_taken *taken)
{
    *taken = take_head(ring);
    return taken->damaged ? RF_DAMAGED : RF_TAKEABLE;
}

static bool is_due(const struct rf_ring *ring)
{
    const struct rf_binder *binder = ring->binder;
    bool later =
        binder->due_ns > 0 && rf_head(ring) != binder->looked_at && rf_now_ns() >= binder->due_ns;
    return binder->due_ns < 0 || later;
}

/* What rf_next() answers, but that it takes nothing. */
static enum rf_answer look_on(struct rf_ring *ring, const struct rf_terms *terms)
{
    const struct rf_binder *binder = ring->binder;
    if (atomic_load_explicit(&binder->stop, memory_order_relaxed)) /* also where a batch is ready */
        return RF_STOPPED;
    if (terms->epoch_id != binder->epoch_id)
        return RF_STALE;
    if (is_due(ring))
        return RF_DUE;
    bool runs_low = binder->low_water && rf_planned(ring) <= binder->low_water;
    if (runs_low || (terms->kept && rf_left(ring) <= terms->kept))
        return RF_PLAN;
    enum rf_answer answer = rf_look_now(ring);
    if (answer != RF_TAKEABLE)
        return answer;
    if (head_has_failed(ring))
        return RF_GAPS;
    return terms->room == RF_ANY_ROOM || rf_leaves_room(ring, terms->room == RF_OWN_ROOM)
               ? RF_TAKEABLE
               : RF_CROWDED;
}

enum rf_answer rf_next(struct rf_ring *ring, const struct rf_terms *terms, struct rf_taken *taken)
{
    if (rf_is_copy(ring))
        return RF_STOPPED;
    rf_lock_taking(ring);
    enum rf_answer answer = look_on(ring, terms);
    if (answer == RF_TAKEABLE)
        answer = take(ring, taken);
    rf_unlock_taking(ring);
    return answer;
}

enum rf_answer rf_take(struct rf_ring *ring, struct rf_taken *taken)
{
    if (rf_is_copy(ring))
        return RF_STOPPED;
    rf_lock_taking(ring);
    enum rf_answer answer = rf_look_now(ring);
    if (answer == RF_TAKEABLE)
        answer = take(ring, taken);
    rf_unlock_taking(ring);
    return answer;
}
