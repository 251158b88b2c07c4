// See shim.h. Relacy's own words: https://github.com/dvyukov/relacy
#include "world.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

world *now;

void fail(const char *what)
{
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", what);
    std::exit(2); // REFUSED
}

// ---- an execution ----

void world::begin()
{
    now = this;
    clock_ns = 0;
    const unsigned calms[] = {0, 4, 6, 7};
    calm = calms[rl::rand(4)];
    for (unsigned thread = 0; thread < THREADS; thread++) {
        wakes[thread] = rl::ctx().sema_ctor(false, 0, 1000);
        signals[thread] = rl::ctx().sema_ctor(false, 0, 1000);
    }
}

void world::end()
{
    now = nullptr;
    for (auto &each : atomics)
        delete each.second;
    for (auto &each : plains)
        delete each.second;
    for (unsigned thread = 0; thread < THREADS; thread++) {
        rl::ctx().sema_dtor(wakes[thread]);
        rl::ctx().sema_dtor(signals[thread]);
    }
}

namespace
{

// Relacy lets another thread in before every step, with even odds. Some faults need long runs of one thread.
struct calm_step {
    const bool calm = rl::rand(8) < now->calm;

    calm_step()
    {
        if (calm)
            rl::ctx().disable_preemption();
    }
    ~calm_step()
    {
        if (calm)
            rl::ctx().enable_preemption();
    }
};

// ---- memory ----

using atomic = rl::atomic<std::uint64_t>;

// NULL: nobody looks at it.
atomic *atomic_at(const volatile void *place, int order)
{
    if (!now)
        return nullptr;
    auto found = now->atomics.find((std::uintptr_t)place);
    if (found != now->atomics.end())
        return found->second;
    if (order != __ATOMIC_RELAXED)
        fail("stage.c has memory that nobody looks at, and an order is asked for there");
    return nullptr;
}

// What a history says of a step: which line of the core it is.
rl::debug_info at(const site *site) { return rl::debug_info(site->function, site->object, (unsigned)site->line); }

std::uint64_t read_place(const volatile void *place, std::size_t size)
{
    std::uint64_t value = 0;
    std::memcpy(&value, const_cast<const void *>(place), size);
    return value;
}

void write_place(volatile void *place, std::size_t size, std::uint64_t value)
{
    std::memcpy(const_cast<void *>(place), &value, size);
}

void look_at(const void *start, std::size_t size, bool writes)
{
    if (!now)
        return;
    for (std::uintptr_t at = (std::uintptr_t)start; at < (std::uintptr_t)start + size; at++) {
        auto found = now->plains.find(at);
        if (found == now->plains.end())
            continue;
        if (writes)
            (*found->second)($) = 0;
        else
            (void)(*found->second)($).load();
    }
}

std::uint64_t changed(shim_operation operation, std::uint64_t old, std::uint64_t value)
{
    switch (operation) {
    case SHIM_add:
        return old + value;
    case SHIM_sub:
        return old - value;
    case SHIM_and:
        return old & value;
    case SHIM_or:
        return old | value;
    default:
        return value;
    }
}

std::uint64_t change(atomic &atomic, shim_operation operation, std::uint64_t value, rl::memory_order order,
                     const rl::debug_info &at)
{
    switch (operation) {
    case SHIM_add:
        return atomic.fetch_add(value, order, at);
    case SHIM_sub:
        return atomic.fetch_sub(value, order, at);
    case SHIM_and:
        return atomic.fetch_and(value, order, at);
    case SHIM_or:
        return atomic.fetch_or(value, order, at);
    default:
        return atomic.exchange(value, order, at);
    }
}

} // namespace

extern "C" {

// ---- for the core ----

uint64_t shim_load(const volatile void *place, size_t size, int order, site *site)
{
    atomic *atomic = atomic_at(place, order);
    if (!atomic)
        return read_place(place, size);
    calm_step step;
    return atomic->load(order_at(order, site, rl::mo_acquire), at(site));
}

void shim_store(volatile void *place, size_t size, uint64_t value, int order, site *site)
{
    atomic *atomic = atomic_at(place, order);
    if (!atomic)
        return write_place(place, size, value);
    calm_step step;
    atomic->store(value, order_at(order, site, rl::mo_release), at(site));
}

uint64_t shim_change(volatile void *place, size_t size, shim_operation operation, uint64_t value, int order, site *site)
{
    atomic *atomic = atomic_at(place, order);
    if (atomic) {
        calm_step step;
        return change(*atomic, operation, value, order_at(order, site, rl::mo_acq_rel), at(site));
    }
    std::uint64_t old = read_place(place, size);
    write_place(place, size, changed(operation, old, value));
    return old;
}

bool shim_swap(volatile void *place, size_t size, void *expected, uint64_t value, int order, int failed, bool spurious,
               site *site)
{
    atomic *atomic = atomic_at(place, __ATOMIC_SEQ_CST);
    calm_step step;
    std::uint64_t seen = read_place(expected, size);
    rl::memory_order made = order_at(order, site, rl::mo_acq_rel), unmade = failed_order(made, failed);
    bool done = spurious ? atomic->compare_exchange(rl::bool_t<true>(), seen, value, made, unmade, at(site))
                         : atomic->compare_exchange(rl::bool_t<false>(), seen, value, made, unmade, at(site));
    write_place(expected, size, seen);
    return done;
}

// ---- for the scenes ----

void shim_atomic(const volatile void *place, size_t size)
{
    atomic *atomic = new rl::atomic<std::uint64_t>();
    atomic->store(read_place(place, size), rl::mo_relaxed, $);
    now->atomics[(std::uintptr_t)place] = atomic;
}

void shim_plain(const void *start, size_t size, size_t step)
{
    for (std::size_t at = 0; at < size; at += step) {
        rl::var<int> *plain = new rl::var<int>();
        (*plain)($) = 0;
        now->plains[(std::uintptr_t)start + at] = plain;
    }
}

void shim_signal(unsigned number)
{
    unsigned before;
    now->signals[number]->post(1, before, $);
}

void shim_await(unsigned number) { now->signals[number]->wait(false, false, $); }

void shim_check(bool condition, const char *what)
{
    if (!condition)
        rl::ctx().fail_test(what, rl::test_result_user_assert_failed, $);
}

// ---- the kernel's part, and the clock's ----

int64_t rf_now_ns(void) { return now ? ++now->clock_ns : 0; }
void rf_yield(unsigned) { rl::yield(1, $); }
void rf_pause(void) { rl::yield(1, $); }
std::uint32_t rf_cpus(void) { return 2; }

// The word is read as weakly as can be: the real kernel's barriers are not relied on.
int rf_futex_wait(std::uint32_t *address, std::uint32_t seen, std::int64_t)
{
    unsigned self = rl::thread_index();
    now->kernel.lock($);
    bool same = (std::uint32_t)atomic_at(address, __ATOMIC_SEQ_CST)->load(rl::mo_relaxed, $) == seen;
    if (same)
        now->sleepers.push_back({address, self});
    now->kernel.unlock($);
    if (same)
        now->wakes[self]->wait(false, false, $);
    return 0;
}

void rf_futex_wake(std::uint32_t *address, int count)
{
    std::vector<unsigned> woken;
    now->kernel.lock($);
    for (auto at = now->sleepers.begin(); at != now->sleepers.end() && count > 0;)
        if (at->first == address) {
            woken.push_back(at->second);
            at = now->sleepers.erase(at);
            count--;
        } else {
            ++at;
        }
    now->kernel.unlock($);
    for (unsigned thread : woken) {
        unsigned before;
        now->wakes[thread]->post(1, before, $);
    }
}

// ---- what the compiler calls: for plain accesses, and where atomics are initialised ----

void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}

#define PLAIN(size)                                                                                                    \
    void __tsan_read##size(void *place) { look_at(place, size, false); }                                               \
    void __tsan_write##size(void *place) { look_at(place, size, true); }                                               \
    void __tsan_unaligned_read##size(void *place) { look_at(place, size, false); }                                     \
    void __tsan_unaligned_write##size(void *place) { look_at(place, size, true); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
void __tsan_read_range(void *start, std::size_t size) { look_at(start, size, false); }
void __tsan_write_range(void *start, std::size_t size) { look_at(start, size, true); }

void *__tsan_memcpy(void *to, const void *from, std::size_t size)
{
    look_at(from, size, false);
    look_at(to, size, true);
    return std::memcpy(to, from, size);
}

void *__tsan_memset(void *to, int value, std::size_t size)
{
    look_at(to, size, true);
    return std::memset(to, value, size);
}

void __tsan_atomic32_store(volatile void *place, std::uint32_t value, int) { write_place(place, sizeof value, value); }

} // extern "C"
