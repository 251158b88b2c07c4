// What one execution of a scene consists of, and what is broken in it.
#ifndef RF_WEAK_WORLD_HPP
#define RF_WEAK_WORLD_HPP

#include <relacy/relacy.hpp>
// Relacy renames what a program under test would call; here it is called as it is.
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef memory_order_relaxed
#undef errno

#include "scenes.h"
#include "shim.h"

#include <deque>
#include <unordered_map>
#include <utility>

struct world {
    std::unordered_map<std::uintptr_t, rl::atomic<std::uint64_t> *> atomics;
    std::unordered_map<std::uintptr_t, rl::var<int> *> plains;
    rl::mutex kernel;
    std::deque<std::pair<const void *, unsigned>> sleepers; // under `kernel`: the word, and who sleeps on it
    rl::sema_data *wakes[THREADS], *signals[THREADS];
    unsigned calm; // of 8 steps so many are made without letting another thread in
    std::int64_t clock_ns;

    void begin();
    void end();
};

extern world *now; // NULL: no execution

// ---- orders.h ----

enum need { SEQ_CST, ORDERED, NOTHING };

struct order {
    const char *function, *operation, *object;
    need what;
    const char *scene;  // that fails without it
    const char *groups; // of spare orders, a letter each: of such a group not all may fail
    const char *why;    // nothing shows that it is needed
};
extern const order orders[];
extern const int order_count;
extern bool order_seen[]; // in some execution

struct group {
    char letter;       // 0 after the last
    const char *scene; // that fails without all of it
};
extern const group groups[];

enum strength { ACQUIRE_RELEASE, RELAXED };
struct breakage {
    int order;  // a number in orders.h, or NO_ORDER
    char group; // or 0, or EVERY_GROUP: all orders there are
    strength to;
};
enum { NO_ORDER = -3, EVERY_GROUP = '*' };
extern breakage broken;

// The order to use instead of `asked`; `without_seq_cst` is what is left of seq_cst where that is broken.
rl::memory_order order_at(int asked, site *site, rl::memory_order without_seq_cst);
// And that of a compare-exchange which fails, where success has order `made`.
rl::memory_order failed_order(rl::memory_order made, int failed);

[[noreturn]] void fail(const char *what);

#endif
