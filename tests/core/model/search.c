#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include "search.h"

#include "seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool every_order;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Where one is in the steps that leave a state. */
struct walk {
    uint8_t actor, choice;
    uint8_t alone;     /* the one actor to look at, or ACTORS */
    bool begun, moves; /* `moves`: by a step that is not the environment's */
};

static void begin_walk(const struct state *from, struct walk *walk)
{
    walk->begun = true;
    walk->alone = every_order ? ACTORS : (uint8_t)private_actor(from);
    walk->actor = walk->alone == ACTORS ? 0 : walk->alone;
}

static void next_actor(struct walk *walk)
{
    walk->actor = walk->alone == ACTORS ? walk->actor + 1 : walk->actor < WORKERS ? ENVIRONMENT : ACTORS;
    walk->choice = 0;
}

/* The next step that leaves `from`; false when there is none any more. */
static bool walk_on(const struct state *from, struct walk *walk, struct state *to, struct walk *made)
{
    bool copied = false;
    if (!walk->begun)
        begin_walk(from, walk);
    while (walk->actor < ACTORS) {
        *made = *walk;
        walk->choice++;
        if (made->actor == ENVIRONMENT && made->alone != ACTORS && !strikes(made->choice, made->alone)) {
            if (made->choice >= WORKERS * 2)
                next_actor(walk);
            continue;
        }
        if (!copied)
            *to = *from;
        copied = true; /* only a step that is made changes it */
        enum outcome outcome = make_step(to, made->actor, made->choice);
        if (outcome == NO_MORE)
            next_actor(walk);
        if (outcome == STEPPED) {
            walk->moves |= made->actor != ENVIRONMENT;
            return true;
        }
    }
    return false;
}

/* ---- depth first ---- */

struct frame {
    struct state state;
    struct walk walk;
    uint64_t print;
};

struct stack {
    struct frame *frames;
    size_t depth, room;
};

static void push(struct stack *stack, const struct state *s, uint64_t print)
{
    if (stack->depth == stack->room) {
        stack->room = stack->room ? stack->room * 2 : 1024;
        stack->frames = realloc(stack->frames, stack->room * sizeof *stack->frames);
        if (!stack->frames)
            abort();
    }
    stack->frames[stack->depth++] = (struct frame){.state = *s, .print = print};
}

/* A frame is on the stack while bit 0 of its place is set: meeting it again closes a cycle. */
static void enter(struct stack *stack, struct seen *seen, const struct state *s)
{
    bool fresh;
    uint64_t print = fingerprint(s), *place = seen_place(seen, print, &fresh);
    if (!fresh && *place & 1)
        wrong("a run that comes to no end");
    if (!fresh)
        return;
    *place |= 1;
    check_state(s);
    push(stack, s, print);
}

static void leave(struct stack *stack, struct seen *seen)
{
    bool fresh;
    const struct frame *frame = &stack->frames[--stack->depth];
    if (!frame->walk.moves)
        check_rest(&frame->state);
    *seen_place(seen, frame->print, &fresh) &= ~UINT64_C(1);
}

struct found search_deep(uint64_t limit)
{
    struct found found = {0};
    struct stack stack = {0};
    struct seen seen;
    struct state s;
    struct walk made;
    double began_s = now_s();
    violation = NULL;
    first_state(&s);
    sort_twins(&s);
    seen_begin(&seen);
    enter(&stack, &seen, &s);
    while (stack.depth && !violation && seen.count < limit) {
        struct frame *frame = &stack.frames[stack.depth - 1];
        found.depth = stack.depth > found.depth ? (unsigned)stack.depth : found.depth;
        if (walk_on(&frame->state, &frame->walk, &s, &made)) {
            found.steps++;
            sort_twins(&s);
            enter(&stack, &seen, &s);
        } else {
            leave(&stack, &seen);
        }
    }
    found.states = seen.count;
    found.violation = violation;
    found.complete = !stack.depth;
    found.seconds = now_s() - began_s;
    seen_end(&seen);
    free(stack.frames);
    return found;
}

/* ---- breadth first ---- */

struct node { /* how a state was reached; its own state is only kept while it is on the frontier */
    uint32_t parent;
    uint8_t actor, choice;
};

struct frontier {
    struct state *states;
    size_t count, room;
};

struct wide {
    struct seen seen;
    struct node *nodes;
    size_t count, room;
    struct frontier now, next;
};

static void *room_for(void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return array;
    *room = *room ? *room * 2 : 4096;
    array = realloc(array, *room * size);
    if (!array)
        abort();
    return array;
}

static void add(struct wide *wide, const struct state *s, size_t parent, const struct walk *made)
{
    bool fresh;
    (void)seen_place(&wide->seen, fingerprint(s), &fresh);
    if (!fresh && !violation)
        return;
    check_state(s);
    wide->nodes = room_for(wide->nodes, wide->count, &wide->room, sizeof *wide->nodes);
    wide->nodes[wide->count++] = (struct node){(uint32_t)parent, made->actor, made->choice};
    wide->next.states = room_for(wide->next.states, wide->next.count, &wide->next.room, sizeof *wide->next.states);
    wide->next.states[wide->next.count++] = *s;
}

/* Go through the frontier; the node in which it went wrong, or 0. */
static size_t expand(struct wide *wide, struct found *found, uint64_t limit)
{
    size_t first = wide->count - wide->now.count;
    for (size_t at = 0; at < wide->now.count && wide->seen.count < limit; at++) {
        struct walk walk = {0}, made;
        struct state s;
        while (walk_on(&wide->now.states[at], &walk, &s, &made)) {
            found->steps++;
            sort_twins(&s);
            add(wide, &s, first + at, &made);
            if (violation)
                return wide->count - 1;
        }
        if (!walk.moves)
            check_rest(&wide->now.states[at]);
        if (violation)
            return first + at;
    }
    return 0;
}

static unsigned depth_of(const struct wide *wide, size_t last)
{
    unsigned depth = 0;
    for (size_t at = last; at; at = wide->nodes[at].parent)
        depth++;
    return depth;
}

/* The path was found with twins sorted after each step. Make the same steps without, so that workers keep their numbers:
 * find the one that leads to the same state but for the order of twins. */
static void follow(struct state *actual, const struct state *sorted, size_t number)
{
    uint64_t print = fingerprint(sorted);
    struct walk walk = {0}, made;
    struct state after, twin;
    while (walk_on(actual, &walk, &after, &made)) {
        twin = after;
        sort_twins(&twin);
        if (fingerprint(&twin) != print)
            continue;
        printf("    %3zu  ", number);
        print_step(actual, &after, made.actor, made.choice);
        *actual = after;
        return;
    }
}

static void tell(const struct wide *wide, size_t last)
{
    size_t length = depth_of(wide, last), *path = calloc(length + 1, sizeof *path);
    for (size_t at = last, place = length; at; at = wide->nodes[at].parent)
        path[--place] = at;
    struct state actual, sorted;
    first_state(&actual);
    sorted = actual;
    sort_twins(&sorted);
    for (size_t place = 0; place < length; place++) {
        const struct node *node = &wide->nodes[path[place]];
        make_step(&sorted, node->actor, node->choice);
        sort_twins(&sorted);
        follow(&actual, &sorted, place + 1);
    }
    printf("    and so:\n");
    print_state(&actual);
    free(path);
}

struct found search_wide(uint64_t limit, bool telling)
{
    struct found found = {0};
    struct wide wide = {0};
    struct state s;
    size_t last = 0;
    double began_s = now_s();
    violation = NULL;
    first_state(&s);
    sort_twins(&s);
    seen_begin(&wide.seen);
    add(&wide, &s, 0, &(struct walk){0});
    while (wide.next.count && !violation && wide.seen.count < limit) {
        struct frontier done = wide.now;
        wide.now = wide.next;
        wide.next = done;
        wide.next.count = 0;
        last = expand(&wide, &found, limit);
    }
    found.violation = violation;
    found.states = wide.seen.count;
    found.depth = depth_of(&wide, last);
    found.complete = !wide.next.count;
    found.seconds = now_s() - began_s;
    if (violation && telling)
        tell(&wide, last);
    seen_end(&wide.seen);
    free(wide.nodes);
    free(wide.now.states);
    free(wide.next.states);
    return found;
}
