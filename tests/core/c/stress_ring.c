/* Threads as workers. They abandon their claims at every step, sometimes between a publish and its
 * wake; a thread joins the dead, reaps their ids and starts others in their place. For TSan, ASan
 * and UBSan.
 *
 *     stress_ring [seconds] [seed]
 */
#define _GNU_SOURCE
#include "check.h"
#include "stress.h"

struct worker {
    struct stress *stress;
    uint32_t number;
    uint64_t lives;
    _Atomic bool ended, dead;
    pthread_t thread;
};

static struct worker workers[STRESS_WORKERS];

/* ---- deaths ---- */

static bool dies_by_chance(struct chance *chance, bool poison)
{
    linger(chance);
    return poison || one_in(chance, 300);
}

static _Thread_local bool dies_before_wake, died_before_wake;

void __real_rf_futex_wake(_Atomic uint32_t *address, int count);
void __wrap_rf_futex_wake(_Atomic uint32_t *address, int count);

void __wrap_rf_futex_wake(_Atomic uint32_t *address, int count)
{
    died_before_wake |= dies_before_wake;
    if (!dies_before_wake)
        __real_rf_futex_wake(address, count);
}

/* Publish; true where the worker ended before it could wake the consumer. */
static bool publish_and_die(struct stress *stress, const struct rf_claim *claim, bool cancelled,
                            struct chance *chance)
{
    dies_before_wake = one_in(chance, 20);
    died_before_wake = false;
    rf_publish(stress->ring, claim, cancelled);
    dies_before_wake = false;
    return died_before_wake;
}

/* ---- lives ---- */

/* Work until the ring stops, or until death. */
static bool live(struct worker *worker)
{
    struct stress *stress = worker->stress;
    struct chance chance = {mixed(stress->seed + 100 * worker->lives + worker->number)};
    struct rf_cursor cursor = {0};
    for (;;) {
        struct rf_claim claim;
        enum rf_answer answer = rf_claim_wait(stress->ring, worker->number, &cursor, &claim,
                                              rf_now_ns() + STRESS_PATIENCE_NS);
        if (answer == RF_STOPPED)
            return true;
        if (answer != RF_TAKEABLE)
            continue;
        enum fate fate = stress_fill(stress, &claim, &chance, dies_by_chance);
        if (fate == FATE_DEAD || publish_and_die(stress, &claim, fate == FATE_CANCELLED, &chance))
            return false;
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    atomic_store(&worker->dead, !live(worker));
    atomic_store(&worker->ended, true);
    return NULL;
}

static void start(struct worker *worker)
{
    worker->lives += 1;
    atomic_store(&worker->ended, false);
    pthread_create(&worker->thread, NULL, work, worker);
}

/* What others may look at, at any time. */
static void look_on(struct rf_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        rf_slot_state(ring, slot);
        rf_report_slot(ring, slot);
    }
    for (uint32_t number = 0; number < ring->geometry.workers; number++)
        rf_report_worker(ring, number);
}

/* Join, reap and replace those who end, until all have ended because the ring stopped. */
static void *watch(void *argument)
{
    struct stress *stress = argument;
    uint32_t left = stress->ring->geometry.workers;
    while (left > 0) {
        for (uint32_t number = 0; number < stress->ring->geometry.workers; number++) {
            struct worker *worker = &workers[number];
            if (!atomic_exchange(&worker->ended, false))
                continue;
            pthread_join(worker->thread, NULL);
            stress_reap(stress, number);
            left -= !worker->dead;
            if (worker->dead)
                start(worker);
        }
        look_on(stress->ring);
        usleep(100);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static struct stress stress;
    check_begin();
    stress_begin(&stress, argc, argv);
    for (uint32_t number = 0; number < stress.ring->geometry.workers; number++) {
        workers[number] = (struct worker){.stress = &stress, .number = number};
        start(&workers[number]);
    }
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch, &stress);
    stress_consume(&stress);
    pthread_join(watcher, NULL);
    return stress_end(&stress, "stress_ring");
}
