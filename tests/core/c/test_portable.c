/* The portable layer: sleepers by condition variables, memory of one process, and what is refused. */
#define _GNU_SOURCE
#include "check.h"
#include "place.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

#include "os/descriptors.h"

#define LONG_MS 60000 /* a wait that should be woken */
#define SHORT_MS 30   /* a wait without a wake */
#define MOST 80       /* sleepers: more words than there are buckets */

struct sleeper {
    pthread_t thread;
    _Atomic uint32_t *word;
    int64_t milliseconds;
    int error;
    _Atomic bool awake;
};

/* Not on the stack: a test that fails leaves its sleepers behind. */
static struct sleeper sleepers[MOST];
static _Atomic uint32_t words[MOST];

static void *sleep_on(void *argument)
{
    struct sleeper *sleeper = argument;
    sleeper->error = rf_futex_wait(sleeper->word, 0, soon_ns(sleeper->milliseconds));
    atomic_store(&sleeper->awake, true);
    return NULL;
}

/* Start one, and give it the time to sleep, behind those that were started before it. */
static void start(uint32_t number, uint32_t word, int64_t milliseconds)
{
    sleepers[number] = (struct sleeper){.word = &words[word], .milliseconds = milliseconds};
    pthread_create(&sleepers[number].thread, NULL, sleep_on, &sleepers[number]);
    usleep(10000);
}

static int error_of(uint32_t number)
{
    pthread_join(sleepers[number].thread, NULL);
    return sleepers[number].error;
}

static uint32_t count_awake(uint32_t count)
{
    uint32_t awake = 0;
    for (uint32_t number = 0; number < count; number++)
        awake += atomic_load(&sleepers[number].awake);
    return awake;
}

/* Wait until this number of sleepers are awake, and see that the rest sleep on. */
static uint32_t awake_of(uint32_t count, uint32_t expected)
{
    int64_t until_ns = soon_ns(LONG_MS);
    while (count_awake(count) < expected && rf_now_ns() < until_ns)
        usleep(1000);
    usleep(10000);
    return count_awake(count);
}

/* ---- sleepers ---- */

/* A wait ends by its deadline, not before, also by one that is past. */
static void a_wait_ends_by_its_deadline(void)
{
    int64_t began_ns = rf_now_ns();
    CHECK_EQ(rf_futex_wait(&words[0], 0, soon_ns(SHORT_MS)), ETIMEDOUT);
    CHECK(rf_now_ns() - began_ns >= SHORT_MS * INT64_C(1000000));
    CHECK_EQ(rf_futex_wait(&words[0], 0, 0), ETIMEDOUT);
    rf_futex_wake(&words[0], INT32_MAX); /* it is in no queue any more */
}

/* A word that has changed is not slept on. */
static void another_value_is_no_sleep(void)
{
    CHECK_EQ(rf_futex_wait(&words[0], 1, soon_ns(LONG_MS)), 0);
}

/* Of several on one word as many wake as are to, those first that have slept longest. */
static void as_many_wake_as_are_to(void)
{
    for (uint32_t number = 0; number < 5; number++)
        start(number, 0, LONG_MS);
    rf_futex_wake(&words[0], 0);
    CHECK_EQ(awake_of(5, 0), 0);
    rf_futex_wake(&words[0], 1);
    CHECK_EQ(awake_of(5, 1), 1);
    CHECK(atomic_load(&sleepers[0].awake));
    rf_futex_wake(&words[0], 2);
    CHECK_EQ(awake_of(5, 3), 3);
    rf_futex_wake(&words[0], INT32_MAX);
    for (uint32_t number = 0; number < 5; number++)
        CHECK_EQ(error_of(number), 0);
}

/* One whose time is over leaves the queue, and the others stay in it. */
static void one_whose_time_is_over_takes_no_wake(void)
{
    start(0, 0, LONG_MS);
    start(1, 0, 1);
    start(2, 0, LONG_MS);
    CHECK_EQ(error_of(1), ETIMEDOUT);
    rf_futex_wake(&words[0], 2);
    CHECK_EQ(error_of(0), 0);
    CHECK_EQ(error_of(2), 0);
}

/* Words that share a bucket do not share their wakes: of more words than buckets some do. */
static void each_word_wakes_its_own(void)
{
    for (uint32_t number = 0; number < MOST; number++)
        start(number, number, LONG_MS);
    for (uint32_t number = 0; number < MOST; number++) {
        rf_futex_wake(&words[number], INT32_MAX);
        CHECK_EQ(error_of(number), 0);
        CHECK_EQ(count_awake(MOST), number + 1);
    }
}

#define TURNS 20000

static void *take_turns(void *argument)
{
    uint32_t own = *(uint32_t *)argument;
    for (uint32_t turn = own; turn < TURNS; turn += 2) {
        for (uint32_t seen; (seen = atomic_load(&words[0])) != turn;)
            if (rf_futex_wait(&words[0], seen, soon_ns(LONG_MS)))
                return argument; /* a wake was lost */
        atomic_store(&words[0], turn + 1);
        rf_futex_wake(&words[0], 1);
    }
    return NULL;
}

/* A change of the word with its wake is seen, just before the sleep or in it. */
static void no_wake_is_lost(void)
{
    uint32_t first = 0, second = 1;
    void *lost = NULL, *other = NULL;
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, take_turns, &first);
    pthread_create(&threads[1], NULL, take_turns, &second);
    pthread_join(threads[0], &lost);
    pthread_join(threads[1], &other);
    CHECK(!lost && !other);
    CHECK_EQ(atomic_exchange(&words[0], 0), TURNS);
}

/* ---- forks ---- */

static _Atomic bool over;

static void *wake_on(void *unused)
{
    while (!atomic_load(&over))
        for (uint32_t word = 0; word < MOST; word++)
            rf_futex_wake(&words[word], 1);
    return unused;
}

static void sleep_and_wake(struct rf_ring *ring)
{
    (void)ring;
    for (uint32_t word = 0; word < MOST; word++) {
        if (rf_futex_wait(&words[word], 0, rf_now_ns() + 1000) != ETIMEDOUT)
            _exit(1);
        rf_futex_wake(&words[word], INT32_MAX);
    }
}

/* A child waits for no lock that a thread of its parent holds. */
static void a_child_has_its_own_buckets(void)
{
    pthread_t waker;
    pthread_create(&waker, NULL, wake_on, NULL);
    start(0, 1, LONG_MS);
    bool good = true;
    for (uint32_t number = 0; number < 50; number++)
        good &= in_child(sleep_and_wake, NULL);
    atomic_store(&over, true);
    pthread_join(waker, NULL);
    CHECK(good);
    CHECK_EQ(error_of(0), 0);
}

static void write_and_drop(struct rf_ring *ring)
{
    if (rf_slot_base(ring, 0)[0] != 7 || rf_wait_head(ring, 0, soon_ns(LONG_MS)) != RF_STOPPED)
        _exit(1);
    rf_slot_base(ring, 0)[0] = 8;
    rf_drop(ring, 0);
    rf_unreference(ring);
}

/* A child has a copy of what is held, and nothing that it does reaches its parent. */
static void a_child_has_a_copy(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    bind_batches(ring, 1, 1);
    fill_all(ring, 0);
    CHECK_EQ(taken_of(ring).slot, 0);
    rf_slot_base(ring, 0)[0] = 7;
    CHECK(in_child(write_and_drop, ring));
    CHECK_EQ(rf_slot_base(ring, 0)[0], 7);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_HELD);
    rf_drop(ring, 0);
    rf_unreference(ring);
}

/* ---- memory ---- */

/* Each mapping is fresh and zero, and so is what was given back: whole pages, and nothing beside. */
static void memory_is_fresh(void)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), size = 4 * page;
    uint8_t *one = rf_map(-1, size, 0), *other = rf_map(-1, size, 1);
    CHECK(one && other && one != other);
    for (uint64_t at = 0; at < size; at++)
        CHECK_EQ(one[at], 0);
    memset(one, 9, size);
    rf_populate(one, size);
    CHECK_EQ(other[0], 0);
    CHECK_EQ(rf_unpopulate(one + 10, size - 20), 0);
    for (uint64_t at = 0; at < size; at++)
        CHECK_EQ(one[at], at < page || at >= size - page ? 9 : 0);
    CHECK_EQ(rf_unpopulate(one + 10, page), 0); /* no whole page */
    CHECK_EQ(one[10], 9);
    rf_unmap(one, size);
    rf_unmap(other, size);
}

/* A mapping that cannot be had gives its errno. */
static void no_room_is_an_errno(void)
{
    int why = 0;
    struct rf_geometry geometry = geometry_of(1, 1, 1, 1, 1);
    geometry.slot_size = UINT64_C(1) << 60;
    CHECK(!rf_open(-1, -1, rf_control_size(1, 1, 1), geometry.slot_size, &geometry, &why));
    CHECK_EQ(why, ENOMEM);
}

/* What is for other processes is refused, and said to be. */
static void what_processes_share_is_refused(void)
{
    struct rf_received received;
    uint64_t size;
    int fds[2];
    CHECK(!rf_has_processes);
    CHECK_EQ(rf_futex_error(), 0);
    CHECK_EQ(rf_socket_pair(fds), ENOTSUP);
    CHECK_EQ(rf_send(-1, "", 1, NULL, 0), ENOTSUP);
    CHECK_EQ(rf_receive(-1, &size, sizeof size, &received), ENOTSUP);
    CHECK_EQ(rf_guard_start(-1, -1), ENOTSUP);
    CHECK(!rf_map_private(-1, 1, &size) && errno == ENOTSUP);
    CHECK(!rf_map_sealed(-1, 1, 1, &size) && errno == ENOTSUP);
    CHECK(!rf_reserve_huge(-1, 0, RF_HUGE));
}

int main(void)
{
    check_begin();
    RUN(a_wait_ends_by_its_deadline);
    RUN(another_value_is_no_sleep);
    RUN(as_many_wake_as_are_to);
    RUN(one_whose_time_is_over_takes_no_wake);
    RUN(each_word_wakes_its_own);
    RUN(no_wake_is_lost);
    RUN(a_child_has_its_own_buckets);
    RUN(a_child_has_a_copy);
    RUN(memory_is_fresh);
    RUN(no_room_is_an_errno);
    RUN(what_processes_share_is_refused);
    return check_end("test_portable");
}
