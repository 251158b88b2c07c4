#include "export/dlpack.h"

#include <stdlib.h>
#include <string.h>

struct holder { /* what both forms of an export own; freed with them */
    struct rf_ring *ring;
    uint32_t slot;
    int64_t shape[RF_MAX_AXES], strides[RF_MAX_AXES];
    union {
        struct rf_dlpack plain;
        struct rf_dlpack_versioned versioned;
    } form;
};

static void let_go(struct holder *holder)
{
    struct rf_ring *ring = holder->ring;
    uint32_t slot = holder->slot;
    free(holder);
    rf_drop(ring, slot);
    rf_unreference(ring);
}

static void delete_plain(struct rf_dlpack *self) { let_go(self->context); }
static void delete_versioned(struct rf_dlpack_versioned *self) { let_go(self->context); }

static struct holder *hold(struct rf_ring *ring, uint32_t slot, const struct rf_field *field)
{
    struct holder *holder = calloc(1, sizeof *holder);
    if (!holder)
        return NULL;
    rf_reference(ring);
    rf_hold(ring, slot);
    holder->ring = ring;
    holder->slot = slot;
    memcpy(holder->shape, field->shape, (size_t)field->axes * sizeof *field->shape);
    int64_t stride = 1;
    for (int32_t axis = field->axes; axis-- > 0; stride *= field->shape[axis])
        holder->strides[axis] = stride;
    return holder;
}

static void describe(struct rf_dlpack_tensor *tensor, struct holder *holder, const struct rf_field *field)
{
    *tensor = (struct rf_dlpack_tensor){.address = field->address,
                                        .device_type = RF_DLPACK_CPU,
                                        .axes = field->axes,
                                        .type = field->type,
                                        .shape = holder->shape,
                                        .strides = holder->strides};
}

struct rf_dlpack *rf_export(struct rf_ring *ring, uint32_t slot, const struct rf_field *field)
{
    struct holder *holder = hold(ring, slot, field);
    if (!holder)
        return NULL;
    struct rf_dlpack *export = &holder->form.plain;
    describe(&export->tensor, holder, field);
    export->context = holder;
    export->deleter = delete_plain;
    return export;
}

struct rf_dlpack_versioned *rf_export_versioned(struct rf_ring *ring, uint32_t slot, const struct rf_field *field)
{
    struct holder *holder = hold(ring, slot, field);
    if (!holder)
        return NULL;
    struct rf_dlpack_versioned *export = &holder->form.versioned;
    describe(&export->tensor, holder, field);
    export->major = 1;
    export->context = holder;
    export->deleter = delete_versioned;
    return export;
}
