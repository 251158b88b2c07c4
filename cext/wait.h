/* Sleeping, waking and the operating system: the only place that knows either. */
#ifndef RF_WAIT_H
#define RF_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

/* CLOCK_MONOTONIC, in nanoseconds. */
int64_t rf_now_ns(void);

/* Sleep until woken, while *address == seen, at most until deadline_ns.
 * Returns 0 (woken, or the value differed), ETIMEDOUT or EINTR. Shared between processes. Where the kernel refuses to
 * wait, it answers 0 once a millisecond. */
int rf_futex_wait(_Atomic uint32_t *address, uint32_t seen, int64_t deadline_ns);

/* Wake at most `count` sleepers. */
void rf_futex_wake(_Atomic uint32_t *address, int count);

/* Returns 0, or why the kernel refuses futexes, of one process or between several: the C library needs both, and
 * aborts the process at its first wait. */
int rf_futex_error(void);

/* Spend a fraction of a microsecond between two looks. */
void rf_pause(void);

/* Let others run, for longer the more often it was in vain. */
void rf_yield(unsigned attempt);

/* How many processors this process may use. */
uint32_t rf_cpus(void);

/* A process-local number that differs in every forked child. */
uint32_t rf_fork_generation(void);

/* Fault in the pages of `size` bytes at `address` at once, writable; where the kernel cannot, the first writes will. */
void rf_populate(void *address, uint64_t size);

/* Give the pages of `size` bytes at `address` back to the kernel, for all who share them; returns 0 or an errno. Who
 * looks again finds zeroes, and takes pages that nobody has reserved. */
int rf_unpopulate(void *address, uint64_t size);

/* Have the kernel set huge pages aside for the whole ones in `size` bytes of a memfd, which is fresh; where it cannot,
 * nothing has happened. MADV_COLLAPSE (Linux 6.1) needs no leave of the administrator's, as huge tmpfs pages do, but a page
 * that is there already in each of them. A huge page is zeroed at once: a fourth of the time, and a 512th of the faults.
 * Where memory is so scattered that it takes long, the rest is left. */
void rf_reserve_huge(int fd, uint64_t size);

/* Map `size` bytes of a file for reading and writing, shared; no child of this process inherits the mapping
 * unless `inherit`. NULL with errno on failure; EPROTO where the file is shorter. */
void *rf_map(int fd, uint64_t size, int inherit);
void rf_unmap(void *address, uint64_t size);

/* Map all of another process's file for reading; no child inherits the mapping. NULL with errno on failure; EPROTO where it
 * is no memfd whose size is sealed, which nobody can cut short, or its size is not from `least` to `most`. */
const void *rf_map_sealed(int fd, uint64_t least, uint64_t most, uint64_t *size);

/* Start a thread which SIGKILLs this process's group as soon as `parent` (a pidfd) becomes readable or the
 * other end of `lifeline` (a pipe) is closed. Either may be -1. Returns 0 or an errno. */
int rf_guard_start(int parent, int lifeline);

/* Make malloc keep up to `trim` freed bytes, and serve blocks up to `mmap` from the heap, instead of
 * returning them to the kernel. Returns 0, or -1 where this libc has no such switch. */
int rf_keep_heap(int trim, int mmap);

#endif
