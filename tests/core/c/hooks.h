/* Acting at the very moment before a sleep, a wake or a look: hooks.c stands between take.c,
 * await.c, wake.c and what they call, by -Wl,--wrap=... */
#ifndef RF_HOOKS_H
#define RF_HOOKS_H

#include "ring.h"

/* Called once, just before the next futex wait, futex wake or look at the plan, then forgotten. */
extern void (*before_sleep)(struct rf_ring *ring);
extern void (*before_wake)(struct rf_ring *ring);
extern void (*before_is_planned)(struct rf_ring *ring);
extern struct rf_ring *hooked_ring;
/* Sleeps that have begun since the program's start, and those that nobody woke
 * before their deadline. */
extern _Atomic uint32_t sleeps_begun, sleeps_in_vain;
extern _Atomic int wake_count;        /* how many sleepers the last wake was for */
void wait_for_sleeps(uint32_t count); /* and some milliseconds more, for the kernel's part of it */

#endif
