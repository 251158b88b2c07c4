#include "export/dlpack.h"

#include <stdlib.h>
#include <string.h>

struct holder { /* of a slot, for as long as its export is not deleted */
    struct rf_dlpack export;
    struct rf_ring *ring;
    uint32_t slot;
    int64_t shape[RF_MAX_AXES], strides[RF_MAX_AXES];
};

static void let_go(struct rf_dlpack *export)
{
    struct holder *holder = export->context;
    struct rf_ring *ring = holder->ring;
    uint32_t slot = holder->slot;
    free(holder);
    rf_drop(ring, slot);
    rf_unreference(ring);
}

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

struct rf_dlpack *rf_export(struct rf_ring *ring, uint32_t slot, const struct rf_field *field)
{
    struct holder *holder = hold(ring, slot, field);
    if (!holder)
        return NULL;
    holder->export = (struct rf_dlpack){.context = holder, .deleter = let_go};
    holder->export.tensor = (struct rf_dlpack_tensor){.address = field->address,
                                                      .device_type = RF_DLPACK_CPU,
                                                      .axes = field->axes,
                                                      .type = field->type,
                                                      .shape = holder->shape,
                                                      .strides = holder->strides};
    return &holder->export;
}
