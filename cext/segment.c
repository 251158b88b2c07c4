/* A segment: its format, opened and mapped, and where everything lies in it; what
 * it tells observers. */
#include "ring.h"

#include "internal.h"
#include "os/pages.h"
#include "os/wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- making and keeping ---- */

void rf_format(struct rf_control *control, const struct rf_geometry *geometry)
{
    control->geometry = *geometry;
    control->control_size =
        (uint32_t)rf_control_size(geometry->slots, geometry->cells, geometry->ids);
    control->seal = rf_seal_geometry(geometry);
    control->abi = RF_ABI;
    control->magic = RF_MAGIC;
}

static bool lies_in(uint64_t size, uint64_t at, uint64_t bytes)
{
    return at <= size && bytes <= size - at;
}

static bool fits(const struct rf_geometry *geometry, uint64_t control_size, uint64_t slots_size)
{
    if (!geometry->slots || !geometry->cells || !geometry->workers || !geometry->rows ||
        !geometry->slot_size || geometry->cells > RF_MAX_CELLS ||
        geometry->workers > RF_MAX_WORKERS || geometry->slots > RF_CONTROL_MAX ||
        geometry->ids < geometry->workers || geometry->ids > RF_MAX_IDS)
        return false;
    uint64_t size = geometry->slot_size;
    if (size % RF_FIELD_ALIGN || geometry->indices_at % sizeof(int64_t) ||
        geometry->failures_at % sizeof(uint64_t))
        return false;
    return rf_control_size(geometry->slots, geometry->cells, geometry->ids) <= control_size &&
           size <= slots_size / geometry->slots &&
           lies_in(size, geometry->indices_at, geometry->rows * sizeof(int64_t)) &&
           lies_in(size, geometry->marks_at, geometry->rows) &&
           lies_in(size, geometry->failures_at, (uint64_t)geometry->cells * RF_FAILURE_SIZE);
}

static void place(struct rf_ring *ring)
{
    uint8_t *base = (uint8_t *)ring->control;
    uint32_t slots = ring->geometry.slots, ids = ring->geometry.ids;
    ring->workers = (struct rf_worker *)(base + rf_workers_at());
    ring->records = (struct rf_record *)(base + rf_records_at(ids));
    ring->slot_of = (_Atomic uint64_t *)(base + rf_slot_of_at(slots, ids));
    ring->cells = (struct rf_cell *)(base + rf_cells_at(slots, ids));
}

static void destroy(struct rf_ring *ring)
{
    if (ring->binder) {
        rf_delist(ring);
        free(ring->binder->holds);
        free(ring->binder->free_slots);
        free(ring->binder->deaths);
        free(ring->binder->bindings);
        free(ring->binder->slot_of);
        for (uint32_t place = 0; ring->binder->planned && place < ring->binder->capacity; place++)
            free(ring->binder->planned[place].saved);
        free(ring->binder->planned);
        free(ring->binder->indices);
        free(ring->binder);
    }
    if (ring->control)
        rf_unmap(ring->control, ring->control_size);
    if (ring->slots)
        rf_unmap(ring->slots, ring->slots_size);
    free((void *)ring->populated);
    free(ring);
}

struct rf_ring *rf_open(int control_fd, int slots_fd, uint64_t control_size, uint64_t slots_size,
                        const struct rf_geometry *fresh, int *why)
{
    struct rf_ring *ring = calloc(1, sizeof *ring);
    *why = ENOMEM;
    if (!ring)
        return NULL;
    ring->control_size = control_size;
    ring->slots_size = slots_size;
    ring->references = 1;
    atomic_store_explicit(&ring->keep_ns, RF_KEEP_NS, memory_order_relaxed);
    ring->generation = rf_fork_generation();
    *why = EPROTO;
    if (control_size < sizeof(struct rf_control))
        goto failed;
    ring->control = rf_map(control_fd, control_size, fresh != NULL);
    *why = errno;
    if (!ring->control)
        goto failed;
    if (fresh)
        rf_format(ring->control, fresh);
    ring->geometry = ring->control->geometry;
    *why = EPROTO;
    if (ring->control->magic != RF_MAGIC || ring->control->abi != RF_ABI ||
        ring->control->control_size != control_size ||
        ring->control->seal != rf_seal_geometry(&ring->geometry) ||
        !fits(&ring->geometry, control_size, slots_size))
        goto failed;
    ring->slots = rf_map(slots_fd, slots_size, fresh != NULL);
    *why = errno;
    if (!ring->slots)
        goto failed;
    *why = ENOMEM;
    ring->populated = calloc(ring->geometry.slots, sizeof *ring->populated);
    if (!ring->populated)
        goto failed;
    place(ring);
    *why = 0;
    return ring;
failed:
    destroy(ring);
    return NULL;
}

void rf_reference(struct rf_ring *ring)
{
    atomic_fetch_add_explicit(&ring->references, 1, memory_order_relaxed);
}

void rf_unreference(struct rf_ring *ring)
{
    if (rf_is_copy(ring))
        return; /* a forked child owns none of the references it copied */
    if (atomic_fetch_sub_explicit(&ring->references, 1, memory_order_acq_rel) == 1)
        destroy(ring);
}

uint8_t *rf_slot_base(const struct rf_ring *ring, uint32_t slot)
{
    return ring->slots + slot * ring->geometry.slot_size;
}

const uint8_t *rf_slot_marks(const struct rf_ring *ring, uint32_t slot)
{
    return rf_slot_base(ring, slot) + ring->geometry.marks_at;
}

const int64_t *rf_slot_indices(const struct rf_ring *ring, uint32_t slot)
{
    return (const int64_t *)(rf_slot_base(ring, slot) + ring->geometry.indices_at);
}

const struct rf_failure *rf_slot_failure(const struct rf_ring *ring, uint32_t slot, uint32_t cell)
{
    return (const struct rf_failure *)(rf_slot_base(ring, slot) + ring->geometry.failures_at) +
           cell;
}

void rf_populate_slot(struct rf_ring *ring, uint32_t slot)
{
    if (atomic_load_explicit(&ring->populated[slot], memory_order_relaxed))
        return;
    rf_populate(rf_slot_base(ring, slot), ring->geometry.slot_size);
    atomic_store_explicit(&ring->populated[slot], 1, memory_order_relaxed);
}

int rf_give_back(struct rf_ring *ring, uint32_t slot)
{
    rf_lock(ring->binder);
    bool kept = rf_keep_indices(ring, slot);
    rf_unlock(ring);
    if (!kept)
        return ENOMEM;
    atomic_store_explicit(&ring->populated[slot], 0, memory_order_relaxed);
    return rf_unpopulate(rf_slot_base(ring, slot), ring->geometry.slot_size);
}

/* ---- looking on ---- */

struct rf_slot_report rf_report_slot(const struct rf_ring *ring, uint32_t slot)
{
    const struct rf_cell *cells = rf_cell_of(ring, slot, 0);
    struct rf_slot_report report = rf_read_slot(&ring->records[slot], cells, ring->geometry.cells);
    if (ring->binder) {
        const struct rf_hold *hold = &ring->binder->holds[slot];
        report.state = rf_slot_state(ring, slot);
        report.held_ns = (uint64_t)atomic_load_explicit(&hold->since_ns, memory_order_relaxed);
    }
    return report;
}

struct rf_worker_report rf_report_worker(const struct rf_ring *ring, uint32_t worker)
{
    return rf_read_worker(&ring->workers[worker]);
}

struct rf_consumer_report rf_report_consumer(const struct rf_ring *ring)
{
    if (!ring->binder)
        return rf_read_consumer(ring->control, &ring->control->ledger);
    struct rf_consumer_report report = rf_read_consumer(ring->control, &ring->binder->ledger);
    report.open_slots = rf_open_slots(ring);
    report.stopped = atomic_load_explicit(&ring->binder->stop, memory_order_relaxed) != 0;
    return report;
}

void rf_report_waits(const struct rf_ring *ring, struct rf_waits *waits)
{
    rf_read_waits(ring->binder ? &ring->binder->ledger : &ring->control->ledger, waits);
}
