/* DLPack exports: each is one more hold, whoever ends it and whenever. */
#include "check.h"
#include "export/dlpack.h"
#include "place.h"

/* A ring with one batch taken, in slot 0. */
static struct rf_ring *taken_ring(void)
{
    struct rf_ring *ring = ring_of(2, 1, 1, 12);
    bind_batches(ring, 1, 12);
    fill_all(ring, 0);
    taken_of(ring);
    return ring;
}

static struct rf_field field_of(const struct rf_ring *ring)
{
    return (struct rf_field){.address = rf_slot_base(ring, 0),
                             .type = {.code = 0, .bits = 64, .lanes = 1},
                             .axes = 3,
                             .shape = {2, 3, 2}};
}

/* An export says where the field is, its type, its axes, and strides in elements. */
static void export_describes_the_field(void)
{
    struct rf_ring *ring = taken_ring();
    struct rf_field field = field_of(ring);
    struct rf_dlpack *export = rf_export(ring, 0, &field);
    CHECK(export);
    const struct rf_dlpack_tensor *tensor = &export->tensor;
    CHECK(tensor->address == field.address && tensor->byte_offset == 0 &&
          tensor->device_type == RF_DLPACK_CPU);
    CHECK(tensor->axes == 3 && tensor->shape[0] == 2 && tensor->shape[1] == 3 &&
          tensor->shape[2] == 2);
    CHECK(tensor->strides[0] == 6 && tensor->strides[1] == 2 && tensor->strides[2] == 1);
    CHECK(tensor->type.bits == 64 && tensor->type.lanes == 1);
    export->deleter(export);
    rf_unreference(ring);
}

/* The slot is free only after the lease and all exports have ended, in any order. */
static void exports_hold_the_slot(void)
{
    struct rf_ring *ring = taken_ring();
    struct rf_field field = field_of(ring);
    struct rf_dlpack *first = rf_export(ring, 0, &field), *second = rf_export(ring, 0, &field);
    CHECK(first && second);
    first->deleter(first);
    rf_drop(ring, 0);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_HELD);
    second->deleter(second);
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_FREE);
    CHECK_EQ(atomic_load(&ring->references), 1);
    rf_unreference(ring);
}

/* An export keeps the mapping: its memory can be read when all else is gone. */
static void exports_outlive_the_ring(void)
{
    struct rf_ring *ring = taken_ring();
    struct rf_field field = field_of(ring);
    struct rf_dlpack *export = rf_export(ring, 0, &field);
    CHECK(export);
    rf_stop(ring);
    rf_drop(ring, 0);
    rf_unreference(ring);
    CHECK_EQ(((const volatile uint8_t *)export->tensor.address)[0], 0);
    export->deleter(export);
}

static struct rf_dlpack *inherited;
static void delete_inherited(struct rf_ring *ring)
{
    (void)ring;
    inherited->deleter(inherited);
}

/* A forked child's copy of an export ends without effect. */
static void forked_childs_export_frees_nothing(void)
{
    struct rf_ring *ring = taken_ring();
    struct rf_field field = field_of(ring);
    inherited = rf_export(ring, 0, &field);
    CHECK(inherited);
    rf_drop(ring, 0);
    bind_batches(ring, 2, 12);
    CHECK(in_child(delete_inherited, ring));
    CHECK_EQ(rf_slot_state(ring, 0), RF_SLOT_HELD);
    CHECK_EQ(atomic_load(&ring->control->bound), 2);
    inherited->deleter(inherited);
    CHECK_EQ(atomic_load(&ring->control->bound), 3);
    rf_unreference(ring);
}

int main(void)
{
    check_begin();
    RUN(export_describes_the_field);
    RUN(exports_hold_the_slot);
    RUN(exports_outlive_the_ring);
    RUN(forked_childs_export_frees_nothing);
    return check_end("test_export");
}
