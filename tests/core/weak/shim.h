/* Between the core and Relacy, a checker of programs under the C++11 memory model.
 *
 * The files of cext/ are compiled with atomics.h before them, so that their atomic operations come here, and with
 * -fsanitize=thread, so that the compiler calls __tsan_… before each plain access. shim.cpp answers both with
 * Relacy's atomics and variables, instead of the machine and the sanitizer. It plays the kernel's futex too. */
#ifndef RF_WEAK_SHIM_H
#define RF_WEAK_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- for the core: atomics.h ---- */

enum { SITE_NEW = -2, SITE_UNKNOWN = -1 };

struct site { /* where in the core an atomic operation stands; `order`: its number in orders.h, or SITE_… */
    const char *function, *operation, *object;
    int order, line;
};

enum shim_operation { SHIM_exchange, SHIM_add, SHIM_sub, SHIM_and, SHIM_or };

uint64_t shim_load(const volatile void *place, size_t size, int order, struct site *site);
void shim_store(volatile void *place, size_t size, uint64_t value, int order, struct site *site);
uint64_t shim_change(volatile void *place, size_t size, enum shim_operation operation, uint64_t value, int order,
                     struct site *site);
bool shim_swap(volatile void *place, size_t size, void *expected, uint64_t value, int order, int failed, bool spurious,
               struct site *site);

/* ---- for the scenes ---- */

/* Before the threads start: which memory is looked at. `step`: the size of the smallest access to it. What is not named
 * here is nobody's business, and may be accessed in no order but relaxed. */
void shim_atomic(const volatile void *place, size_t size);
void shim_plain(const void *start, size_t size, size_t step);

/* What the threads of a scene share beside the ring, and outside the rules: pidfds, the GIL, the user's own locks. */
void shim_signal(unsigned number);
void shim_await(unsigned number);
void shim_check(bool condition, const char *what);

#ifdef __cplusplus
}
#endif

#endif
