/* Making and opening a segment, and what the operating system is asked for. */
#define _GNU_SOURCE
#include "check.h"
#include "place.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- refusals ---- */

static struct rf_geometry good(void) { return geometry_of(3, 4, 2, 10, 24); }

/* What rf_open() says after `spoil` has changed a fresh header. */
static int answer_to(void (*spoil)(struct rf_control *control))
{
    struct rf_geometry geometry = good();
    uint64_t control_size = rf_control_size(3, 4, 2), slots_size = 3 * geometry.slot_size;
    int control_fd = memfd_of(control_size), slots_fd = memfd_of(slots_size), why = -1;
    struct rf_control *control = rf_map(control_fd, control_size, 0);
    rf_format(control, &geometry);
    spoil(control);
    struct rf_ring *ring = rf_open(control_fd, slots_fd, control_size, slots_size, NULL, &why);
    if (ring)
        rf_unreference(ring);
    rf_unmap(control, control_size);
    close(control_fd);
    close(slots_fd);
    return why;
}

static void nothing(struct rf_control *control) { (void)control; }
static void magic(struct rf_control *control) { control->magic ^= 1; }
static void abi(struct rf_control *control) { control->abi += 1; }
static void size(struct rf_control *control) { control->control_size -= RF_LINE; }
static void more_slots(struct rf_control *control) { control->geometry.slots += 1; }
static void more_cells(struct rf_control *control) { control->geometry.cells = RF_MAX_CELLS + 1; }
static void more_workers(struct rf_control *control)
{
    control->geometry.workers = RF_MAX_WORKERS + 1;
}
static void less_ids(struct rf_control *control) { control->geometry.ids -= 1; }
static void more_ids(struct rf_control *control) { control->geometry.ids = RF_MAX_IDS + 1; }
static void no_slots(struct rf_control *control) { control->geometry.slots = 0; }
static void no_cells(struct rf_control *control) { control->geometry.cells = 0; }
static void no_workers(struct rf_control *control) { control->geometry.workers = 0; }
static void no_rows(struct rf_control *control) { control->geometry.rows = 0; }
static void larger_slots(struct rf_control *control) { control->geometry.slot_size += 64; }
static void odd_slots(struct rf_control *control) { control->geometry.slot_size -= 8; }
static void odd_indices(struct rf_control *control) { control->geometry.indices_at += 4; }
static void far_indices(struct rf_control *control)
{
    control->geometry.indices_at = control->geometry.slot_size;
}
static void far_marks(struct rf_control *control)
{
    control->geometry.marks_at = control->geometry.slot_size - 1;
}
static void far_failures(struct rf_control *control)
{
    control->geometry.failures_at += RF_FAILURE_SIZE;
}
static void wrapped_failures(struct rf_control *control)
{
    control->geometry.failures_at = -UINT64_C(8192);
}
static void wrapped_marks(struct rf_control *control) { control->geometry.marks_at = UINT64_MAX; }
static void wrapped_indices(struct rf_control *control)
{
    control->geometry.indices_at = -UINT64_C(64);
}

/* A header of another program, version or size is refused, and nothing is mapped. */
static void open_refuses_what_does_not_fit(void)
{
    void (*const spoils[])(struct rf_control *) = {
        magic,        abi,       size,         more_slots,       more_cells,    more_workers,
        no_slots,     no_cells,  no_workers,   no_rows,          odd_slots,     odd_indices,
        far_indices,  far_marks, far_failures, wrapped_failures, wrapped_marks, wrapped_indices,
        larger_slots, less_ids,  more_ids,
    };
    CHECK_EQ(answer_to(nothing), 0);
    for (uint32_t number = 0; number < sizeof spoils / sizeof *spoils; number++)
        if (answer_to(spoils[number]) != EPROTO)
            check_report_numbers(__FILE__, __LINE__, "the answer to this spoil", number, EPROTO);
}

static void open_short_files(struct rf_ring *ring)
{
    (void)ring;
    int why = 0;
    int control_fd = memfd_of(4096), slots_fd = memfd_of(4096);
    if (rf_open(control_fd, slots_fd, 1 << 16, 4096, NULL, &why) || why != EPROTO)
        _exit(1);
    if (rf_open(memfd_of(0), slots_fd, 1 << 16, 4096, NULL, &why) || why != EPROTO)
        _exit(2);
}

/* A file shorter than its process was told is refused, not read past its end. */
static void open_refuses_short_files(void) { CHECK(in_child(open_short_files, NULL)); }

/* What is no file gives its errno. */
static void open_tells_the_errno(void)
{
    int why = 0;
    CHECK(!rf_open(-1, -1, 1 << 16, 4096, NULL, &why));
    CHECK_EQ(why, EBADF);
    CHECK(!rf_open(-1, -1, 16, 4096, NULL, &why));
    CHECK_EQ(why, EPROTO);
}

/* ---- the layout ---- */

/* The parts of a control block follow each other without overlap, each on its line,
 * in whole pages. */
static void parts_of_the_control_block_do_not_overlap(void)
{
    for (uint32_t slots = 1; slots < 40; slots += 7) {
        struct rf_ring *ring = ring_of(slots, 5, 3, 2);
        const uint8_t *base = (const uint8_t *)ring->control;
        const uint8_t *end = base + rf_control_size(slots, 5, 3);
        CHECK((const uint8_t *)ring->workers >= base + sizeof(struct rf_control));
        CHECK((const void *)ring->records >= (const void *)(ring->workers + 3));
        CHECK((const void *)ring->slot_of >= (const void *)(ring->records + slots));
        CHECK((const void *)ring->cells >= (const void *)(ring->slot_of + slots));
        CHECK((const uint8_t *)(ring->cells + slots * 5) <= end);
        CHECK(end - (const uint8_t *)(ring->cells + slots * 5) < RF_PAGE);
        CHECK_EQ((uintptr_t)ring->cells % RF_LINE, 0);
        CHECK_EQ((uintptr_t)ring->workers % RF_LINE, 0);
        rf_unreference(ring);
    }
}

/* The ring unmaps with its last reference, not before. */
static void mappings_live_as_long_as_references(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 1);
    rf_reference(ring);
    rf_unreference(ring);
    rf_slot_base(ring, 1)[0] = 7;
    CHECK_EQ(atomic_load(&ring->references), 1);
    rf_unreference(ring);
}

/* Segments stand in every process that maps them at their own addresses, with the same content. */
static void two_mappings_share_a_segment(void)
{
    struct rf_geometry geometry = good();
    uint64_t control_size = rf_control_size(3, 4, 2), slots_size = 3 * geometry.slot_size;
    int control_fd = memfd_of(control_size), slots_fd = memfd_of(slots_size), why;
    struct rf_ring *consumer =
        rf_open(control_fd, slots_fd, control_size, slots_size, &geometry, &why);
    struct rf_ring *worker = rf_open(control_fd, slots_fd, control_size, slots_size, NULL, &why);
    CHECK(consumer && worker && rf_become_consumer(consumer, 2, 1) == 0);
    CHECK(consumer->control != worker->control);
    bind_batches(consumer, 1, 10);
    CHECK_EQ(fill_all(worker, 1), 2);
    CHECK_EQ(rf_look(consumer), RF_TAKEABLE);
    rf_unreference(worker);
    rf_unreference(consumer);
    close(control_fd);
    close(slots_fd);
}

/* ---- the operating system ---- */

/* All pages that a part of a mapping touches are had at once, wherever it starts. */
static void populate_takes_any_address(void)
{
    enum { PAGES = 16 };
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    int fd = memfd_of(PAGES * page);
    uint8_t *base = rf_map(fd, PAGES * page, 1);
    bool known = madvise(base, page, 23) == 0; /* MADV_POPULATE_WRITE, since Linux 5.14 */
    rf_populate(base + 4 * page + 64, 4 * page);
    unsigned char resident[PAGES];
    CHECK(mincore(base, PAGES * page, resident) == 0);
    for (uint32_t number = 4; known && number <= 8; number++)
        CHECK_EQ(resident[number] & 1, 1);
    rf_unmap(base, PAGES * page);
    close(fd);
}

static int lifeline[2];
static void live_on_a_lifeline(struct rf_ring *ring)
{
    (void)ring;
    close(lifeline[1]);
    if (rf_guard_start(-1, lifeline[0]) == 0)
        for (;;)
            pause();
}

/* A guarded process is killed when the other end of its lifeline closes. */
static void guard_kills_without_a_lifeline(void)
{
    CHECK(pipe(lifeline) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        live_on_a_lifeline(NULL);
        _exit(1);
    }
    close(lifeline[0]);
    usleep(20000);
    CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
    close(lifeline[1]);
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void)
{
    check_begin();
    RUN(open_refuses_what_does_not_fit);
    RUN(open_refuses_short_files);
    RUN(open_tells_the_errno);
    RUN(parts_of_the_control_block_do_not_overlap);
    RUN(mappings_live_as_long_as_references);
    RUN(two_mappings_share_a_segment);
    RUN(populate_takes_any_address);
    RUN(guard_kills_without_a_lifeline);
    return check_end("test_open");
}
