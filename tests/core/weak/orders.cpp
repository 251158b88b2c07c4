// Which order each atomic operation is made with: the core's own, or a weaker one.
#include "world.hpp"

#include <cstdio>
#include <cstring>

#define ORDER(function, operation, object, need, scene) {function, operation, object, need, scene, "", ""},
#define SPARE(function, operation, object, groups, why) {function, operation, object, NOTHING, nullptr, groups, why},
#define TOGETHER(group, scene)
const order orders[] = {
#include "orders.h"
};
#undef ORDER
#undef SPARE
#undef TOGETHER
const int order_count = sizeof orders / sizeof *orders;
bool order_seen[sizeof orders / sizeof *orders];

#define ORDER(function, operation, object, need, scene)
#define SPARE(function, operation, object, groups, why)
#define TOGETHER(letter, scene) {letter, scene},
const group groups[] = {
#include "orders.h"
    {0, nullptr},
};

breakage broken = {NO_ORDER, 0, RELAXED};

namespace
{

void find_order(site &site)
{
    site.order = SITE_UNKNOWN;
    for (int number = 0; number < order_count; number++)
        if (!std::strcmp(orders[number].function, site.function) && !std::strcmp(orders[number].object, site.object) &&
            !std::strcmp(orders[number].operation, site.operation))
            site.order = number;
    if (site.order == SITE_UNKNOWN) {
        std::fprintf(stderr, "%s: %s of %s\n", site.function, site.operation, site.object);
        fail("orders.h does not name this order: see there");
    }
    order_seen[site.order] = true;
}

bool is_broken(int number)
{
    if (broken.group)
        return broken.group == EVERY_GROUP || std::strchr(orders[number].groups, broken.group);
    return broken.order == number;
}

} // namespace

// The order to use instead of `asked`: the same, unless this one is broken.
rl::memory_order order_at(int asked, site *site, rl::memory_order without_seq_cst)
{
    static const rl::memory_order all[] = {rl::mo_relaxed, rl::mo_acquire, rl::mo_acquire,
                                           rl::mo_release, rl::mo_acq_rel, rl::mo_seq_cst};
    if (asked == __ATOMIC_RELAXED)
        return rl::mo_relaxed;
    if (site->order == SITE_NEW)
        find_order(*site);
    if (!is_broken(site->order))
        return all[asked];
    if (broken.to == RELAXED)
        return rl::mo_relaxed;
    return asked == __ATOMIC_SEQ_CST ? without_seq_cst : all[asked];
}

// A compare-exchange that fails is a load, never stronger than what it would have been.
rl::memory_order failed_order(rl::memory_order made, int failed)
{
    if (failed == __ATOMIC_RELAXED || made == rl::mo_relaxed)
        return rl::mo_relaxed;
    return failed == __ATOMIC_SEQ_CST && made == rl::mo_seq_cst ? rl::mo_seq_cst : rl::mo_acquire;
}
