/* Sleeping, waking, and what ends a process: with pages.h and descriptors.h the only place that
 * knows the operating system.
 *
 * Two layers have these functions, and one of them is compiled in: that of Linux, or the portable
 * one (POSIX, as on macOS), where all sleepers are threads of one process, and what is for other
 * processes is refused. posix.c has what both do alike. */
#ifndef RF_WAIT_H
#define RF_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether other processes can share memory with this one, and their deaths can be seen. */
extern const bool rf_has_processes;

/* CLOCK_MONOTONIC, in nanoseconds. */
int64_t rf_now_ns(void);

/* Sleep until woken, while *address == seen, at most until deadline_ns. Returns 0 (woken, or the
 * value differed), ETIMEDOUT or EINTR. On Linux it is shared between processes, and where the kernel
 * refuses to wait, it answers 0 once a millisecond. The portable layer knows no EINTR. */
int rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns);

/* Wake at most `count` sleepers. */
void rf_futex_wake(_Atomic uint32_t *address, int count);

/* Returns 0, or why the kernel refuses futexes, of one process or between several: the C library
 * needs both, and aborts the process at its first wait. */
int rf_futex_error(void);

/* Spend a fraction of a microsecond between two looks. */
void rf_pause(void);

/* Let others run, for longer the more often it was in vain. */
void rf_yield(unsigned attempt);

/* How many processors this process may use. */
uint32_t rf_cpus(void);

/* A process-local number that differs in every forked child. */
uint32_t rf_fork_generation(void);

/* SIGKILL a child of this process with its group, and wait for its end: a second at most. Nothing
 * happens where it is no child of ours, or has been waited for. */
void rf_end_child(int pid);

/* Start a thread which SIGKILLs this process's group as soon as `parent` (a pidfd) becomes readable
 * or the other end of `lifeline` (a pipe) is closed. Either may be -1. Returns 0 or an errno. */
int rf_guard_start(int parent, int lifeline);

/* Make malloc keep up to `trim` freed bytes, and serve blocks up to `mmap` from the heap, instead
 * of returning them to the kernel. Returns 0, or -1 where this libc has no such switch. */
int rf_keep_heap(int trim, int mmap);

#endif
