#define _GNU_SOURCE
#include "wait.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define NAP_NS 1000000
#define HUGE (UINT64_C(2) << 20) /* bytes of a huge page, where they are of any use to us */
#define HUGE_NS 400000           /* what one may take, which is a third of that where there are any */
#define SLOW_NS 20000000         /* what may be lost where the kernel has to move others out of the way */

int64_t rf_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sleep a moment, at most until the deadline: for a caller who looks again after it. */
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
    struct timespec until = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    /* The BITSET form takes an absolute deadline on CLOCK_MONOTONIC. Not PRIVATE: sleepers are in other processes. */
    long answer = syscall(SYS_futex, address, FUTEX_WAIT_BITSET, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    if (answer == 0 || errno == EAGAIN)
        return 0;
    if (errno == ETIMEDOUT || errno == EINTR)
        return errno;
    return nap(deadline_ns); /* a filter that came after rf_futex_error(): nobody can wake us, and we must not spin */
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

uint32_t rf_cpus(void)
{
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) == 0)
        return (uint32_t)CPU_COUNT(&usable);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than the set has room for */
    return online > 0 ? (uint32_t)online : 1;
}

/* ---- forks ---- */

static _Atomic uint32_t generation;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static void child_was_forked(void) { atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed); }
static void start_watching(void) { pthread_atfork(NULL, NULL, child_was_forked); }

uint32_t rf_fork_generation(void)
{
    pthread_once(&watch_forks, start_watching);
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

/* ---- memory ---- */

void rf_populate(void *address, uint64_t size)
{
    uint64_t before = (uintptr_t)address % (uint64_t)sysconf(_SC_PAGESIZE); /* madvise() takes whole pages only */
    (void)madvise((uint8_t *)address - before, size + before, MADV_POPULATE_WRITE);
}

int rf_unpopulate(void *address, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE); /* what is beside it may lie in its first and its last */
    uint64_t before = -(uint64_t)(uintptr_t)address % page;
    if (size < before + page)
        return 0;
    return madvise((uint8_t *)address + before, (size - before) / page * page, MADV_REMOVE) ? errno : 0;
}

/* Shared, and where huge pages can be mapped as such. */
static void *map_aligned(int fd, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    uint8_t *room = MAP_FAILED;
    if (size >= HUGE)
        room = mmap(NULL, whole + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint64_t before = (HUGE - (uintptr_t)room % HUGE) % HUGE;
    void *address = mmap(room + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    int error = errno;
    if (address == MAP_FAILED)
        munmap(room, whole + HUGE);
    else {
        if (before)
            munmap(room, before);
        munmap(room + before + whole, HUGE - before);
    }
    errno = error;
    return address;
}

/* One huge page, from a first page that the kernel itself has put there: one that cannot be had is an error here, and
 * would be a SIGBUS where it is written to. */
static bool reserve_one(int fd, uint64_t at, uint8_t *address)
{
    return posix_fallocate(fd, (off_t)at, 1) == 0 &&
           madvise(address, (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) == 0 &&
           madvise(address, HUGE, MADV_COLLAPSE) == 0;
}

void rf_reserve_huge(int fd, uint64_t size)
{
    uint64_t huge = size / HUGE * HUGE;
    uint8_t *address = huge ? map_aligned(fd, huge) : MAP_FAILED;
    if (address == MAP_FAILED)
        return;
    int64_t until_ns = rf_now_ns() + SLOW_NS;
    for (uint64_t at = 0; at < huge && rf_now_ns() < until_ns; at += HUGE, until_ns += HUGE_NS)
        if (!reserve_one(fd, at, address + at))
            break;
    munmap(address, huge);
}

void *rf_map(int fd, uint64_t size, int inherit)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return NULL;
    if ((uint64_t)file.st_size < size) { /* past its end a read is a SIGBUS */
        errno = EPROTO;
        return NULL;
    }
    uint8_t *address = map_aligned(fd, size);
    if (address == MAP_FAILED)
        return NULL;
    if (!inherit)
        (void)madvise(address, size, MADV_DONTFORK);
    return address;
}

void rf_unmap(void *address, uint64_t size) { munmap(address, size); }

const void *rf_map_sealed(int fd, uint64_t least, uint64_t most, uint64_t *size)
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 && errno == EBADF)
        return NULL;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW) || fstat(fd, &file) != 0 ||
        (uint64_t)file.st_size < least || (uint64_t)file.st_size > most) {
        errno = EPROTO;
        return NULL;
    }
    *size = (uint64_t)file.st_size;
    void *address = mmap(NULL, *size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return NULL;
    (void)madvise(address, *size, MADV_DONTFORK);
    return address;
}

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
    /* Who cannot be guarded any more is not to live either: poll() fails where the program has lowered RLIMIT_NOFILE to
     * less than two, and SIGCONT begins it anew. A worker leads its group, so that its own children go with it. */
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
