/* What is explored. Small ones, each about one thing, for every test run; larger ones, which mix, for `full`. */
#include "model.h"

#include <string.h>

#define RING(w, s, c, r) .workers = w, .slots = s, .cells = c, .rows = r
#define WORK(e, b, a) .epochs = e, .batches = b, .ahead = a

#define TRIES(a) .max_attempts = a
#define ONE .consumers = 1, .releasers = 1

static const struct configuration configurations[] = {
    {.name = "tiny", .about = "one worker, two batches of one row", .bounded = true,
     RING(1, 2, 1, 1), WORK(1, 2, 2), ONE, TRIES(2)},
    {.name = "one", .about = "one worker, one slot, two batches", .bounded = true,
     RING(1, 1, 1, 1), WORK(1, 2, 2), ONE, TRIES(2)},
    {.name = "stale", .about = "two workers, and one slot for two batches", .bounded = true,
     RING(2, 1, 1, 1), WORK(1, 2, 2), ONE, TRIES(2)},
    {.name = "small", .about = "two workers share two batches of two tickets", .bounded = true,
     RING(2, 2, 2, 2), WORK(1, 2, 2), ONE, TRIES(2)},
    {.name = "long", .about = "more batches than slots, of one ticket or two", .bounded = true,
     RING(1, 2, 2, 2), WORK(1, 4, 3), .tickets = {2, 1, 1, 2}, ONE, TRIES(2)},
    {.name = "window", .about = "three batches, of which one may be planned without a slot", .bounded = true,
     RING(1, 1, 1, 1), WORK(1, 3, 3), .window = 1, ONE, TRIES(2)},
    {.name = "border", .about = "the next epoch is planned, beyond a border", .bounded = true,
     RING(1, 2, 1, 1), WORK(2, 2, 4), ONE, .crosses = true, TRIES(2)},
    {.name = "border-break", .about = "and the first of two epochs is broken off", .bounded = true,
     RING(1, 1, 1, 1), WORK(2, 1, 2), ONE, .crosses = true, .breaks = 1, TRIES(2)},
    {.name = "border-consumers", .about = "two consumer threads meet at the border", .bounded = true,
     RING(1, 2, 1, 1), WORK(2, 1, 2), .consumers = 2, .crosses = true, TRIES(2)},
    {.name = "kill", .about = "a worker is killed twice, at any step", .bounded = true,
     RING(1, 2, 1, 1), WORK(1, 2, 2), ONE, .kills = 2, TRIES(3)},
    {.name = "kill-2", .about = "one of two workers is killed, and replaced late or never", .bounded = true,
     RING(2, 2, 1, 1), WORK(1, 2, 2), .consumers = 1, .kills = 1, .slow_starts = true, TRIES(2)},
    {.name = "pace", .about = "tickets are pace; workers come up late or never", .bounded = true,
     RING(2, 1, 1, 1), WORK(1, 2, 2), ONE, .pace = true, .slow_starts = true, TRIES(2)},
    {.name = "pace-calls", .about = "the same with two slots, and a worker is woken for nothing", .bounded = true,
     RING(2, 2, 1, 1), WORK(1, 2, 2), .consumers = 1, .pace = true, .slow_starts = true, .calls = 1, TRIES(2)},
    {.name = "pace-kill", .about = "and a worker is killed, in one of two tickets or between them", .bounded = true,
     RING(2, 1, 2, 2), WORK(1, 1, 1), .consumers = 1, .kills = 1, .pace = true, .slow_starts = true, .calls = 1,
     TRIES(2)},
    {.name = "break", .about = "an epoch is broken off", .bounded = true,
     RING(1, 2, 1, 1), WORK(2, 2, 2), ONE, .breaks = 1, TRIES(2)},
    {.name = "break-plan", .about = "an epoch is broken off while batches are planned and not bound", .bounded = true,
     RING(1, 1, 2, 2), WORK(2, 2, 2), ONE, .breaks = 1, TRIES(2)},
    {.name = "break-kill", .about = "an epoch is broken off and a worker killed", .bounded = true,
     RING(1, 1, 1, 1), WORK(2, 2, 2), ONE, .breaks = 1, .kills = 1, TRIES(2)},
    {.name = "failures", .about = "rows raise, always or sometimes; a worker is killed", .bounded = true,
     RING(1, 1, 2, 3), WORK(1, 2, 2), ONE, .kills = 1, .raises = 1 << 1 | 1 << 4, .flaky = 1 << 0 | 1 << 2, TRIES(2)},
    {.name = "poison", .about = "a row kills its worker", .bounded = true,
     RING(1, 1, 2, 3), WORK(1, 2, 2), ONE, .kills = 1, .poison = 1 << 1, TRIES(2)},
    {.name = "consumers", .about = "two consumer threads take, and release what they took", .bounded = true,
     RING(1, 2, 1, 1), WORK(1, 3, 3), .consumers = 2, TRIES(2)},
    {.name = "consumers-slot", .about = "two consumer threads take from one slot, a third releases", .bounded = true,
     RING(1, 1, 1, 1), WORK(1, 2, 2), .consumers = 2, .releasers = 1, TRIES(2)},
    {.name = "consumers-tickets", .about = "two consumer threads wait for a batch of two tickets", .bounded = true,
     RING(2, 1, 2, 2), WORK(1, 1, 1), .consumers = 2, TRIES(2)},
    {.name = "consumers-stop", .about = "two consumer threads, and the loader is closed", .bounded = true,
     RING(1, 1, 1, 1), WORK(1, 1, 1), .consumers = 2, .closes = true, TRIES(2)},
    {.name = "consumers-break", .about = "two consumer threads, of which one breaks the epoch off", .bounded = true,
     RING(1, 1, 1, 1), WORK(2, 2, 2), .consumers = 2, .breaks = 1, TRIES(2)},
    {.name = "exports", .about = "a slot has two holds, two threads drop", .bounded = true,
     RING(1, 1, 1, 1), WORK(1, 2, 2), .consumers = 1, .releasers = 2, .exports = 1, TRIES(2)},
    {.name = "fork", .about = "a forked child drops its copy of a view", .bounded = true,
     RING(1, 2, 1, 1), WORK(1, 3, 3), ONE, .forks = 1, TRIES(2)},
    {.name = "stop", .about = "the loader is closed, with views that live", .bounded = true,
     RING(1, 1, 1, 1), WORK(1, 2, 2), ONE, .closes = true, TRIES(2)},
    {.name = "alarm", .about = "the pool gives up after a death", .bounded = true,
     RING(1, 2, 1, 1), WORK(1, 2, 2), ONE, .kills = 1, .alarm_after = 1, TRIES(2)},
    {.name = "death", .about = "the consumer is killed", .bounded = true,
     RING(2, 1, 2, 2), WORK(1, 1, 1), ONE, .dies = true, TRIES(2)},
    {.name = "suspects", .about = "a worker stands still, and goes on later", .bounded = true,
     RING(2, 1, 1, 1), WORK(1, 2, 2), .consumers = 1, .freezes = 1, TRIES(2)},
    {.name = "quarantine", .about = "a suspect is fenced and replaced, what was bound is filled anew", .bounded = true,
     RING(2, 2, 1, 1), .spare = 1, WORK(1, 2, 2), .consumers = 1, .freezes = 1, .fences = true, TRIES(2)},
    {.name = "quarantine-one", .about = "the same with one slot: it waits for the suspect's end", .bounded = true,
     RING(2, 1, 1, 1), .spare = 1, WORK(1, 2, 2), .consumers = 1, .freezes = 1, .fences = true, TRIES(2)},
    {.name = "quarantine-id", .about = "the same with no id to spare: none replaces it", .bounded = true,
     RING(1, 2, 1, 1), WORK(1, 2, 2), .consumers = 1, .freezes = 1, .fences = true, TRIES(2)},
    {.name = "three", .about = "three workers share a batch of three tickets", .bounded = true,
     RING(3, 1, 3, 3), WORK(1, 1, 1), .consumers = 1, TRIES(2)},
    {.name = "away", .about = "rows are made elsewhere, perhaps never, and the epoch is broken off", .bounded = true,
     RING(1, 1, 1, 1), .away = 1, WORK(2, 2, 2), ONE, .breaks = 1, TRIES(2)},
    {.name = "away-kill", .about = "and the worker is killed that holds the ticket", .bounded = true,
     RING(1, 1, 1, 1), .away = 1, WORK(2, 1, 1), ONE, .breaks = 1, .kills = 1, TRIES(2)},
    {.name = "away-tickets", .about = "two workers hold tickets of one batch that is broken off", .bounded = true,
     RING(2, 1, 2, 2), .away = 3, WORK(2, 1, 1), .consumers = 1, .breaks = 1, TRIES(2)},
    {.name = "away-fence", .about = "one holds a ticket, another one stands still and is fenced", .bounded = true,
     RING(2, 1, 1, 1), .away = 1, WORK(1, 1, 1), .consumers = 1, .freezes = 1, .fences = true, TRIES(2)},
    {.name = "away-stop", .about = "rows are made elsewhere, and the loader is closed", .bounded = true,
     RING(1, 1, 1, 1), .away = 1, WORK(1, 1, 1), ONE, .closes = true, TRIES(2)},
    {.name = "yield", .about = "one of two workers makes rows elsewhere, of what the other leaves", .bounded = true,
     RING(2, 1, 2, 2), .away = 2, .yields = true, WORK(1, 2, 2), .consumers = 1, TRIES(2)},
    {.name = "yield-kill", .about = "and one of them is killed", .bounded = true,
     RING(2, 1, 1, 1), .away = 2, .yields = true, WORK(1, 2, 2), .consumers = 1, .kills = 1, TRIES(2)},
    {.name = "yield-one", .about = "one that leaves tickets to others is alone", .bounded = true,
     RING(1, 1, 1, 1), .away = 1, .yields = true, WORK(1, 2, 2), .consumers = 1, TRIES(2)},
    {.name = "yield-two", .about = "two of three workers leave a ticket to the third", .bounded = true,
     RING(3, 1, 1, 1), .away = 6, .yields = true, WORK(1, 1, 1), .consumers = 1, TRIES(2)},
    /* -- the large ones -- */
    {.name = "long-2", .about = "two workers, three batches",
     RING(2, 2, 1, 1), WORK(1, 3, 3), ONE, TRIES(2)},
    {.name = "tickets", .about = "two workers, two batches of two tickets of two rows, a kill",
     RING(2, 2, 2, 4), WORK(1, 2, 2), .consumers = 1, .kills = 1, TRIES(2)},
    {.name = "kill-large", .about = "two workers, one is killed and replaced late or never",
     RING(2, 1, 1, 1), WORK(1, 2, 2), ONE, .kills = 1, .slow_starts = true, TRIES(2)},
    {.name = "kills", .about = "two workers, two kills, one slot",
     RING(2, 1, 2, 2), WORK(1, 1, 1), ONE, .kills = 2, TRIES(2)},
    {.name = "break-large", .about = "two workers, a break and a kill",
     RING(2, 1, 1, 1), WORK(2, 2, 2), .consumers = 1, .releasers = 1, .kills = 1, .breaks = 1, TRIES(2)},
    {.name = "break-slots", .about = "one worker, two slots, a break, a kill and a close",
     RING(1, 2, 1, 1), WORK(2, 2, 2), ONE, .kills = 1, .breaks = 1, .closes = true, TRIES(2)},
    {.name = "breaks", .about = "three epochs, two breaks, two slots of two tickets",
     RING(1, 2, 2, 2), WORK(3, 2, 2), ONE, .breaks = 2, TRIES(2)},
    {.name = "failures-2", .about = "two workers, a row that raises, one that may, one that kills",
     RING(2, 1, 2, 4), WORK(1, 1, 1), ONE, .raises = 1 << 0, .flaky = 1 << 3, .poison = 1 << 1, TRIES(2)},
    {.name = "consumers-slots", .about = "two consumer threads take from two slots, a third releases",
     RING(1, 2, 1, 1), WORK(1, 3, 3), .consumers = 2, .releasers = 1, TRIES(2)},
    {.name = "consumers-2", .about = "two consumer threads, two releasers, a break and a kill",
     RING(1, 2, 1, 1), WORK(2, 2, 2), .consumers = 2, .releasers = 2, .breaks = 1, .kills = 1, TRIES(2)},
    {.name = "slots-3", .about = "three slots, two releasers",
     RING(1, 3, 1, 1), WORK(1, 4, 4), .consumers = 1, .releasers = 2, TRIES(2)},
    {.name = "quarantine-2", .about = "two workers, one of them a suspect",
     RING(3, 2, 1, 1), .spare = 1, WORK(1, 2, 2), .consumers = 1, .freezes = 1, .fences = true, TRIES(2)},
    {.name = "quarantines", .about = "a suspect's replacement becomes one, too",
     RING(3, 3, 1, 1), .spare = 2, WORK(1, 2, 2), .consumers = 1, .freezes = 2, .fences = true, TRIES(2)},
    {.name = "quarantine-break", .about = "and the epoch is broken off",
     RING(2, 2, 1, 1), .spare = 1, WORK(2, 2, 2), ONE, .freezes = 1, .fences = true, .breaks = 1, TRIES(2)},
    {.name = "three-kill", .about = "three workers share a batch of three tickets, one is killed",
     RING(3, 1, 3, 3), WORK(1, 1, 1), .consumers = 1, .kills = 1, TRIES(2)},
};

const struct configuration *configuration;

const struct configuration *configuration_at(unsigned number)
{
    return number < sizeof configurations / sizeof *configurations ? &configurations[number] : NULL;
}

const struct configuration *configuration_named(const char *name)
{
    for (unsigned number = 0; configuration_at(number); number++)
        if (strcmp(configuration_at(number)->name, name) == 0)
            return configuration_at(number);
    return NULL;
}
