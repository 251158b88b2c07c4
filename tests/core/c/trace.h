/* Processes that run one instruction at a time. */
#ifndef RF_TRACE_H
#define RF_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether processes may be traced here. */
bool trace_is_allowed(void);
/* Fork a process which will call `body` and exit with its answer, stopped just before. */
pid_t trace_start(int (*body)(void *argument), void *argument);
/* One instruction more; false when the process has ended. */
bool trace_step(pid_t pid);
/* Let it run to its end: its exit status, or -1 where it was killed. */
int trace_finish(pid_t pid);
void trace_kill(pid_t pid);
/* The number of instructions to try after `steps`: one more, or, on a slow machine, some more, so
 * that the test ends. */
uint32_t trace_next(uint32_t steps, int64_t began_ns);

#endif
