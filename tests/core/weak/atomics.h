/* Included before every file of the core: each atomic operation goes to shim.cpp, and says where in the core it stands.
 * Its place and its order are otherwise those of the core's own line. */
#ifndef RF_WEAK_ATOMICS_H
#define RF_WEAK_ATOMICS_H

#include <stdatomic.h>

#include "shim.h"

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#undef atomic_fetch_and_explicit
#undef atomic_fetch_or_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit

#define AT(operation, object)                                                                                          \
    (__extension__({                                                                                                   \
        static struct site site = {__func__, operation, #object, SITE_NEW, __LINE__};                                  \
        &site;                                                                                                         \
    }))
#define PLACE(object) (void *)(object), sizeof *(object)
#define VALUE(object) (__typeof__((void)0, *(object)))

#define atomic_load_explicit(object, order) (VALUE(object) shim_load(PLACE(object), order, AT("load", object)))
#define atomic_store_explicit(object, value, order)                                                                    \
    shim_store(PLACE(object), (uint64_t)(value), order, AT("store", object))
#define CHANGE(object, operation, value, order)                                                                        \
    (VALUE(object) shim_change(PLACE(object), SHIM_##operation, (uint64_t)(value), order, AT(#operation, object)))
#define atomic_exchange_explicit(object, value, order) CHANGE(object, exchange, value, order)
#define atomic_fetch_add_explicit(object, value, order) CHANGE(object, add, value, order)
#define atomic_fetch_sub_explicit(object, value, order) CHANGE(object, sub, value, order)
#define atomic_fetch_and_explicit(object, value, order) CHANGE(object, and, value, order)
#define atomic_fetch_or_explicit(object, value, order) CHANGE(object, or, value, order)
#define atomic_compare_exchange_strong_explicit(object, expected, value, order, failed)                                \
    shim_swap(PLACE(object), expected, (uint64_t)(value), order, failed, false, AT("swap", object))
#define atomic_compare_exchange_weak_explicit(object, expected, value, order, failed)                                  \
    shim_swap(PLACE(object), expected, (uint64_t)(value), order, failed, true, AT("swap", object))

#endif
