/* What the Linux layer and the portable one do alike. */
#define _DEFAULT_SOURCE
#include "os/wait.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

int64_t rf_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void rf_pause(void)
{
    for (int turn = 0; turn < 8; turn++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#endif
    }
}

void rf_yield(unsigned attempt)
{
    if (attempt < 16) {
        sched_yield();
        return;
    }
    struct timespec pause = {.tv_sec = 0, .tv_nsec = 50000};
    nanosleep(&pause, NULL);
}

/* ---- forks ---- */

static _Atomic uint32_t generation;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static void child_was_forked(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}
static void start_watching(void) { pthread_atfork(NULL, NULL, child_was_forked); }

uint32_t rf_fork_generation(void)
{
    pthread_once(&watch_forks, start_watching);
    return atomic_load_explicit(&generation, memory_order_relaxed);
}
