/* Looking on from outside: what is refused, what is read, and that nothing in the
 * memory is trusted. */
#define _GNU_SOURCE
#include "check.h"
#include "place.h"
#include "snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    WATCHED_SLOTS = 3,
    WATCHED_CELLS = 4,
    WATCHED_WORKERS = 2,
    SEALED = F_SEAL_SHRINK | F_SEAL_GROW
};

static struct rf_geometry good(void)
{
    return geometry_of(WATCHED_SLOTS, WATCHED_CELLS, WATCHED_WORKERS, 8, 8);
}

/* A memfd of this size with the header of a good control block, and these seals. */
static int control_of(uint64_t size, unsigned seals)
{
    struct rf_geometry geometry = good();
    int fd = memfd_create("ringfeed-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        abort();
    if (size >= rf_control_size(WATCHED_SLOTS, WATCHED_CELLS, WATCHED_WORKERS)) {
        struct rf_control *control = rf_map(fd, size, 0);
        rf_format(control, &geometry);
        rf_unmap(control, size);
    }
    if (fcntl(fd, F_ADD_SEALS, seals) != 0)
        abort();
    return fd;
}

static uint64_t whole(void)
{
    return rf_control_size(WATCHED_SLOTS, WATCHED_CELLS, WATCHED_WORKERS);
}

/* What rf_watch_open() says of a file; it is closed. */
static int answer_to(int fd)
{
    struct rf_watch watch;
    int why = rf_watch_open(&watch, fd);
    if (!why)
        rf_watch_close(&watch);
    close(fd);
    return why;
}

/* ---- refusals ---- */

/* A file that could be cut short under the observer, or is too short or too long, is not mapped. */
static void open_refuses_files_that_are_none(void)
{
    CHECK_EQ(answer_to(control_of(whole(), SEALED)), 0);
    CHECK_EQ(answer_to(control_of(whole(), 0)), EPROTO);
    CHECK_EQ(answer_to(control_of(whole(), F_SEAL_GROW)), EPROTO);
    CHECK_EQ(answer_to(control_of(whole(), F_SEAL_SHRINK)), EPROTO);
    CHECK_EQ(answer_to(control_of(0, SEALED)), EPROTO);
    CHECK_EQ(answer_to(control_of(sizeof(struct rf_control) - 1, SEALED)), EPROTO);
    CHECK_EQ(answer_to(control_of(sizeof(struct rf_control), SEALED)), EPROTO);
    CHECK_EQ(answer_to(control_of(whole() + RF_PAGE, SEALED)), EPROTO);
    CHECK_EQ(answer_to(control_of(RF_CONTROL_MAX + RF_PAGE, SEALED)), EPROTO);
    CHECK_EQ(answer_to(memfd_of(whole())), EPROTO);
    CHECK_EQ(answer_to(open("/dev/null", O_RDONLY | O_CLOEXEC)), EPROTO);
    CHECK_EQ(answer_to(-1), EBADF);
}

static struct rf_control *spoilt;

static void magic(void) { spoilt->magic ^= 1; }
static void abi(void) { spoilt->abi += 1; }
static void size(void) { spoilt->control_size -= RF_LINE; }
static void no_slots(void) { spoilt->geometry.slots = 0; }
static void more_slots(void) { spoilt->geometry.slots = 30; }
static void many_slots(void) { spoilt->geometry.slots = UINT32_MAX; }
static void no_cells(void) { spoilt->geometry.cells = 0; }
static void many_cells(void) { spoilt->geometry.cells = UINT32_MAX; }
static void more_cells(void) { spoilt->geometry.cells = RF_MAX_CELLS; }
static void no_workers(void) { spoilt->geometry.workers = 0; }
static void less_ids(void) { spoilt->geometry.ids = 1; }
static void more_ids(void) { spoilt->geometry.ids = RF_MAX_IDS; }
static void many_ids(void) { spoilt->geometry.ids = UINT32_MAX; }
static void no_rows(void) { spoilt->geometry.rows = 0; }
static void far_failures(void) { spoilt->geometry.failures_at = UINT64_MAX; }

/* So many of all that their size, counted in 64 bits, is that of the file. */
static void wrapped(void)
{
    uint64_t cells = UINT32_MAX,
             slot = cells * sizeof(struct rf_cell) + sizeof(struct rf_record) + sizeof(uint64_t);
    uint64_t slots = UINT64_MAX / slot, short_of = -(slots * slot);
    uint64_t ids = (short_of + whole() - rf_workers_at() - RF_PAGE / 2) / sizeof(struct rf_worker);
    spoilt->geometry.cells = (uint32_t)cells;
    spoilt->geometry.slots = (uint32_t)slots;
    spoilt->geometry.ids = (uint32_t)ids;
    if (rf_control_size(spoilt->geometry.slots, spoilt->geometry.cells, spoilt->geometry.ids) !=
        whole())
        abort();
}

/* A header of another program, version or size is refused. */
static void open_refuses_headers_that_do_not_fit(void)
{
    void (*const spoils[])(void) = {magic,      abi,        size,         no_slots,
                                    more_slots, many_slots, no_cells,     many_cells,
                                    more_cells, no_workers, less_ids,     more_ids,
                                    many_ids,   no_rows,    far_failures, wrapped};
    for (uint32_t number = 0; number < sizeof spoils / sizeof *spoils; number++) {
        int fd = control_of(whole(), SEALED);
        spoilt = rf_map(fd, whole(), 0);
        spoils[number]();
        spoilt->seal = rf_seal_geometry(&spoilt->geometry); /* or that alone would refuse it */
        rf_unmap(spoilt, whole());
        if (answer_to(fd) != EPROTO)
            check_report_numbers(__FILE__, __LINE__, "the answer to this spoil", number, EPROTO);
    }
}

static void as_many_ids_as_workers(void) { spoilt->geometry.workers = spoilt->geometry.ids; }
static void failures_at_the_end(void) { spoilt->geometry.failures_at = spoilt->geometry.slot_size; }

/* What fits to the last byte, and the last id, is taken. */
static void open_takes_what_just_fits(void)
{
    void (*const changes[])(void) = {as_many_ids_as_workers, failures_at_the_end};
    for (uint32_t number = 0; number < sizeof changes / sizeof *changes; number++) {
        int fd = control_of(whole(), SEALED);
        spoilt = rf_map(fd, whole(), 0);
        changes[number]();
        spoilt->seal = rf_seal_geometry(&spoilt->geometry);
        rf_unmap(spoilt, whole());
        if (answer_to(fd) != 0)
            check_report_numbers(__FILE__, __LINE__, "the answer to this change", number, 0);
    }
}

/* ---- what is read ---- */

struct scene {
    int control_fd, slots_fd;
    struct rf_ring *ring;
    struct rf_watch watch;
};

static struct scene begin(void)
{
    struct rf_geometry geometry = good();
    uint64_t slots_size = geometry.slots * geometry.slot_size;
    struct scene scene = {.control_fd = control_of(whole(), SEALED),
                          .slots_fd = memfd_of(slots_size)};
    int why;
    scene.ring = rf_open(scene.control_fd, scene.slots_fd, whole(), slots_size, NULL, &why);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", scene.control_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (!scene.ring || rf_become_consumer(scene.ring, 8, 3) != 0 ||
        rf_watch_open(&scene.watch, fd) != 0)
        abort();
    close(fd);
    return scene;
}

static void end(struct scene *scene)
{
    rf_watch_close(&scene->watch);
    rf_unreference(scene->ring);
    close(scene->control_fd);
    close(scene->slots_fd);
}

/* A batch is seen at each stage of its life, through a descriptor that is open for reading only. */
static void a_batch_is_seen_from_bind_to_release(void)
{
    struct scene scene = begin();
    const struct rf_watch *watch = &scene.watch;
    CHECK_EQ(rf_watch_slot(watch, 0).state, RF_SLOT_FREE);
    bind_batches(scene.ring, 1, 8);
    struct rf_claim claim;
    CHECK(claim_as(scene.ring, 1, &claim));
    struct rf_slot_report slot = rf_watch_slot(watch, claim.slot);
    CHECK_EQ(slot.state, RF_SLOT_BOUND);
    CHECK(!rf_cells_are_final(slot.cells));
    CHECK_EQ(slot.rows, 8);
    CHECK_EQ(slot.epoch, 1);
    CHECK_EQ(slot.cells.claimed, 1);
    CHECK_EQ(slot.cells.final, 0);
    CHECK(slot.tickets >= 1 && slot.tickets <= WATCHED_CELLS);
    rf_publish(scene.ring, &claim, false);
    fill_all(scene.ring, 0);
    slot = rf_watch_slot(watch, claim.slot);
    CHECK(rf_cells_are_final(slot.cells));
    CHECK_EQ(slot.cells.final, slot.tickets);
    struct rf_taken taken = taken_of(scene.ring);
    slot = rf_watch_slot(watch, taken.slot);
    CHECK_EQ(slot.state, RF_SLOT_HELD);
    CHECK(slot.held_ns > 0 && slot.held_ns <= (uint64_t)rf_now_ns());
    CHECK_EQ(rf_watch_consumer(watch).batches, 1);
    CHECK_EQ(rf_watch_consumer(watch).samples, 8);
    rf_drop(scene.ring, taken.slot);
    CHECK_EQ(rf_watch_slot(watch, taken.slot).state, RF_SLOT_FREE);
    end(&scene);
}

/* A worker is seen in its ticket, in a row, and after it; ids apart. */
static void a_worker_is_seen_at_its_row(void)
{
    struct scene scene = begin();
    bind_batches(scene.ring, 1, 8);
    rf_note_pid(scene.ring, 1, 4711);
    struct rf_claim claim;
    CHECK(claim_as(scene.ring, 1, &claim));
    struct rf_worker_report worker = rf_watch_worker(&scene.watch, 1);
    CHECK_EQ(worker.since_ns, (uint64_t)claim.claimed_ns);
    CHECK(!worker.in_row && !worker.leave);
    CHECK_EQ(worker.pid, 4711);
    CHECK_EQ(worker.tickets, 1);
    rf_blame(&claim, 1);
    worker = rf_watch_worker(&scene.watch, 1);
    CHECK(worker.in_row);
    CHECK_EQ(worker.index, (uint64_t)claim.indices[1]);
    rf_publish(scene.ring, &claim, false);
    worker = rf_watch_worker(&scene.watch, 1);
    CHECK(!worker.in_row);
    CHECK_EQ(worker.since_ns, 0);
    CHECK_EQ(worker.samples, claim.rows);
    CHECK_EQ(rf_watch_worker(&scene.watch, 0).tickets, 0);
    end(&scene);
}

/* A wait is seen from its first slice to where it is counted, and the end of the ring. */
static void a_wait_and_the_end_are_seen(void)
{
    struct scene scene = begin();
    CHECK(!rf_watch_consumer(&scene.watch).stopped);
    bind_batches(scene.ring, 1, 8);
    CHECK_EQ(rf_watch_consumer(&scene.watch).wait_ns, 0);
    int64_t began_ns = rf_now_ns();
    CHECK_EQ(rf_wait_head(scene.ring, 0, soon_ns(5)), RF_PENDING);
    uint64_t wait_ns = rf_watch_consumer(&scene.watch).wait_ns;
    CHECK(wait_ns >= (uint64_t)began_ns && wait_ns <= (uint64_t)rf_now_ns());
    CHECK_EQ(rf_wait_head(scene.ring, 0, soon_ns(5)), RF_PENDING);
    CHECK_EQ(rf_watch_consumer(&scene.watch).wait_ns, wait_ns);
    rf_note_stall(scene.ring, 12345);
    CHECK_EQ(rf_watch_consumer(&scene.watch).stall_ns, 12345);
    CHECK_EQ(rf_watch_consumer(&scene.watch).wait_ns, 0);
    CHECK_EQ(rf_watch_consumer(&scene.watch).world_size, 0);
    rf_note_rank(scene.ring, 3, 8);
    CHECK_EQ(rf_watch_consumer(&scene.watch).rank, 3);
    CHECK_EQ(rf_watch_consumer(&scene.watch).world_size, 8);
    struct rf_waits waits;
    atomic_store(&scene.ring->control->ledger.waits[17], 5);
    rf_watch_waits(&scene.watch, &waits);
    CHECK_EQ(waits.counts[18], 5);
    CHECK_EQ(waits.counts[17], 0);
    CHECK_EQ(waits.counts[0], 0);
    rf_stop(scene.ring);
    CHECK(rf_watch_consumer(&scene.watch).stopped);
    end(&scene);
}

/* ---- nothing is trusted ---- */

/* What is read of each slot is bounded, whatever stands there. */
static bool reads_are_bounded(const struct rf_watch *watch)
{
    for (uint32_t slot = 0; slot < watch->geometry.slots; slot++) {
        struct rf_slot_report report = rf_watch_slot(watch, slot);
        if (report.tickets > WATCHED_CELLS ||
            report.cells.claimed + report.cells.final + report.cells.available > WATCHED_CELLS ||
            report.state > RF_SLOT_PARKED)
            return false;
    }
    for (uint32_t worker = 0; worker < watch->geometry.ids; worker++)
        (void)rf_watch_worker(watch, worker);
    (void)rf_watch_consumer(watch);
    return true;
}

/* Rubbish written over all of the control block, after it was opened, does not lead an observer
 * out of it. */
static void rubbish_leads_nowhere(void)
{
    struct scene scene = begin();
    uint8_t *memory = (uint8_t *)scene.ring->control;
    memset(memory, 0xff, whole());
    bool bounded = reads_are_bounded(&scene.watch);
    uint64_t random = 88172645463325252u;
    for (uint32_t round = 0; bounded && round < 200; round++) {
        for (uint64_t place = 0; place < whole(); place++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            memory[place] = (uint8_t)random;
        }
        bounded = reads_are_bounded(&scene.watch);
    }
    CHECK(bounded);
    CHECK_EQ(scene.watch.geometry.slots, WATCHED_SLOTS);
    end(&scene);
}

int main(void)
{
    check_begin();
    RUN(open_refuses_files_that_are_none);
    RUN(open_refuses_headers_that_do_not_fit);
    RUN(open_takes_what_just_fits);
    RUN(a_batch_is_seen_from_bind_to_release);
    RUN(a_worker_is_seen_at_its_row);
    RUN(a_wait_and_the_end_are_seen);
    RUN(rubbish_leads_nowhere);
    return check_end("test_snapshot");
}
