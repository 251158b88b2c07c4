/* What a forked child sees of its parent's ring: what was held, as it was, and nothing else. */
#define _GNU_SOURCE
#include "check.h"
#include "place.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define ROWS 700u /* more than a page of a slot */

/* ---- a kernel and a heap without memory ---- */

static bool no_pages, no_heap;

void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return no_pages && !address ? MAP_FAILED
                                : __real_mmap(address, size, protection, flags, fd, offset);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    return no_heap ? NULL : __real_calloc(count, size);
}

/* ---- batches whose rows are all their number ---- */

static int64_t *rows_of(const struct rf_ring *ring, uint32_t slot)
{
    return (int64_t *)rf_slot_base(ring, slot);
}

static bool is_full_of(const struct rf_ring *ring, uint32_t slot, uint64_t batch)
{
    const volatile int64_t *rows = rows_of(ring, slot);
    for (uint32_t row = 0; row < ROWS; row++)
        if (rows[row] != (int64_t)batch)
            return false;
    return true;
}

static void work(struct rf_ring *ring, const struct rf_claim *claim)
{
    for (uint32_t row = 0; row < claim->rows; row++)
        rows_of(ring, claim->slot)[claim->first_row + row] = (int64_t)claim->batch;
    rf_publish(ring, claim, false);
}

static void work_all(struct rf_ring *ring)
{
    struct rf_claim claim;
    while (claim_as(ring, 0, &claim))
        work(ring, &claim);
}

/* A ring of three slots; `taken` batches are held: batch 0 in slot 0, and so on. */
static struct rf_ring *holding(uint32_t taken)
{
    struct rf_ring *ring = ring_of(3, 4, 1, ROWS);
    bind_batches(ring, PLACE_CAPACITY, ROWS);
    work_all(ring);
    while (taken-- > 0)
        taken_of(ring);
    return ring;
}

/* ---- children that wait until they are told ---- */

static int go[2];

static pid_t fork_waiting(bool (*child)(struct rf_ring *ring), struct rf_ring *ring)
{
    char byte;
    if (pipe(go) != 0)
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0}; /* no core file of a child that is to crash */
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's would make a status of it */
        signal(SIGSEGV, SIG_DFL);
        alarm(60);
        close(go[1]);
        if (read(go[0], &byte, 1) != 0)
            _exit(2);
        _exit(!child(ring));
    }
    close(go[0]);
    return pid;
}

static int status_of(pid_t pid)
{
    int status = -1;
    close(go[1]);
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static int signal_of(int status) { return WIFSIGNALED(status) ? WTERMSIG(status) : 0; }

static bool sees_first(struct rf_ring *ring) { return is_full_of(ring, 0, 0); }
static bool sees_both(struct rf_ring *ring)
{
    return is_full_of(ring, 0, 0) && is_full_of(ring, 1, 1);
}
static bool sees_third(struct rf_ring *ring) { return is_full_of(ring, 2, 2); }

static bool writes(struct rf_ring *ring)
{
    memset(rows_of(ring, 0), 0x55, ROWS * sizeof(int64_t));
    atomic_store(&ring->control->stop, 1);
    return rows_of(ring, 0)[ROWS - 1] == INT64_C(0x5555555555555555);
}

static bool drops(struct rf_ring *ring)
{
    rf_drop(ring, 0);
    rf_drop(ring, 1);
    rf_unreference(ring);
    return sees_both(ring);
}

static bool forks(struct rf_ring *ring)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(!(writes(ring) && is_full_of(ring, 1, 1)));
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 && sees_both(ring);
}

static void nothing(struct rf_ring *ring) { (void)ring; }

static bool sees_control(struct rf_ring *ring)
{
    return atomic_load(&ring->control->head) == 2 && atomic_load(&ring->control->bound) == 3;
}

/* ---- one fork ---- */

/* The parent releases both slots, and a worker fills them again: the child reads what it had. */
static void child_keeps_what_was_held(void)
{
    struct rf_ring *ring = holding(2);
    pid_t pid = fork_waiting(sees_both, ring);
    rf_drop(ring, 0);
    rf_drop(ring, 1);
    work_all(ring);
    CHECK(!is_full_of(ring, 0, 0) && !is_full_of(ring, 1, 1));
    CHECK_EQ(status_of(pid), 0);
    rf_unreference(ring);
}

/* Rows and control block of the child are private: what it writes, the parent does not see. */
static void child_writes_into_its_own(void)
{
    struct rf_ring *ring = holding(1);
    CHECK_EQ(status_of(fork_waiting(writes, ring)), 0);
    CHECK(is_full_of(ring, 0, 0));
    CHECK_EQ(atomic_load(&ring->control->stop), 0);
    rf_unreference(ring);
}

/* The child reads the counts as they were at the fork. */
static void child_sees_the_control_block_as_it_was(void)
{
    struct rf_ring *ring = holding(2);
    pid_t pid = fork_waiting(sees_control, ring);
    taken_of(ring);
    rf_drop(ring, 0);
    CHECK_EQ(status_of(pid), 0);
    rf_unreference(ring);
}

/* A slot that nothing held is not the child's to read. */
static void child_has_no_access_to_other_slots(void)
{
    struct rf_ring *ring = holding(2);
    CHECK_EQ(signal_of(status_of(fork_waiting(sees_third, ring))), SIGSEGV);
    rf_unreference(ring);
}

/* Drops in the child neither free a slot of the parent's nor take the copy away. */
static void child_drops_nothing(void)
{
    struct rf_ring *ring = holding(2);
    CHECK_EQ(status_of(fork_waiting(drops, ring)), 0);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_HELD);
    rf_drop(ring, 0);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_BOUND);
    rf_unreference(ring);
}

/* A child of the child has its own copy of the child's. */
static void child_of_a_child_has_its_own(void)
{
    struct rf_ring *ring = holding(2);
    pid_t pid = fork_waiting(forks, ring);
    rf_drop(ring, 0);
    work_all(ring);
    CHECK_EQ(status_of(pid), 0);
    rf_unreference(ring);
}

/* After a fork the parent holds and refers to what it did before; what was released meanwhile
 * is bound again. */
static void parent_is_as_before(void)
{
    struct rf_ring *ring = holding(2);
    CHECK_EQ(status_of(fork_waiting(sees_both, ring)), 0);
    CHECK_EQ(atomic_load(&ring->references), 1);
    CHECK_EQ(atomic_load(&ring->binder->holds[0].count), 1);
    CHECK_EQ(atomic_load(&ring->binder->holds[2].count), 0);
    rf_unreference(ring);
    CHECK(in_child(nothing, NULL)); /* the list has no ring that is gone */
}

/* ---- without memory ---- */

/* Where there are no pages for a copy, the fork succeeds and the child crashes at
 * its first look. */
static void child_without_copies_crashes(void)
{
    struct rf_ring *ring = holding(1);
    no_pages = true;
    pid_t pid = fork_waiting(sees_first, ring);
    no_pages = false;
    CHECK_EQ(signal_of(status_of(pid)), SIGSEGV);
    CHECK(is_full_of(ring, 0, 0));
    CHECK_EQ(atomic_load(&ring->binder->holds[0].count), 1);
    rf_unreference(ring);
}

/* Where there is not even room for the list of them, it crashes likewise; the next
 * child is whole. */
static void child_without_a_list_crashes(void)
{
    struct rf_ring *ring = holding(1);
    no_heap = true;
    pid_t pid = fork_waiting(sees_first, ring);
    no_heap = false;
    CHECK_EQ(signal_of(status_of(pid)), SIGSEGV);
    CHECK_EQ(status_of(fork_waiting(sees_first, ring)), 0);
    rf_unreference(ring);
}

/* ---- forks beside threads ---- */

static struct rf_ring *shared;
static _Atomic bool over;
static _Atomic uint32_t wrong;
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER; /* over `handed` */
static struct rf_taken handed;

static void *worker(void *unused)
{
    struct rf_cursor cursor = {0};
    struct rf_claim claim;
    while (!atomic_load(&over))
        if (rf_claim_wait(shared, 0, &cursor, &claim, soon_ns(10)) == RF_TAKEABLE)
            work(shared, &claim);
    return unused;
}

/* Takes batches, hands each to the threads that fork, and drops it when the next one is there. */
static void *consumer(void *unused)
{
    while (!atomic_load(&over)) {
        if (rf_plan_room(shared))
            bind_batches(shared, 1, ROWS);
        if (rf_wait_head(shared, 0, soon_ns(10)) != RF_TAKEABLE)
            continue;
        struct rf_taken taken = taken_of(shared);
        pthread_mutex_lock(&handing);
        struct rf_taken before = handed;
        handed = taken;
        pthread_mutex_unlock(&handing);
        rf_drop(shared, before.slot);
    }
    return unused;
}

/* Makes and drops rings, which the forks of other threads find and lose. */
static void *maker(void *unused)
{
    while (!atomic_load(&over))
        rf_unreference(holding(1));
    return unused;
}

static void *forker(void *unused)
{
    for (int turn = 0; turn < 40; turn++) {
        pthread_mutex_lock(&handing);
        struct rf_taken mine = handed;
        rf_hold(shared, mine.slot);
        pthread_mutex_unlock(&handing);
        pid_t pid = fork();
        if (pid == 0) {
            bool first = is_full_of(shared, mine.slot, mine.batch);
            usleep(3000); /* the parent goes on */
            _exit(!first || !is_full_of(shared, mine.slot, mine.batch));
        }
        rf_drop(shared, mine.slot);
        int status = -1;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            atomic_fetch_add(&wrong, 1);
    }
    return unused;
}

/* Two threads fork while others take, drop, fill, make and destroy: no child sees a byte
 * of another batch. */
static void forks_beside_threads(void)
{
    void *(*const deeds[])(void *) = {forker, forker, worker, consumer, maker};
    enum { THREADS = sizeof deeds / sizeof *deeds };
    pthread_t threads[THREADS];
    shared = holding(1);
    handed = (struct rf_taken){.slot = 0, .batch = 0};
    for (int number = 0; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, deeds[number], NULL) == 0);
    for (int number = 0; number < THREADS; number++) {
        if (number == 2) /* both have forked all theirs */
            atomic_store(&over, true);
        pthread_join(threads[number], NULL);
    }
    CHECK_EQ(atomic_load(&wrong), 0);
    CHECK(atomic_load(&shared->control->head) > 1);
    rf_unreference(shared);
}

int main(void)
{
    check_begin();
    RUN(child_keeps_what_was_held);
    RUN(child_writes_into_its_own);
    RUN(child_sees_the_control_block_as_it_was);
    RUN(child_has_no_access_to_other_slots);
    RUN(child_drops_nothing);
    RUN(child_of_a_child_has_its_own);
    RUN(parent_is_as_before);
    RUN(child_without_copies_crashes);
    RUN(child_without_a_list_crashes);
    RUN(forks_beside_threads);
    return check_end("test_fork");
}
