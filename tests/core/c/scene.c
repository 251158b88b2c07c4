#define _GNU_SOURCE
#include "scene.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PART = 8192, PARTS = 9 }; /* bytes for each of the binder's arrays */

struct scene scene;

static void share_binder(void)
{
    scene.own = scene.ring->binder;
    scene.shared =
        mmap(NULL, PARTS * PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct rf_binder *binder = (struct rf_binder *)(void *)scene.shared;
    memcpy((void *)binder, (const void *)scene.own, sizeof *binder);
    binder->holds =
        memcpy(scene.shared + PART, (const void *)scene.own->holds, SLOTS * sizeof *binder->holds);
    binder->free_slots =
        memcpy(scene.shared + 2 * PART, scene.own->free_slots, SLOTS * sizeof(uint32_t));
    binder->deaths = (struct rf_death *)(void *)(scene.shared + 3 * PART);
    binder->death_room = PART / sizeof *binder->deaths;
    binder->planned = memcpy(scene.shared + 4 * PART, scene.own->planned,
                             PLACE_CAPACITY * sizeof *binder->planned);
    binder->indices =
        memcpy(scene.shared + 5 * PART, scene.own->indices, PLACE_CAPACITY * sizeof(int64_t));
    binder->bindings =
        memcpy(scene.shared + 7 * PART, scene.own->bindings, SLOTS * sizeof *binder->bindings);
    binder->slot_of =
        memcpy(scene.shared + 8 * PART, scene.own->slot_of, SLOTS * sizeof *binder->slot_of);
    scene.asleep = (_Atomic uint32_t *)(void *)(scene.shared + 6 * PART);
    scene.ring->binder = binder;
}

/* Keep all of the scene as it is now. */
static void save_scene(void)
{
    struct rf_ring *ring = scene.ring;
    scene.saved = malloc(PARTS * PART + ring->control_size + ring->slots_size);
    if (!scene.saved)
        abort();
    memcpy(scene.saved, scene.shared, PARTS * PART);
    memcpy(scene.saved + PARTS * PART, (const void *)ring->control, ring->control_size);
    memcpy(scene.saved + PARTS * PART + ring->control_size, ring->slots, ring->slots_size);
}

void restore_scene(void)
{
    struct rf_ring *ring = scene.ring;
    memcpy(scene.shared, scene.saved, PARTS * PART);
    memcpy((void *)ring->control, scene.saved + PARTS * PART, ring->control_size);
    memcpy(ring->slots, scene.saved + PARTS * PART + ring->control_size, ring->slots_size);
}

void begin_scene(void (*set)(void))
{
    set();
    rf_delist(scene.ring); /* the traced children share it */
    share_binder();
    save_scene();
}

void end_scene(void)
{
    scene.ring->binder = scene.own;
    rf_unreference(scene.ring);
    munmap(scene.shared, PARTS * PART);
    free(scene.saved);
    scene = (struct scene){0};
}

/* ---- states to begin with ---- */

void unfinished_batch(void)
{
    scene.ring = ring_of(SLOTS, 1, 3, 1);
    bind_batches(scene.ring, 1, 1);
    claim_as(scene.ring, 0, &scene.claim);
}

void all_held(void)
{
    scene.ring = ring_of(SLOTS, 1, 3, 1);
    bind_batches(scene.ring, SLOTS + 1, 1);
    fill_all(scene.ring, 0);
    taken_of(scene.ring);
    taken_of(scene.ring);
    scene.unbound = true;
}

void all_held_and_two_planned(void)
{
    all_held();
    bind_batches(scene.ring, 1, 1);
}

void one_draining(void)
{
    scene.ring = ring_of(SLOTS, 1, 3, 1);
    bind_batches(scene.ring, 2, 1);
    fill_all(scene.ring, 0);
    taken_of(scene.ring);
    rf_cancel(scene.ring);
    bind_batches(scene.ring, 1, 1);
    claim_as(scene.ring, 0, &scene.claim);
    rf_cancel(scene.ring);
    bind_batches(scene.ring, 1, 1);
    scene.unbound = true;
}

void one_bound(void)
{
    scene.ring = ring_of(SLOTS, 1, 3, 1);
    bind_batches(scene.ring, 1, 1);
}

void one_planned(void)
{
    const int64_t index = 0;
    scene.ring = ring_of(SLOTS, 1, 3, 1);
    rf_plan(scene.ring, &index, 1, 1, 0);
}

void one_planned_briskly(void)
{
    const int64_t index = 0;
    scene.ring = ring_of(SLOTS, 1, 1, 1);
    atomic_store(&scene.ring->control->pace, 1);
    rf_plan(scene.ring, &index, 1, 1, 0);
}

/* ---- acts ---- */

void publish_here(void) { rf_publish(scene.ring, &scene.claim, false); }
void alarm_here(void) { rf_alarm(scene.ring); }
void stop_here(void) { rf_stop(scene.ring); }
void bind_here(void) { rf_bind(scene.ring); }
void reap_here(void) { rf_reap(scene.ring, 0, false); }
void cancel_here(void) { rf_cancel(scene.ring); }
void release_here(void) { rf_drop(scene.ring, 0); }
