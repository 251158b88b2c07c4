#define _GNU_SOURCE
#include "hooks.h"

#include <errno.h>
#include <unistd.h>

void (*before_sleep)(struct rf_ring *ring);
void (*before_wake)(struct rf_ring *ring);
void (*before_is_planned)(struct rf_ring *ring);
struct rf_ring *hooked_ring;
_Atomic uint32_t sleeps_begun, sleeps_in_vain;
_Atomic int wake_count;

static void act_once(void (**hook)(struct rf_ring *ring))
{
    void (*action)(struct rf_ring *ring) = *hook;
    if (!action)
        return;
    *hook = NULL;
    action(hooked_ring);
}

int __real_rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns);
int __wrap_rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns);
void __real_rf_futex_wake(_Atomic uint32_t *address, int count);
void __wrap_rf_futex_wake(_Atomic uint32_t *address, int count);
bool __real_rf_is_planned(const struct rf_ring *ring);
bool __wrap_rf_is_planned(const struct rf_ring *ring);

int __wrap_rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns)
{
    act_once(&before_sleep);
    atomic_fetch_add(&sleeps_begun, 1);
    int error = __real_rf_futex_wait(address, seen, deadline_ns);
    if (error == ETIMEDOUT)
        atomic_fetch_add(&sleeps_in_vain, 1);
    return error;
}

void __wrap_rf_futex_wake(_Atomic uint32_t *address, int count)
{
    act_once(&before_wake);
    atomic_store(&wake_count, count);
    __real_rf_futex_wake(address, count);
}

bool __wrap_rf_is_planned(const struct rf_ring *ring)
{
    act_once(&before_is_planned);
    return __real_rf_is_planned(ring);
}

void wait_for_sleeps(uint32_t count)
{
    while (atomic_load(&sleeps_begun) < count)
        usleep(1000);
    usleep(10000);
}
