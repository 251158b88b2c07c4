/* Memory of this process alone: no descriptor stands for it, and each mapping is fresh. A forked
 * child has a copy of all of it, which the kernel makes page by page when either writes. */
#define _DEFAULT_SOURCE
#include "os/pages.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

void rf_populate(void *address, uint64_t size) { (void)address, (void)size; }

static void *map_fresh(void *address, uint64_t size, int how)
{
    void *fresh = mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | how, -1, 0);
    return fresh == MAP_FAILED ? NULL : fresh;
}

int rf_unpopulate(void *address, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t before = -(uint64_t)(uintptr_t)address % page; /* of what lies beside it */
    if (size < before + page)
        return 0;
    uint64_t whole = (size - before) / page * page;
    return map_fresh((uint8_t *)address + before, whole, MAP_FIXED) ? 0 : errno;
}

void *rf_map(int fd, uint64_t size, int inherit)
{
    (void)fd, (void)inherit;
    return map_fresh(NULL, size, 0);
}

void rf_unmap(void *address, uint64_t size) { munmap(address, size); }

/* ---- a forked child keeps what it has ---- */

void *rf_copy_pages(const void *address, uint64_t size, bool changing)
{
    (void)address, (void)size, (void)changing;
    return NULL;
}

void rf_drop_copy(void *copy, const void *address, uint64_t size)
{
    (void)copy, (void)address, (void)size;
}

void rf_move_copy(void *copy, void *address, uint64_t size)
{
    (void)copy, (void)address, (void)size;
}

bool rf_forbid_pages(void *address, uint64_t size)
{
    (void)address, (void)size;
    return true;
}
