/* A state in words, and a step as what it changes. */
#include "model.h"

#include <stdio.h>
#include <string.h>

#define AS_NAME(name, text) #name,
#define AS_TEXT(name, text) text,

static const char *const worker_texts[] = {WORKER_STEPS(AS_TEXT)};
static const char *const thread_texts[] = {THREAD_STEPS(AS_TEXT)};
static const char *const thread_names[] = {
    "consumer", "other consumer", "releaser", "other releaser", "watcher", "closer",
};
static const char *const cell_states[] = {"EMPTY", "AVAIL", "CLAIMED", "READY", "FAILED", "CANCELLED"};
static const char *const slot_states[] = {"FREE", "BOUND", "DRAINING", "HELD"};
static const char *const contents[] = {"-", "half", "right"};
static const char *const marks[] = {"", " raised", " killed"};

enum { LINES = 96, LINE = 96 };
struct text {
    unsigned count;
    char line[LINES][LINE];
};

#define SAY(...) snprintf(text->line[text->count++], LINE, __VA_ARGS__)

static void say_ring(const struct state *s, struct text *text)
{
    SAY("head %u", s->head);
    SAY("bound %u", s->bound);
    SAY("cancel_upto %u", s->cancel_upto);
    SAY("stop %u", s->stop);
    SAY("sleepers %x", s->sleepers);
    if (s->consumer_wait == WAIT_NONE || s->consumer_wait == WAIT_FREE)
        SAY("consumer_wait %s", s->consumer_wait ? "FREE" : "NONE");
    else
        SAY("consumer_wait %u.%u", (s->consumer_wait - 1) / CELLS, (s->consumer_wait - 1) % CELLS);
    SAY("news_seq %s", s->changed ? "bumped since observed" : s->armed ? "observed" : "-");
    SAY("binder's lock %s", s->lock ? "taken" : "free");
    SAY("alarm %u", s->alarm);
    SAY("plan: batches from %u to below %u", s->plan_read, s->plan_write);
    SAY("epoch %u: %u batches planned, %u waiting, %u of them beyond, next is %u", s->epoch, s->planned, s->waiting, s->beyond,
        s->expected);
    for (unsigned at = 0; at < configuration->slots; at++)
        SAY("slot_of[%u] slot %d, %u tickets", at, s->slot_of[at].slot == NO_SLOT ? -1 : s->slot_of[at].slot,
            s->slot_of[at].tickets);
}

static void say_slot(const struct state *s, unsigned number, struct text *text)
{
    const struct slot *slot = &s->slot[number];
    SAY("slot %u %s, count %u, views %u", number, slot_states[slot->state], slot->count, slot->views);
    SAY("slot %u holds batch %u, planned as %u", number, slot->batch, slot->plan);
    for (unsigned cell = 0; cell < configuration->cells; cell++) {
        const struct cell *place = &slot->cell[cell];
        if (place->state == CLAIMED && place->owner != NO_OWNER)
            SAY("cell %u of slot %u: CLAIMED(%u) ticket %u.%u attempt %u", cell, number, place->owner, place->batch,
                cell, place->attempt);
        else
            SAY("cell %u of slot %u: %s ticket %u.%u attempt %u", cell, number, cell_states[place->state],
                place->batch, cell, place->attempt);
    }
    for (unsigned row = 0; row < configuration->rows; row++)
        SAY("row %u of slot %u: %s%s, deaths %u", row, number, contents[slot->content[row]], marks[slot->mark[row]],
            slot->deaths[row]);
}

static void say_workers(const struct state *s, struct text *text)
{
    for (unsigned number = 0; number < configuration->workers; number++) {
        const struct worker *worker = &s->worker[number];
        SAY("worker %u %s%s", number, worker_texts[worker->step], worker->frozen ? " (stands still)" : "");
        SAY("cursor of worker %u: %u.%u", number, worker->cursor_batch, worker->cursor_cell);
        SAY("line of worker %u: ticket %u.%u attempt %u row %d", number, worker->line.batch, worker->line.cell,
            worker->line.attempt, worker->line.row - 1);
        SAY("work_seq for worker %u: %s", number,
            worker->changed ? "bumped since observed" : worker->armed ? "observed" : "-");
    }
}

static void say_all(const struct state *s, struct text *text)
{
    text->count = 0;
    say_ring(s, text);
    for (unsigned slot = 0; slot < configuration->slots; slot++)
        say_slot(s, slot, text);
    say_workers(s, text);
    for (unsigned number = 0; number < THREADS; number++)
        SAY("%s %s", thread_names[number], thread_texts[s->thread[number].step]);
}

void print_state(const struct state *s)
{
    static struct text text;
    say_all(s, &text);
    for (unsigned line = 0; line < text.count; line++)
        printf("      %s\n", text.line[line]);
}

static const char *step_text(const struct state *s, unsigned actor, unsigned choice)
{
    if (actor == ENVIRONMENT)
        return environment_text(choice);
    if (actor < WORKERS && must_die(s, actor) && choice == 0)
        return s->consumer_dead ? "killed by its guard" : "dies of the SIGKILL that it was sent";
    return actor < WORKERS ? worker_texts[s->worker[actor].step] : thread_texts[s->thread[actor - FIRST_THREAD].step];
}

/* Only where an actor stands is left out: its next line tells it. */
static bool is_position(const struct text *text, unsigned line, const struct state *s)
{
    if (line + THREADS >= text->count)
        return true;
    unsigned first = text->count - THREADS - 4u * configuration->workers;
    return line >= first && (line - first) % 4 == 0 && s->worker[(line - first) / 4].step != DEAD;
}

void print_step(const struct state *before, const struct state *after, unsigned actor, unsigned choice)
{
    static struct text old, new;
    say_all(before, &old);
    say_all(after, &new);
    if (actor < WORKERS)
        printf("worker %u: ", actor);
    else
        printf("%s: ", actor == ENVIRONMENT ? "outside" : thread_names[actor - FIRST_THREAD]);
    printf("%s\n", step_text(before, actor, choice));
    for (unsigned line = 0; line < new.count; line++)
        if (strcmp(old.line[line], new.line[line]) != 0 && !is_position(&new, line, after))
            printf("           -> %s\n", new.line[line]);
}
