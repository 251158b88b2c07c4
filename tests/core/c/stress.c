#define _GNU_SOURCE
#include "stress.h"

#include "internal.h"
#include "check.h"
#include "place.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- numbers by chance ---- */

uint64_t mixed(uint64_t number) /* the finalizer of SplitMix64 */
{
    number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
    return number ^ number >> 31;
}

uint64_t draw(struct chance *chance)
{
    chance->state += UINT64_C(0x9e3779b97f4a7c15);
    return mixed(chance->state);
}

bool one_in(struct chance *chance, uint32_t of) { return draw(chance) % of == 0; }

static uint64_t leisure; /* how seldom they linger: in a hurry, the pace is fast */

void linger(struct chance *chance)
{
    uint64_t drawn = draw(chance) % leisure;
    if (drawn == 0)
        usleep((useconds_t)(draw(chance) % 300));
    else if (drawn < 6)
        sched_yield();
}

void stress_complain(struct stress *stress, const char *what, uint64_t got, uint64_t expected)
{
    if (atomic_fetch_add(&stress->broken, 1) < 20)
        fprintf(stderr, "%s is %" PRIu64 ", expected %" PRIu64 "\n", what, got, expected);
}

/* ---- what rows contain ---- */

static uint64_t content_of(int64_t index, uint32_t word)
{
    return mixed((uint64_t)index * STRESS_WORDS + word + 1);
}
static bool is_raising(int64_t index) { return mixed((uint64_t)index + 11) % 61 == 0; }
static bool is_poison(int64_t index) { return mixed((uint64_t)index + 13) % 509 == 0; }

static uint64_t *row_of(uint8_t *base, uint32_t row)
{
    return (uint64_t *)(void *)base + (size_t)row * STRESS_WORDS;
}

/* ---- a worker's work ---- */

/* Write one row in two steps. Its last word says between them who writes, so that a second
 * writer is noticed. */
static bool write_row(struct stress *stress, const struct rf_claim *claim, uint32_t row,
                      struct chance *chance, bool (*dies)(struct chance *chance, bool poison))
{
    volatile uint64_t *words = row_of(claim->base, claim->first_row + row);
    int64_t index = claim->indices[row];
    words[STRESS_WORDS - 1] = claim->worker;
    for (uint32_t word = 0; word < STRESS_WORDS - 1; word++)
        words[word] = content_of(index, word);
    if (dies(chance, is_poison(index)))
        return false;
    linger(chance);
    if (words[STRESS_WORDS - 1] != claim->worker)
        stress_complain(stress, "the writer of a row", words[STRESS_WORDS - 1], claim->worker);
    words[STRESS_WORDS - 1] = content_of(index, STRESS_WORDS - 1);
    return true;
}

enum fate stress_fill(struct stress *stress, struct rf_claim *claim, struct chance *chance,
                      bool (*dies)(struct chance *chance, bool poison))
{
    for (uint32_t row = 0; row < claim->rows; row++) {
        if (dies(chance, false))
            return FATE_DEAD;
        if (rf_cancelled(claim))
            return FATE_CANCELLED;
        if (claim->marks[row] == RF_ROW_KILLED)
            continue;
        rf_blame(claim, row);
        if (!write_row(stress, claim, row, chance, dies))
            return FATE_DEAD;
        if (is_raising(claim->indices[row]))
            rf_fail(claim, row, &claim->indices[row], sizeof *claim->indices);
    }
    return dies(chance, false) ? FATE_DEAD : FATE_FILLED;
}

void stress_reap(struct stress *stress, uint32_t worker)
{
    struct rf_reaped reaped = rf_reap(stress->ring, worker, true);
    atomic_fetch_add(&stress->deaths, 1);
    if (reaped.claims > 1)
        stress_complain(stress, "claims of one worker", reaped.claims, 1);
    if (reaped.given_up)
        atomic_store(&stress->given_up[reaped.index], 1);
}

/* ---- checking ---- */

/* The reaper notes what was given up just after it has made the rest available: wait
 * for its note. */
static bool was_given_up(struct stress *stress, int64_t index, bool expected)
{
    for (uint32_t turn = 0; expected && turn < 5000 && !atomic_load(&stress->given_up[index]);
         turn++)
        usleep(1000);
    return atomic_load(&stress->given_up[index]) != 0;
}

static void check_row(struct stress *stress, const struct rf_taken *taken, uint32_t row,
                      int64_t index)
{
    uint8_t mark = rf_slot_marks(stress->ring, taken->slot)[row];
    const uint64_t *words = row_of(rf_slot_base(stress->ring, taken->slot), row);
    bool given_up = was_given_up(stress, index, mark == RF_ROW_KILLED);
    uint8_t alive = is_raising(index) ? RF_ROW_RAISED : RF_ROW_OK;
    bool forgotten = index < stress->fenced_below && mark != RF_ROW_KILLED;
    uint8_t expected = given_up && !forgotten ? RF_ROW_KILLED : alive;
    if (mark != expected || (is_poison(index) && mark != RF_ROW_KILLED))
        stress_complain(stress, "a row's mark", mark, expected);
    for (uint32_t word = 0; mark != RF_ROW_KILLED && word < STRESS_WORDS; word++)
        if (words[word] != content_of(index, word))
            stress_complain(stress, "a word of a row", words[word], content_of(index, word));
    if (taken->failed < (mark != RF_ROW_OK))
        stress_complain(stress, "failed", taken->failed, 1);
}

static void check_failures(struct stress *stress, const struct rf_taken *taken, int64_t first)
{
    for (uint32_t cell = 0; cell < taken->tickets; cell++) {
        const struct rf_failure *failure = rf_slot_failure(stress->ring, taken->slot, cell);
        int64_t index = 0;
        if (failure->size == 0)
            continue;
        memcpy(&index, failure->payload, sizeof index);
        if (failure->size != sizeof index || index != first + failure->row || !is_raising(index))
            stress_complain(stress, "the index in a payload", (uint64_t)index,
                            (uint64_t)first + failure->row);
    }
}

void stress_check(struct stress *stress, const struct rf_taken *taken, int64_t first, uint32_t rows)
{
    if (taken->rows != rows)
        stress_complain(stress, "rows of a batch", taken->rows, rows);
    for (uint32_t row = 0; row < rows; row++) {
        int64_t index = rf_slot_indices(stress->ring, taken->slot)[row];
        if (index != first + row)
            stress_complain(stress, "a row's index", (uint64_t)index, (uint64_t)first + row);
        check_row(stress, taken, row, first + row);
    }
    check_failures(stress, taken, first);
    atomic_fetch_add(&stress->checked, 1);
}

/* ---- releasing, from another thread ---- */

static uint64_t sum_of(const struct rf_ring *ring, uint32_t slot)
{
    uint64_t sum = 0;
    for (uint32_t row = 0; row < STRESS_ROWS; row++)
        for (uint32_t word = 0; word < STRESS_WORDS; word++)
            sum = mixed(sum + row_of(rf_slot_base(ring, slot), row)[word]);
    return sum;
}

static void lease(struct stress *stress, uint32_t slot)
{
    pthread_mutex_lock(&stress->leases.lock);
    stress->leases.slots[stress->leases.count++] = slot;
    pthread_mutex_unlock(&stress->leases.lock);
}

/* Take one of the leases out, by chance; RF_NO_SLOT where there is none. */
static uint32_t return_one(struct stress *stress, struct chance *chance)
{
    uint32_t slot = RF_NO_SLOT;
    pthread_mutex_lock(&stress->leases.lock);
    if (stress->leases.count > 0) {
        uint32_t *place = &stress->leases.slots[draw(chance) % stress->leases.count];
        slot = *place;
        *place = stress->leases.slots[--stress->leases.count];
    }
    pthread_mutex_unlock(&stress->leases.lock);
    return slot;
}

/* Drop a hold; until then the slot must not have changed. */
static void drop_unchanged(struct stress *stress, uint32_t slot, struct chance *chance)
{
    uint64_t before = sum_of(stress->ring, slot);
    linger(chance);
    if (sum_of(stress->ring, slot) != before)
        stress_complain(stress, "the sum of a held slot", sum_of(stress->ring, slot), before);
    rf_drop(stress->ring, slot);
}

static void *release(void *argument)
{
    struct stress *stress = argument;
    struct chance chance = {mixed(stress->seed + 2)};
    for (;;) {
        bool over = atomic_load(&stress->over);
        uint32_t slot = return_one(stress, &chance);
        rf_check(stress->ring); /* beside the thread that takes, which would be told of damage */
        if (slot == RF_NO_SLOT && over)
            return NULL;
        if (slot == RF_NO_SLOT)
            usleep(50);
        else
            drop_unchanged(stress, slot, &chance);
    }
}

/* ---- the consumer ---- */

struct expected { /* what is planned and not taken, oldest first */
    struct {
        int64_t first;
        uint32_t rows;
    } batches[64];
    uint64_t write, read;
    /* left: batches of the epoch that are not planned yet; batch: the next one's number. */
    uint64_t epoch, left, batch;
    int64_t next_index;
};

static void begin_epoch(struct expected *expected, struct chance *chance)
{
    expected->epoch += 1;
    expected->left = 1 + draw(chance) % (one_in(chance, 2) ? 4 : 60);
}

static void plan_ahead(struct stress *stress, struct expected *expected, struct chance *chance)
{
    for (; expected->left > 0 && rf_plan_room(stress->ring) > 0; expected->left--) {
        uint32_t rows = 1 + (uint32_t)(draw(chance) % STRESS_ROWS);
        int64_t indices[STRESS_ROWS];
        for (uint32_t row = 0; row < rows; row++)
            indices[row] = expected->next_index + row;
        if (!rf_plan(stress->ring, indices, rows, expected->epoch, 0))
            stress_complain(stress, "planned", 0, 1);
        expected->batches[expected->write % 64].first = expected->next_index;
        expected->batches[expected->write++ % 64].rows = rows;
        expected->next_index += rows;
    }
    rf_bind(stress->ring);
}

static void break_off(struct stress *stress, struct expected *expected, struct chance *chance)
{
    rf_cancel(stress->ring);
    expected->batch = atomic_load(&stress->ring->control->head);
    expected->read = expected->write;
    begin_epoch(expected, chance);
}

/* Have all that is bound run again elsewhere, as if one of its workers could not be ended. */
static void fence(struct stress *stress, struct expected *expected)
{
    rf_requeue(stress->ring);
    stress->fenced_below = expected->next_index;
    expected->batch = atomic_load(&stress->ring->control->head);
}

/* Have more slots or fewer; those that are parked already give their memory back. */
static void resize(struct stress *stress, struct chance *chance)
{
    struct rf_ring *ring = stress->ring;
    rf_set_open(ring, 1 + (uint32_t)(draw(chance) % ring->geometry.slots));
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        if (rf_slot_state(ring, slot) == RF_SLOT_PARKED && rf_give_back(ring, slot) != 0)
            stress_complain(stress, "giving back slot", slot, 0);
}

/* Hand the slot on, in one or two leases, or drop it here. */
static void part_with(struct stress *stress, uint32_t slot, struct chance *chance)
{
    if (one_in(chance, 4)) {
        rf_hold(stress->ring, slot);
        lease(stress, slot);
    }
    if (one_in(chance, 3))
        drop_unchanged(stress, slot, chance);
    else
        lease(stress, slot);
}

static void take_one(struct stress *stress, struct expected *expected, struct chance *chance)
{
    struct rf_taken taken = taken_of(stress->ring);
    if (taken.batch != expected->batch++)
        stress_complain(stress, "a batch's number", taken.batch, expected->batch - 1);
    if (taken.epoch != expected->epoch)
        stress_complain(stress, "a batch's epoch", taken.epoch, expected->epoch);
    uint64_t place = expected->read++ % 64;
    stress_check(stress, &taken, expected->batches[place].first, expected->batches[place].rows);
    part_with(stress, taken.slot, chance);
}

/* Take the next batch, or begin the next epoch where this one is delivered; false where
 * neither can be. */
static bool consume_one(struct stress *stress, struct expected *expected, struct chance *chance)
{
    enum rf_answer answer = rf_wait_head(stress->ring, 0, rf_now_ns() + STRESS_PATIENCE_NS);
    bool is_over = expected->left == 0 && expected->read == expected->write;
    if (answer != (is_over ? RF_DRY : RF_TAKEABLE)) {
        stress_complain(stress, "the answer of rf_wait_head()", answer,
                        is_over ? RF_DRY : RF_TAKEABLE);
        return false;
    }
    if (is_over)
        begin_epoch(expected, chance);
    else
        take_one(stress, expected, chance);
    return true;
}

void stress_consume(struct stress *stress)
{
    struct chance chance = {mixed(stress->seed + 1)};
    struct expected expected = {0};
    pthread_t releaser;
    pthread_create(&releaser, NULL, release, stress);
    begin_epoch(&expected, &chance);
    while (rf_now_ns() < stress->end_ns && expected.next_index < STRESS_INDICES - 64 &&
           !stress->broken) {
        plan_ahead(stress, &expected, &chance);
        if (!consume_one(stress, &expected, &chance))
            break;
        linger(&chance);
        if (one_in(&chance, 30))
            break_off(stress, &expected, &chance);
        if (one_in(&chance, 30))
            fence(stress, &expected);
        if (one_in(&chance, 30))
            resize(stress, &chance);
    }
    rf_stop(stress->ring);
    atomic_store(&stress->over, true);
    pthread_join(releaser, NULL);
}

/* ---- begin and end ---- */

void stress_begin(struct stress *stress, int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 3;
    *stress =
        (struct stress){.seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)rf_now_ns()};
    printf("seed %" PRIu64 "\n", stress->seed);
    fflush(stdout);
    pthread_mutex_init(&stress->leases.lock, NULL);
    struct chance chance = {mixed(stress->seed)};
    uint32_t slots = 2 + (uint32_t)(draw(&chance) % 3), cells = 1 + (uint32_t)(draw(&chance) % 4);
    uint32_t workers = 2 + (uint32_t)(draw(&chance) % (STRESS_WORKERS - 1));
    struct rf_geometry geometry = geometry_of(slots, cells, workers, STRESS_ROWS, STRESS_WORDS * 8);
    geometry.spin_ns = one_in(&chance, 2) ? 20000 : 0;
    leisure = one_in(&chance, 2) ? 4096 : 64;
    int why = 0;
    stress->ring = open_as(&geometry, &why);
    if (!stress->ring || rf_become_consumer(stress->ring, STRESS_CAPACITY, 3) != 0)
        abort();
    rf_delist(stress->ring); /* forked workers write into the very slots */
    stress->given_up =
        mmap(NULL, STRESS_INDICES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stress->end_ns = rf_now_ns() + (int64_t)(seconds * 1e9);
}

int stress_end(struct stress *stress, const char *program)
{
    struct rf_ring *ring = stress->ring;
    rf_cancel(ring);
    rf_set_open(ring, ring->geometry.slots);
    if (ring->binder->free_count != ring->geometry.slots)
        stress_complain(stress, "free slots at the end", ring->binder->free_count,
                        ring->geometry.slots);
    if (!stress->broken && stress->checked == 0)
        stress_complain(stress, "batches checked", 0, 1);
    printf("%" PRIu64 " batches checked, %" PRIu64
           " workers reaped; %u slots of %u cells, %u workers, spinning %u ns\n",
           stress->checked, stress->deaths, ring->geometry.slots, ring->geometry.cells,
           ring->geometry.workers, ring->geometry.spin_ns);
    munmap((void *)stress->given_up, STRESS_INDICES);
    rf_unreference(ring);
    check_passed = !stress->broken;
    check_failed = stress->broken != 0;
    return check_end(program);
}
