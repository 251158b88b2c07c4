#define _GNU_SOURCE
#include "os/wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS 1000000

const bool rf_has_processes = true;

/* Sleep a moment, at most until the deadline; the caller looks again afterwards. */
static int nap(int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - rf_now_ns();
    if (left_ns <= 0)
        return ETIMEDOUT;
    struct timespec pause = {.tv_sec = 0, .tv_nsec = left_ns < NAP_NS ? (long)left_ns : NAP_NS};
    return nanosleep(&pause, NULL) ? errno : 0;
}

int rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / 1000000000,
                             .tv_nsec = deadline_ns % 1000000000};
    /* The BITSET form takes an absolute deadline on CLOCK_MONOTONIC. Not PRIVATE: sleepers are
     * in other processes. */
    long answer =
        syscall(SYS_futex, address, FUTEX_WAIT_BITSET, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    if (answer == 0 || errno == EAGAIN)
        return 0;
    if (errno == ETIMEDOUT || errno == EINTR)
        return errno;
    return nap(
        /* A seccomp filter set after rf_futex_error(): no wake can come, and spinning is
         * no way out. */
        deadline_ns);
}

void rf_futex_wake(_Atomic uint32_t *address, int count)
{
    syscall(SYS_futex, address, FUTEX_WAKE, count, NULL, NULL, 0);
}

int rf_futex_error(void)
{
    _Atomic uint32_t word = 0;
    if (syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) < 0)
        return errno;
    return syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) < 0 ? errno : 0;
}

uint32_t rf_cpus(void)
{
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) == 0)
        return (uint32_t)CPU_COUNT(&usable);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than the set has room for */
    return online > 0 ? (uint32_t)online : 1;
}

/* ---- the end of a child ---- */

void rf_end_child(int pid)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = NAP_NS};
    for (int attempt = 0; attempt < 1000 && waitpid(pid, NULL, WNOHANG) == 0; attempt++) {
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL); /* it leads no group yet */
        nanosleep(&pause, NULL);
    }
}

/* ---- the heap ---- */

int rf_keep_heap(int trim, int mmap)
{
#ifdef __GLIBC__
    return mallopt(M_TRIM_THRESHOLD, trim) && mallopt(M_MMAP_THRESHOLD, mmap) ? 0 : -1;
#else
    (void)trim, (void)mmap;
    return -1;
#endif
}

/* ---- the death of the parent ---- */

static struct pollfd watched[2];

static void *guard(void *unused)
{
    (void)unused;
    while (poll(watched, 2, -1) < 0 && errno == EINTR)
        continue;
    /* A worker without a guard must end as well: poll() fails where the program has lowered
     * RLIMIT_NOFILE to less than two. SIGCONT restarts poll(). A worker leads its process group, so
     * that its own children end with it. */
    kill(getpgrp() == getpid() ? 0 : getpid(), SIGKILL);
    return NULL;
}

int rf_guard_start(int parent, int lifeline)
{
    watched[0] = (struct pollfd){.fd = parent, .events = POLLIN};
    watched[1] = (struct pollfd){.fd = lifeline, .events = POLLIN}; /* POLLHUP comes unasked */
    sigset_t all, before;
    sigfillset(&all); /* the guard must not run the program's signal handlers */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, guard, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_detach(thread);
    return error;
}
