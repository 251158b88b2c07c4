/* What is played: see scenes.c. */
#ifndef RF_WEAK_SCENES_H
#define RF_WEAK_SCENES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { THREADS = 4 };

struct
    stage { /* of the ring; `capacity`: batches planned ahead; `window`: of them without a slot, 0: as the core has it; `spin_ns`: how long to look again before a sleep */
    uint32_t slots, cells, workers, rows, capacity, window, spin_ns;
};

struct scene {
    const char *name, *about;
    struct stage stage;
    unsigned threads;
    void (*thread[THREADS])(void);
};
extern const struct scene scenes[];
extern const unsigned scene_count;

/* stage.c: make the ring, and have all its memory looked at; and the end of it. */
void stage_begin(const struct stage *stage);
void stage_end(void);

#ifdef __cplusplus
}
#endif

#endif
