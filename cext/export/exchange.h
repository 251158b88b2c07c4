/* DLPack from others: a tensor's memory, by the C functions that its type shows since DLPack 1.3.
 * The layout is that of dlpack.h (https://dmlc.github.io/dlpack/latest/c_api.html). */
#ifndef RF_EXCHANGE_H
#define RF_EXCHANGE_H

#include "export/dlpack.h"

#define RF_EXCHANGE_MAJOR 1
#define RF_EXCHANGE_NAME "dlpack_exchange_api" /* of the capsule */

/* Describes an object's tensor, without a hold on it: 0, or -1 with a Python error. */
typedef int (*rf_describe)(void *object, struct rf_dlpack_tensor *tensor);

struct rf_exchange { /* DLPackExchangeAPI */
    uint32_t major, minor;
    struct rf_exchange *older;
    void *allocate, *take, *give;
    rf_describe describe;
    void *stream;
};

#endif
