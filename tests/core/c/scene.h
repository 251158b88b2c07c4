/* A scene is a ring in some state that can be set up again and again, with its binder in shared
 * memory: so two processes can be the consumer's two threads, and one of them can be stepped. There
 * is one scene at a time. */
#ifndef RF_SCENE_H
#define RF_SCENE_H

#include "place.h"

enum { SLOTS = 2 };

struct scene {
    struct rf_ring *ring;
    struct rf_claim claim;    /* the ticket that was claimed here, where there is one */
    bool unbound;             /* the consumer waits for a slot first */
    _Atomic uint32_t *asleep; /* set by the stepped process just before it sleeps */
    struct rf_binder *own;    /* the ring's binder, while `shared` stands in its place */
    uint8_t *shared, *saved;  /* the binder and its arrays; all of the scene as it was at first */
};

extern struct scene scene;

/* `set` makes scene.ring and what else it likes; restore_scene() brings everything back to that. */
void begin_scene(void (*set)(void));
void restore_scene(void);
void end_scene(void);

/* ---- states to begin with: two slots, batches of one ticket ---- */

void unfinished_batch(void); /* the head batch is bound, and claimed here by worker 0 */
void all_held(void);         /* both slots are held, and another batch is planned */
void all_held_and_two_planned(void);
/* A slot is held, the other draining, claimed here; another batch is planned. */
void one_draining(void);
void one_bound(void);           /* a batch is bound, and its ticket available */
void one_planned(void);         /* a batch is planned, and its slot is free */
void one_planned_briskly(void); /* the same, for a single worker, while the pace is fast */

/* ---- acts ---- */

void publish_here(void);
void alarm_here(void);
void stop_here(void);
void bind_here(void);
void reap_here(void);
void cancel_here(void);
void release_here(void); /* slot 0; the lock may be busy */

#endif
