#define _GNU_SOURCE
#include "place.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int memfd_of(uint64_t size)
{
    int fd = memfd_create("ringfeed-test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        abort();
    return fd;
}

struct rf_geometry geometry_of(uint32_t slots, uint32_t cells, uint32_t workers, uint32_t rows,
                               uint32_t row_size)
{
    uint64_t failures_at = rf_round_up((uint64_t)rows * row_size, RF_FIELD_ALIGN);
    uint64_t indices_at = failures_at + (uint64_t)cells * RF_FAILURE_SIZE;
    uint64_t marks_at = indices_at + rows * sizeof(int64_t);
    return (struct rf_geometry){.slots = slots,
                                .cells = cells,
                                .workers = workers,
                                .ids = workers,
                                .rows = rows,
                                .slot_size = rf_round_up(marks_at + rows, RF_PAGE),
                                .indices_at = indices_at,
                                .marks_at = marks_at,
                                .failures_at = failures_at};
}

struct rf_ring *open_as(const struct rf_geometry *geometry, int *why)
{
    uint64_t control_size = rf_control_size(geometry->slots, geometry->cells, geometry->ids);
    uint64_t slots_size = geometry->slots * geometry->slot_size;
    int control_fd = memfd_of(control_size), slots_fd = memfd_of(slots_size);
    struct rf_ring *ring = rf_open(control_fd, slots_fd, control_size, slots_size, geometry, why);
    close(control_fd);
    close(slots_fd);
    return ring;
}

struct rf_ring *ring_of(uint32_t slots, uint32_t cells, uint32_t workers, uint32_t rows)
{
    int why;
    struct rf_geometry geometry = geometry_of(slots, cells, workers, rows, sizeof(int64_t));
    struct rf_ring *ring = open_as(&geometry, &why);
    if (!ring || rf_become_consumer(ring, PLACE_CAPACITY, PLACE_ATTEMPTS) != 0)
        abort();
    return ring;
}

void bind_batches(struct rf_ring *ring, uint32_t count, uint32_t rows)
{
    int64_t indices[1024];
    for (uint32_t row = 0; row < rows; row++)
        indices[row] = row;
    while (count-- > 0)
        if (!rf_plan(ring, indices, rows, 1, 0))
            abort();
    rf_bind(ring);
}

bool claim_as(struct rf_ring *ring, uint32_t worker, struct rf_claim *claim)
{
    struct rf_cursor cursor = {.reaps = UINT32_MAX};
    return rf_claim_next(ring, worker, &cursor, claim);
}

uint32_t fill_all(struct rf_ring *ring, uint32_t worker)
{
    struct rf_claim claim;
    uint32_t tickets = 0;
    for (; claim_as(ring, worker, &claim); tickets++)
        rf_publish(ring, &claim, false);
    return tickets;
}

struct rf_taken taken_of(struct rf_ring *ring)
{
    struct rf_taken taken = {0};
    (void)rf_take(ring, &taken);
    return taken;
}

uint64_t word_at(const struct rf_ring *ring, uint32_t slot, uint32_t cell)
{
    return atomic_load(&rf_cell_of(ring, slot, cell)->word);
}

void place_word(struct rf_ring *ring, uint32_t slot, uint32_t cell, uint64_t word)
{
    atomic_store(&rf_cell_of(ring, slot, cell)->word, word);
}

void place_published(struct rf_ring *ring, uint32_t slot, uint32_t cell, enum rf_state state)
{
    const struct rf_binding *binding = rf_binding_of(ring, slot);
    struct rf_cell *place = rf_cell_of(ring, slot, cell);
    uint64_t word = rf_word(binding->batch * ring->geometry.cells + cell, 0, 0, state);
    place->rows = rf_rows_of(binding, cell);
    place->seal = rf_seal(word, place->rows, binding->epoch, binding->version, binding->sum[cell]);
    place_word(ring, slot, cell, word);
}

void place_batches(struct rf_ring *ring, uint64_t batches)
{
    atomic_store(&ring->control->head, batches);
    atomic_store(&ring->control->bound, batches);
    atomic_store(&ring->binder->head, batches);
    atomic_store(&ring->binder->bound, batches);
}

int64_t soon_ns(int64_t milliseconds) { return rf_now_ns() + milliseconds * 1000000; }

bool in_child(void (*child)(struct rf_ring *ring), struct rf_ring *ring)
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(120);
        child(ring);
        _exit(0);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}
