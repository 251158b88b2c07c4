/* The worker's half of ring.h. */
#include "internal.h"

#include <errno.h>
#include <string.h>

/* Whether the rows are there; if not, the record or slot_of was overwritten. */
static bool fill_claim(struct rf_ring *ring, uint32_t worker, uint64_t ticket, uint32_t slot,
                       uint32_t cell, uint32_t attempt, struct rf_claim *claim)
{
    const struct rf_record *record = &ring->records[slot];
    uint8_t *base = rf_slot_base(ring, slot);
    uint32_t all = atomic_load_explicit(&record->rows, memory_order_relaxed),
             each = record->rows_per_ticket;
    uint64_t start = (uint64_t)cell * each;
    if (all > ring->geometry.rows || start >= all)
        return false;
    uint32_t first = (uint32_t)start, rows = all - first < each ? all - first : each;
    *claim = (struct rf_claim){
        .ticket = ticket,
        .batch = atomic_load_explicit(&record->batch, memory_order_relaxed),
        .epoch = atomic_load_explicit(&record->epoch, memory_order_relaxed),
        .worker = worker,
        .slot = slot,
        .cell = cell,
        .attempt = attempt,
        .version = record->version,
        .first_row = first,
        .rows = rows,
        .base = base,
        .indices = (const int64_t *)(base + ring->geometry.indices_at) + first,
        .marks = base + ring->geometry.marks_at + first,
        .failure = (struct rf_failure *)(base + ring->geometry.failures_at) + cell,
        .line = &ring->workers[worker],
        .control = ring->control,
        .claimed_ns = rf_now_ns(),
        .rows_delivered = rows};
    claim->failure->size = 0;
    claim->failure->seal = 0;
    /* What an earlier attempt saw fail is run again. */
    for (uint32_t row = 0; attempt && row < rows; row++)
        if (claim->marks[row] == RF_ROW_RAISED)
            claim->marks[row] = RF_ROW_OK;
    struct rf_worker *line = claim->line;
    atomic_store_explicit(&line->ticket, ticket, memory_order_relaxed);
    atomic_store_explicit(&line->attempt, attempt, memory_order_relaxed);
    atomic_store_explicit(&line->since_ns, (uint64_t)claim->claimed_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&line->tickets, 1, memory_order_relaxed);
    return true;
}

/* C: claim and owner in one step, so that a death between two steps cannot lose a ticket. */
static bool try_claim(struct rf_ring *ring, uint32_t worker, uint32_t stream, uint64_t batch,
                      uint32_t slot, uint32_t cell, struct rf_claim *claim)
{
    struct rf_cell *place = rf_cell_of(ring, slot, cell);
    uint64_t ticket = batch * ring->geometry.cells + cell;
    uint64_t word = atomic_load_explicit(&place->word, memory_order_relaxed);
    if (rf_word_state(word) != RF_AVAIL || rf_word_ticket(word) != (uint32_t)ticket)
        return false;
    if (stream && rf_word_owner(word) && rf_word_owner(word) != stream)
        return false;
    uint32_t attempt = rf_word_attempt(word);
    uint64_t mine = rf_word(ticket, attempt, worker, RF_CLAIMED);
    if (!atomic_compare_exchange_strong_explicit(&place->word, &word, mine, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return false;
    /* The consumer sees that it has no seal. */
    if (!fill_claim(ring, worker, ticket, slot, cell, attempt, claim)) {
        place->seal = 0;
        atomic_store_explicit(&place->word, rf_word(ticket, attempt, worker, RF_FAILED),
                              memory_order_seq_cst);
        rf_wake_consumer(ring);
        return false;
    }
    rf_populate_slot(ring, slot);
    return true;
}

/* ---- a worker that yields ---- */

void rf_set_yielding(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor)
{
    cursor->yields = true;
    /* Relaxed: workers are counted by it, and whatever the count is, some worker claims. */
    atomic_fetch_or_explicit(&ring->control->yielders[worker / 64], UINT64_C(1) << worker % 64,
                             memory_order_relaxed);
}

static uint32_t count_others_asleep(const struct rf_ring *ring)
{
    uint32_t asleep = 0;
    for (uint32_t word = 0; word * 64 < ring->geometry.ids; word++) {
        uint64_t sleep = atomic_load_explicit(&ring->control->sleepers[word], memory_order_relaxed);
        uint64_t yield = atomic_load_explicit(&ring->control->yielders[word], memory_order_relaxed);
        asleep += (uint32_t)__builtin_popcountll(sleep & ~yield);
    }
    return asleep;
}

/* How many tickets from the cursor on are AVAIL, at most one more than `most`; *first: 1 + the
 * first of them. */
static uint32_t count_available(const struct rf_ring *ring, const struct rf_cursor *cursor,
                                uint64_t bound, uint32_t most, uint64_t *first)
{
    uint32_t available = 0, cell = cursor->cell;
    *first = 0;
    for (uint64_t batch = cursor->batch; batch < bound; batch++, cell = 0) {
        uint64_t entry = rf_entry_of(ring, batch);
        uint32_t slot = (uint32_t)entry, tickets = (uint32_t)(entry >> 32);
        if (slot >= ring->geometry.slots || tickets > ring->geometry.cells)
            continue;
        for (; cell < tickets && available <= most; cell++) {
            uint64_t word =
                atomic_load_explicit(&rf_cell_of(ring, slot, cell)->word, memory_order_relaxed);
            uint64_t ticket = batch * ring->geometry.cells + cell;
            if (rf_word_state(word) == RF_AVAIL && rf_word_ticket(word) == (uint32_t)ticket &&
                !available++)
                *first = ticket + 1;
        }
    }
    return available;
}

/* Whether there are more tickets than workers that sleep, or the first was left to
 * them for long. */
static bool has_spare(struct rf_ring *ring, struct rf_cursor *cursor, uint64_t bound)
{
    uint64_t first, left = cursor->left;
    uint32_t asleep = count_others_asleep(ring);
    cursor->left = 0;
    if (!asleep || count_available(ring, cursor, bound, asleep, &first) > asleep)
        return true;
    if (!first)
        return false;
    int64_t now_ns = rf_now_ns();
    if (left != first)
        cursor->left_ns = now_ns;
    cursor->left = first;
    return now_ns - cursor->left_ns >= RF_YIELD_NS;
}

bool rf_claim_next(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor,
                   struct rf_claim *claim)
{
    struct rf_control *control = ring->control;
    uint32_t reaps = atomic_load_explicit(&control->reap_seq, memory_order_seq_cst);
    uint64_t bound = atomic_load_explicit(&control->bound, memory_order_seq_cst);
    uint64_t head = atomic_load_explicit(&control->head, memory_order_acquire);
    if (reaps != cursor->reaps || cursor->batch < head) {
        cursor->batch = head;
        cursor->cell = 0;
        cursor->reaps = reaps;
    }
    if (head <= bound && bound - head > ring->geometry.slots)
        return false; /* they were overwritten, which the consumer finds */
    if (cursor->yields && !has_spare(ring, cursor, bound))
        return false;
    for (; cursor->batch < bound; cursor->batch++, cursor->cell = 0) {
        uint64_t entry = rf_entry_of(ring, cursor->batch);
        uint32_t slot = (uint32_t)entry, tickets = (uint32_t)(entry >> 32);
        if (slot >= ring->geometry.slots || tickets > ring->geometry.cells)
            continue; /* the same */
        while (cursor->cell < tickets)
            if (try_claim(ring, worker, cursor->stream, cursor->batch, slot, cursor->cell++, claim))
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

/* Whether the worker is to claim no more. */
static bool is_over(const struct rf_ring *ring, uint32_t worker)
{
    return atomic_load_explicit(&ring->control->stop, memory_order_seq_cst) ||
           atomic_load_explicit(&ring->workers[worker].leave, memory_order_seq_cst);
}

/* Sleep on work_seq until it is another than the one seen: 0, or what rf_futex_wait() says. While
 * tickets are left to others, once they were woken, and no longer than they are left. */
static int sleep_for_work(struct rf_ring *ring, struct rf_cursor *cursor, uint32_t seen,
                          int64_t deadline_ns)
{
    _Atomic uint32_t *work_seq = &ring->control->work_seq;
    if (!cursor->left)
        return rf_futex_wait(work_seq, seen, deadline_ns);
    if (cursor->passed_seq != seen) {
        cursor->passed_seq = seen;
        rf_futex_wake(work_seq, RF_ALL);
    }
    int64_t until_ns = cursor->left_ns + RF_YIELD_NS;
    int slept = rf_futex_wait(work_seq, seen, until_ns < deadline_ns ? until_ns : deadline_ns);
    return slept == ETIMEDOUT && until_ns < deadline_ns ? 0 : slept;
}

enum rf_answer rf_claim_wait(struct rf_ring *ring, uint32_t worker, struct rf_cursor *cursor,
                             struct rf_claim *claim, int64_t deadline_ns)
{
    struct rf_control *control = ring->control;
    if (is_over(ring, worker))
        return RF_STOPPED;
    if (rf_claim_next(ring, worker, cursor, claim))
        return RF_TAKEABLE;
    struct rf_waiter waiter = rf_begin_wait(ring, true);
    enum rf_answer answer = RF_PENDING;
    while (answer == RF_PENDING && rf_look_again(ring, &waiter))
        if (rf_claim_next(ring, worker, cursor, claim))
            answer = RF_TAKEABLE;
    int slept = 0;
    set_asleep(ring, worker,
               /* Before the last look: a binder that this look misses sees the bit. */
               answer == RF_PENDING);
    while (answer == RF_PENDING && !slept) {
        uint32_t seen = atomic_load_explicit(&control->work_seq, memory_order_seq_cst);
        if (is_over(ring, worker))
            answer = RF_STOPPED;
        else if (rf_claim_next(ring, worker, cursor, claim))
            answer = RF_TAKEABLE;
        else
            slept = sleep_for_work(ring, cursor, seen, deadline_ns);
    }
    set_asleep(ring, worker, false);
    if (answer == RF_STOPPED) /* this thread may have used up the wake of another worker */
        rf_futex_wake(&control->work_seq, RF_ALL);
    atomic_fetch_add_explicit(&ring->workers[worker].wait_ns,
                              (uint64_t)(rf_now_ns() - waiter.began_ns), memory_order_relaxed);
    return answer;
}

uint32_t rf_breaks(const struct rf_ring *ring)
{
    /* L: acquire, pairs with K in rf_tell_holders(). */
    return atomic_load_explicit(&ring->control->break_seq, memory_order_acquire);
}

uint32_t rf_break_wait(struct rf_ring *ring, uint32_t seen, int64_t deadline_ns)
{
    if (rf_breaks(ring) == seen)
        rf_futex_wait(&ring->control->break_seq, seen, deadline_ns);
    return rf_breaks(ring);
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
    uint64_t busy_ns =
        (uint64_t)(claim->work_ns > 0 ? claim->work_ns : rf_now_ns() - claim->claimed_ns);
    uint64_t final = rf_word(claim->ticket, claim->attempt, claim->worker, state);
    uint64_t sum = cancelled ? 0 : rf_sum_indices(claim->indices, claim->first_row, claim->rows);
    if (state == RF_FAILED)
        sum = rf_sum_bytes(sum, claim->marks, claim->rows);
    place->busy_ns = busy_ns;
    place->rows = claim->rows_delivered;
    place->seal = rf_seal(final, claim->rows_delivered, claim->epoch, claim->version, sum);
    rf_blame_none(claim);
    atomic_store_explicit(&claim->line->since_ns, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&claim->line->busy_ns, busy_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&claim->line->samples, claim->rows, memory_order_relaxed);
    /* P: pairs with T in rf_take(). It fails only if we are taken for dead just now. */
    if (!atomic_compare_exchange_strong_explicit(&place->word, &mine, final, memory_order_seq_cst,
                                                 memory_order_relaxed))
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
    uint32_t kept =
        size < sizeof claim->failure->payload ? size : (uint32_t)sizeof claim->failure->payload;
    claim->failure->row = claim->first_row + row;
    claim->failure->size = kept;
    memcpy(claim->failure->payload, payload, kept);
    claim->failure->seal = rf_seal_failure(claim->ticket, claim->failure, claim->failure->payload);
}
