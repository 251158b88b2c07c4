/* What comes from outside: the user's calls, deaths, and workers that stand still. None of it has to happen, so that
 * where nothing else can, everything must already be well. */
#include "model.h"

#include <string.h>

static bool kill_worker(struct state *s, unsigned number)
{
    struct worker *worker = &s->worker[number];
    bool given_up = worker->frozen; /* whatever becomes of it, it may end so */
    if (number >= configuration->workers || !is_alive(worker) || s->consumer_dead || (!s->kills && !given_up))
        return false;
    s->kills -= !given_up;
    worker_dies(s, number);
    return true;
}

static bool freeze(struct state *s, unsigned number)
{
    struct worker *worker = &s->worker[number];
    if (number >= configuration->workers || !s->freezes || !worker->claimed)
        return false;
    s->freezes--;
    worker->frozen = 1;
    return true;
}

static bool thaw(struct state *s, unsigned number)
{
    struct worker *worker = &s->worker[number];
    bool thawed = worker->frozen;
    worker->frozen = 0;
    return thawed;
}

static bool is_up(struct state *s, unsigned number)
{
    bool starting = s->worker[number].step == STARTING;
    if (starting)
        s->worker[number].step = WAIT_STOP;
    return starting;
}

static bool may_call(const struct state *s, unsigned number)
{
    return number < configuration->consumers && s->thread[number].step == IDLE && !s->closed && !s->consumer_dead &&
           s->epoch < configuration->epochs;
}

static bool call_next(struct state *s, unsigned number)
{
    if (!may_call(s, number))
        return false;
    s->thread[number].step = NEXT_LOCK;
    return true;
}

static bool call_break(struct state *s, unsigned number)
{
    if (!may_call(s, number) || !s->breaks || !s->planned)
        return false;
    s->breaks--;
    s->thread[number].step = BREAK_LOCK;
    return true;
}

/* By the first releaser that is idle: they do not differ. */
static bool drop(struct state *s, unsigned number)
{
    if (number >= configuration->slots || !s->slot[number].views || s->consumer_dead)
        return false;
    for (unsigned releaser = RELEASER_0; releaser < 0u + RELEASER_0 + configuration->releasers; releaser++)
        if (s->thread[releaser].step == IDLE) {
            s->slot[number].views--;
            s->thread[releaser] = (struct thread){.step = DROP_COUNT, .slot = (uint8_t)number};
            return true;
        }
    return false;
}

static bool call_close(struct state *s)
{
    if (!configuration->closes || s->closed || s->consumer_dead)
        return false;
    s->closed = 1;
    s->thread[CLOSER].step = STOP_FLAG;
    return true;
}

/* All of the consumer's memory is gone; what it shares stays as it is. */
static bool consumer_dies(struct state *s)
{
    if (!configuration->dies || s->consumer_dead)
        return false;
    s->consumer_dead = 1;
    for (unsigned number = 0; number < THREADS; number++)
        s->thread[number] = (struct thread){.step = OVER};
    s->armed = s->changed = s->take_lock = s->asleep = 0;
    s->kills = s->breaks = s->freezes = s->forks = s->paces = s->calls = 0;
    return true;
}

bool has_suspect(const struct state *s)
{
    for (unsigned number = 0; number < configuration->workers; number++) {
        const struct worker *worker = &s->worker[number];
        if (worker->frozen && worker->claimed && s->slot[worker->slot].state == BOUND)
            return true;
    }
    return false;
}

/* The consumer has slept for timeout_s, and SIGKILL has not ended whoever makes no step: it fences them. */
static bool time_out(struct state *s, unsigned number)
{
    struct thread *thread = &s->thread[number];
    if (!configuration->fences || thread->step != REST_ASLEEP || !has_suspect(s))
        return false;
    for (unsigned worker = 0; worker < configuration->workers; worker++)
        s->worker[worker].fenced |= s->worker[worker].frozen;
    thread->step = FENCE_LOCK;
    return true;
}

/* learn_pace, in rf_take. */
static bool pace_changes(struct state *s)
{
    if (!s->paces || s->consumer_dead)
        return false;
    s->paces--;
    s->pace = !s->pace;
    return true;
}

/* rf_wake_another: a consumer thread begins to wait. It may be any moment, for nothing relies on it. */
static bool call_another(struct state *s, unsigned number)
{
    if (!s->calls || !s->pace || s->consumer_dead || !is_asleep(&s->worker[number]))
        return false;
    s->calls--;
    worker_wakes(s, number);
    return true;
}

/* Its rows have come from elsewhere, and are written. */
static bool rows_come(struct state *s, unsigned number)
{
    struct worker *worker = &s->worker[number];
    if (number >= configuration->workers || worker->step < AWAY_SEQ || worker->step > AWAY_ASLEEP || worker->frozen)
        return false;
    worker->watches = worker->broke = 0;
    worker->step = ROW_CANCELLED;
    return true;
}

/* A forked child's copy of a view dies: nothing must come of it. Where it does, the copy of the binder, which no lock of
 * ours holds up, binds the next batch to the slot. */
static bool fork_drops(struct state *s, unsigned number)
{
    if (number >= configuration->slots || !s->forks || s->slot[number].state != HELD)
        return false;
    s->forks--;
    if (!broken(FORK_RELEASES) || s->plan_read == s->plan_write)
        return true;
    struct slot *slot = &s->slot[number];
    check_write(slot);
    slot->batch = s->bound;
    slot->plan = s->plan_read;
    return true;
}

/* The choices: who, in this order. */
enum { KILL = 0, FREEZE = KILL + WORKERS, THAW = FREEZE + WORKERS, START = THAW + WORKERS, NEXT = START + WORKERS };
enum { BREAK = NEXT + 2, DROP = BREAK + 2, FORK = DROP + SLOTS, TIME_OUT = FORK + SLOTS };
enum { CLOSE = TIME_OUT + 2, DIE, PACE, CALL, COME = CALL + WORKERS, CHOICES = COME + WORKERS };

enum outcome environment_step(struct state *s, unsigned choice)
{
    bool happened = choice < FREEZE     ? kill_worker(s, choice - KILL)
                    : choice < THAW     ? freeze(s, choice - FREEZE)
                    : choice < START    ? thaw(s, choice - THAW)
                    : choice < NEXT     ? is_up(s, choice - START)
                    : choice < BREAK    ? call_next(s, choice - NEXT)
                    : choice < DROP     ? call_break(s, choice - BREAK)
                    : choice < FORK     ? drop(s, choice - DROP)
                    : choice < TIME_OUT ? fork_drops(s, choice - FORK)
                    : choice < CLOSE    ? time_out(s, choice - TIME_OUT)
                    : choice == CLOSE   ? call_close(s)
                    : choice == DIE     ? consumer_dies(s)
                    : choice == PACE    ? pace_changes(s)
                    : choice < COME     ? call_another(s, choice - CALL)
                    : choice < CHOICES  ? rows_come(s, choice - COME)
                                        : false;
    return choice >= CHOICES ? NO_MORE : happened ? STEPPED : NOT_NOW;
}

bool strikes(unsigned choice, unsigned worker) { return choice == KILL + worker || choice == FREEZE + worker; }

const char *environment_text(unsigned choice)
{
    return choice < FREEZE     ? "a worker is killed"
           : choice < THAW     ? "a worker stands still"
           : choice < START    ? "a worker goes on after all"
           : choice < NEXT     ? "a worker is up"
           : choice < BREAK    ? "the user calls next()"
           : choice < DROP     ? "the user breaks the epoch off"
           : choice < FORK     ? "the user drops a view"
           : choice < TIME_OUT ? "a forked child drops its copy of a view"
           : choice < CLOSE    ? "timeout_s has passed"
           : choice == CLOSE   ? "the user closes the loader"
           : choice == PACE    ? "the pace changes"
           : choice == DIE     ? "the consumer is killed"
           : choice < COME     ? "one worker more is woken"
                               : "rows come from elsewhere";
}

/* ---- the beginning, and one step ---- */

void first_state(struct state *s)
{
    memset(s, 0, sizeof *s);
    s->released = NO_SLOT;
    s->homeless = NO_BATCH;
    s->kills = configuration->kills;
    s->breaks = configuration->breaks;
    s->freezes = configuration->freezes;
    s->forks = configuration->forks;
    s->paces = configuration->paces;
    s->calls = configuration->calls;
    s->pace = configuration->pace;
    memset(s->free_slots, NO_SLOT, sizeof s->free_slots);
    while (s->free_count < configuration->slots) {
        s->free_slots[s->free_count] = (uint8_t)(configuration->slots - 1 - s->free_count);
        s->free_count++;
    }
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        s->slot[slot].next = NO_SLOT;
        for (unsigned cell = 0; cell < CELLS; cell++)
            empty_cell(&s->slot[slot].cell[cell]);
    }
    for (unsigned number = 0; number < WORKERS; number++)
        s->worker[number].step = ABSENT;
    fill_up(s);
    for (unsigned number = 0; number < WORKERS; number++)
        s->worker[number].reaped = 0; /* there was no reap before them */
    for (unsigned number = 0; number < THREADS; number++)
        s->thread[number].step = IDLE;
}

enum outcome make_step(struct state *s, unsigned actor, unsigned choice)
{
    if (actor < WORKERS)
        return worker_step(s, actor, choice);
    if (actor == ENVIRONMENT)
        return environment_step(s, choice);
    unsigned number = actor - FIRST_THREAD;
    enum thread_step step = s->thread[number].step;
    enum outcome outcome = step >= BIND_TRY && step <= NEWS_WAKE ? binder_step(s, number, choice)
                           : number <= CONSUMER_1                ? (choice ? NO_MORE : consumer_step(s, number))
                                                                 : side_step(s, number, choice);
    settle(s, number);
    return outcome;
}
