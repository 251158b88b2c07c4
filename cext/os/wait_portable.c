/* Sleepers that are threads of this process, by a mutex and condition variables: the address of
 * their word tells the bucket in whose queue each waits for its own turn.
 *
 * A sleeper compares the word under the bucket's lock, and a thread that has changed the word takes
 * that lock to wake others: so the sleeper has seen the change, or is in the queue. */
#define _DEFAULT_SOURCE
#include "os/wait.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 64 /* as many as six bits of a hash name */

struct sleeper {
    struct sleeper *next;
    const void *address;
    pthread_cond_t turn;
    bool woken;
};

static struct bucket {
    pthread_mutex_t lock;
    struct sleeper *first; /* the one that has slept longest */
} buckets[BUCKETS];
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

const bool rf_has_processes = false;

/* Also in a forked child, which has none of the sleepers, nor the threads that hold a lock. */
static void make_buckets(void)
{
    for (int number = 0; number < BUCKETS; number++) {
        pthread_mutex_init(&buckets[number].lock, NULL);
        buckets[number].first = NULL;
    }
}

static void prepare(void)
{
    make_buckets();
    pthread_atfork(NULL, NULL, make_buckets);
}

static struct bucket *lock_bucket(const void *address)
{
    pthread_once(&prepared, prepare);
    uint64_t hash = (uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15);
    struct bucket *bucket = &buckets[hash >> 58];
    pthread_mutex_lock(&bucket->lock);
    return bucket;
}

static struct timespec time_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

#ifdef __APPLE__
/* Its condition variables have no clock of their own choice, but take what is left of a wait. */
static void make_turn(pthread_cond_t *turn) { pthread_cond_init(turn, NULL); }

static int await_turn(pthread_cond_t *turn, pthread_mutex_t *lock, int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - rf_now_ns();
    struct timespec left = time_of(left_ns > 0 ? left_ns : 0);
    return pthread_cond_timedwait_relative_np(turn, lock, &left);
}
#else
static void make_turn(pthread_cond_t *turn)
{
    pthread_condattr_t kind;
    pthread_condattr_init(&kind);
    pthread_condattr_setclock(&kind, CLOCK_MONOTONIC);
    pthread_cond_init(turn, &kind);
    pthread_condattr_destroy(&kind);
}

static int await_turn(pthread_cond_t *turn, pthread_mutex_t *lock, int64_t deadline_ns)
{
    struct timespec until = time_of(deadline_ns);
    return pthread_cond_timedwait(turn, lock, &until);
}
#endif

static struct sleeper **place_of(struct bucket *bucket, const struct sleeper *sleeper)
{
    struct sleeper **place = &bucket->first;
    while (*place != sleeper)
        place = &(*place)->next;
    return place;
}

int rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns)
{
    struct sleeper own = {.address = address};
    int error = 0;
    make_turn(&own.turn);
    struct bucket *bucket = lock_bucket(address);
    if (atomic_load_explicit(address, memory_order_seq_cst) == seen) {
        *place_of(bucket, NULL) = &own;
        while (!own.woken && !error)
            error = await_turn(&own.turn, &bucket->lock, deadline_ns);
        if (!own.woken)
            *place_of(bucket, &own) = own.next;
    }
    pthread_mutex_unlock(&bucket->lock);
    pthread_cond_destroy(&own.turn);
    return own.woken ? 0 : error;
}

void rf_futex_wake(_Atomic uint32_t *address, int count)
{
    struct bucket *bucket = lock_bucket(address);
    for (struct sleeper **place = &bucket->first; *place && count > 0;) {
        struct sleeper *sleeper = *place;
        if (sleeper->address != address) {
            place = &sleeper->next;
            continue;
        }
        *place = sleeper->next;
        sleeper->woken = true;
        pthread_cond_signal(&sleeper->turn); /* under the lock: it goes with its thread's stack */
        count -= 1;
    }
    pthread_mutex_unlock(&bucket->lock);
}

int rf_futex_error(void) { return 0; }

uint32_t rf_cpus(void)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}
