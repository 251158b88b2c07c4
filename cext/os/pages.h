/* Memory of files: its pages, and where they are mapped. See wait.h for the two layers.
 *
 * A huge page is mapped as one where the mapping lies to its address as the file's offset to the
 * huge page, so that mappings of 2 MiB or more begin at a multiple of that: random reads then need
 * a 512th of the entries of the TLB. */
#ifndef RF_PAGES_H
#define RF_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#define RF_HUGE (UINT64_C(2) << 20) /* bytes of a huge page, where they are of any use to us */

/* Fault in the pages of `size` bytes at `address` at once, writable; where the kernel cannot, the
 * first writes will. */
void rf_populate(void *address, uint64_t size);

/* Give the pages of `size` bytes at `address` back to the kernel, for all processes that share
 * them; returns 0 or an errno. A later access finds zeroes, in pages that were not reserved. */
int rf_unpopulate(void *address, uint64_t size);

/* Have the kernel set huge pages aside for the whole ones in `size` bytes from `offset` on, a
 * multiple of their own, of a memfd that was never written to there; false where it cannot for one
 * of them, which changes no content. MADV_COLLAPSE (Linux 6.1) needs no leave of the
 * administrator's, as huge tmpfs pages do, but a page that is there already in each of them. A huge
 * page is zeroed at once: a fourth of the time, and a 512th of the faults. Where memory is so
 * scattered that it takes long, the rest is left. */
bool rf_reserve_huge(int fd, uint64_t offset, uint64_t size);

/* Map `size` bytes of a file for reading and writing, shared; no child of this process inherits the
 * mapping unless `inherit`. NULL with errno on failure; EPROTO where the file is shorter. In the
 * portable layer each call gives fresh zeroed memory, whatever `fd` is. */
void *rf_map(int fd, uint64_t size, int inherit);
void rf_unmap(void *address, uint64_t size);

/* A private copy of the whole pages that `size` bytes at `address` touch; NULL without memory.
 * `changing`: others write there meanwhile, and each word is copied as it was before or after. */
void *rf_copy_pages(const void *address, uint64_t size, bool changing);
/* Unmap such a copy, of these bytes; NULL: nothing. */
void rf_drop_copy(void *copy, const void *address, uint64_t size);
/* Move such a copy to where those bytes are, whose pages this process loses; NULL: nothing. Only in
 * a forked child. */
void rf_move_copy(void *copy, void *address, uint64_t size);
/* Take a mapping from this process, and keep its addresses: each access is a SIGSEGV. False where
 * the kernel refuses. */
bool rf_forbid_pages(void *address, uint64_t size);

/* Map all of a file for reading and writing, privately: no other process sees what is written. A
 * page is copied when it is first written, 4 KiB of a huge one, whose others this process then maps
 * one by one. NULL with errno on failure; EPROTO where the file is empty or shorter than `least`.
 * `size`: set also then. */
void *rf_map_private(int fd, uint64_t least, uint64_t *size);

/* Map all of another process's file for reading; no child inherits the mapping. NULL with errno on
 * failure; EPROTO where it is no memfd whose size is sealed, so that it cannot be cut short, or its
 * size is not from `least` to `most`. */
const void *rf_map_sealed(int fd, uint64_t least, uint64_t most, uint64_t *size);

#endif
