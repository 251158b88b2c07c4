/* Processes as workers, killed at any moment by SIGKILL; waitpid() is the proof of their death. Not
 * for TSan, which sees one process.
 *
 *     stress_kill [seconds] [seed]
 */
#define _GNU_SOURCE
#include "check.h"
#include "stress.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

static pid_t pids[STRESS_WORKERS];
static int lifeline[2];

/* Only the watcher kills, and what is in the row. */
static bool dies_of_poison(struct chance *chance, bool poison)
{
    linger(chance);
    if (poison)
        raise(SIGKILL);
    return false;
}

/* A worker process: fills tickets until the ring stops, and dies with its parent. */
static _Noreturn void work(struct stress *stress, uint32_t number, uint64_t life)
{
    struct chance chance = {mixed(stress->seed + 100 * life + number)};
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    close(lifeline[1]);
    if (rf_guard_start(-1, lifeline[0]) != 0)
        abort();
    for (;;) {
        enum rf_answer answer =
            rf_claim_wait(stress->ring, number, &cursor, &claim, rf_now_ns() + STRESS_PATIENCE_NS);
        if (answer == RF_STOPPED)
            _exit(atomic_load(&stress->broken) != 0);
        if (answer == RF_TAKEABLE)
            rf_publish(stress->ring, &claim,
                       stress_fill(stress, &claim, &chance, dies_of_poison) != FATE_FILLED);
    }
}

static void start(struct stress *stress, uint32_t number)
{
    static uint64_t lives;
    lives += 1;
    pids[number] = fork();
    if (pids[number] == 0)
        work(stress, number, lives);
}

/* Whether this worker has left because the ring stopped; one that was killed is
 * reaped and replaced. */
static bool has_left(struct stress *stress, uint32_t number)
{
    int status = 0;
    if (pids[number] == 0 || waitpid(pids[number], &status, WNOHANG) != pids[number])
        return pids[number] == 0;
    stress_reap(stress, number);
    pids[number] = 0;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        if (status != 0)
            stress_complain(stress, "the status of a worker", (uint64_t)status, 0);
        return true;
    }
    start(stress, number);
    return false;
}

/* Kill by chance, reap and replace, until all have left. */
static void *watch(void *argument)
{
    struct stress *stress = argument;
    struct chance chance = {mixed(stress->seed + 3)};
    uint32_t workers = stress->ring->geometry.workers, left = workers;
    while (left > 0) {
        uint32_t victim = (uint32_t)(draw(&chance) % workers);
        usleep((useconds_t)(draw(&chance) % 4000));
        if (pids[victim] && one_in(&chance, 2))
            kill(pids[victim], SIGKILL);
        left = workers;
        for (uint32_t number = 0; number < workers; number++)
            left -= has_left(stress, number);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static struct stress stress;
    check_begin();
    stress_begin(&stress, argc, argv);
    if (pipe(lifeline) != 0)
        abort();
    for (uint32_t number = 0; number < stress.ring->geometry.workers; number++)
        start(&stress, number);
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch, &stress);
    stress_consume(&stress);
    pthread_join(watcher, NULL);
    return stress_end(&stress, "stress_kill");
}
