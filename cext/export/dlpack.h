/* DLPack: a field of a held slot, as every framework takes it. The layout is that of dlpack.h
 * (https://dmlc.github.io/dlpack/latest/c_api.html). */
#ifndef RF_DLPACK_H
#define RF_DLPACK_H

#include "ring.h"

#define RF_DLPACK_CPU 1   /* of device_type */
#define RF_DLPACK_FLOAT 2 /* of code */
#define RF_MAX_AXES 33

struct rf_dlpack_type {
    uint8_t code, bits; /* code: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool */
    uint16_t lanes;
};

struct rf_dlpack_tensor {
    void *address;
    int32_t device_type, device_id;
    int32_t axes;
    struct rf_dlpack_type type;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
};

struct rf_dlpack { /* DLManagedTensor */
    struct rf_dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct rf_dlpack *self);
};

/* What is exported: a C-contiguous array inside a slot that the caller holds. */
struct rf_field {
    uint8_t *address;
    struct rf_dlpack_type type;
    int32_t axes;
    int64_t shape[RF_MAX_AXES];
};

/* One more hold on the slot, which the deleter drops: from any thread, without the GIL or Python,
 * also after the ring's stop. NULL without memory. */
struct rf_dlpack *rf_export(struct rf_ring *ring, uint32_t slot, const struct rf_field *field);

#endif
