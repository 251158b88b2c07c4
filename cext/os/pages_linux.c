#define _GNU_SOURCE
#include "os/pages.h"

#include "os/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_NS 400000 /* what a huge page may take, which is a third of that where there are any */
/* What may be lost where the kernel has to move others out of the way, or a virtual machine has yet
 * to be given the memory: small pages are then taken from what it has. */
#define SLOW_NS 20000000

static uint64_t page_size(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

/* ---- pages ---- */

void rf_populate(void *address, uint64_t size)
{
    uint64_t before = (uintptr_t)address % page_size(); /* madvise() takes whole pages only */
    (void)madvise((uint8_t *)address - before, size + before, MADV_POPULATE_WRITE);
}

int rf_unpopulate(void *address, uint64_t size)
{
    uint64_t page = page_size(); /* what is beside it may lie in its first and its last */
    uint64_t before = -(uint64_t)(uintptr_t)address % page;
    if (size < before + page)
        return 0;
    return madvise((uint8_t *)address + before, (size - before) / page * page, MADV_REMOVE) ? errno
                                                                                            : 0;
}

/* Where huge pages can be mapped as such; `flags`: shared or private. */
static void *map_aligned(int fd, uint64_t offset, uint64_t size, int protection, int flags)
{
    uint64_t page = page_size(), whole = (size + page - 1) / page * page;
    uint8_t *room = MAP_FAILED;
    if (size >= RF_HUGE)
        room = mmap(NULL, whole + RF_HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    uint64_t before = (RF_HUGE - (uintptr_t)room % RF_HUGE) % RF_HUGE;
    void *address = MAP_FAILED;
    if (room != MAP_FAILED)
        address = mmap(room + before, size, protection, flags | MAP_FIXED, fd, (off_t)offset);
    /* Also where memory is locked, which counts the room and the file in it. */
    if (address == MAP_FAILED) {
        if (room != MAP_FAILED)
            munmap(room, whole + RF_HUGE);
        return mmap(NULL, size, protection, flags, fd, (off_t)offset);
    }
    if (before)
        munmap(room, before);
    munmap(room + before + whole, RF_HUGE - before);
    return address;
}

/* One huge page, from a first page that the kernel itself has put there: one that cannot be had is
 * an error here, and would be a SIGBUS where it is looked at. */
static bool reserve_one(int fd, uint64_t offset, uint8_t *address)
{
    return posix_fallocate(fd, (off_t)offset, 1) == 0 &&
           madvise(address, page_size(), MADV_POPULATE_READ) == 0 &&
           madvise(address, RF_HUGE, MADV_COLLAPSE) == 0;
}

bool rf_reserve_huge(int fd, uint64_t offset, uint64_t size)
{
    uint64_t huge = size / RF_HUGE * RF_HUGE, at = 0;
    if (!huge)
        return true;
    /* A child forked meanwhile must not keep the memory, nor by a shared mapping
     * prevent its sealing. */
    uint8_t *address = map_aligned(fd, offset, huge, PROT_READ, MAP_PRIVATE);
    if (address == MAP_FAILED)
        return false;
    (void)madvise(address, huge, MADV_DONTFORK);
    int64_t until_ns = rf_now_ns() + SLOW_NS;
    for (; at < huge && rf_now_ns() < until_ns; at += RF_HUGE, until_ns += HUGE_NS)
        if (!reserve_one(fd, offset + at, address + at))
            break;
    munmap(address, huge);
    return at == huge;
}

/* ---- copies for a forked child ---- */

static uint8_t *first_page(const void *address)
{
    return (uint8_t *)address - (uintptr_t)address % page_size();
}

static uint64_t page_bytes(const void *address, uint64_t size)
{
    uint64_t page = page_size();
    return ((uintptr_t)address % page + size + page - 1) / page * page;
}

/* As the kernel copies pages at a fork, which no race detector sees either. */
__attribute__((no_sanitize("thread"))) static void
copy_words(uint64_t *to, const volatile uint64_t *from, uint64_t size)
{
    for (uint64_t word = 0; word < size / sizeof *to; word++)
        to[word] = from[word];
}

void *rf_copy_pages(const void *address, uint64_t size, bool changing)
{
    uint64_t whole = page_bytes(address, size);
    void *copy = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return NULL;
    if (changing)
        copy_words(copy, (const void *)first_page(address), whole);
    else
        memcpy(copy, first_page(address), whole);
    return copy;
}

void rf_drop_copy(void *copy, const void *address, uint64_t size)
{
    if (copy)
        munmap(copy, page_bytes(address, size));
}

void rf_move_copy(void *copy, void *address, uint64_t size)
{
    uint64_t whole = page_bytes(address, size);
    if (copy) /* where it fails, the address stays forbidden */
        (void)mremap(copy, whole, whole, MREMAP_MAYMOVE | MREMAP_FIXED, first_page(address));
}

bool rf_forbid_pages(void *address, uint64_t size)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(address, size, PROT_NONE, flags, -1, 0) == address;
}

/* ---- mappings ---- */

void *rf_map(int fd, uint64_t size, int inherit)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return NULL;
    if ((uint64_t)file.st_size < size) { /* past its end a read is a SIGBUS */
        errno = EPROTO;
        return NULL;
    }
    uint8_t *address = map_aligned(fd, 0, size, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (address == MAP_FAILED)
        return NULL;
    if (!inherit)
        (void)madvise(address, size, MADV_DONTFORK);
    return address;
}

void rf_unmap(void *address, uint64_t size) { munmap(address, size); }

void *rf_map_private(int fd, uint64_t least, uint64_t *size)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return NULL;
    *size = (uint64_t)file.st_size;
    if (*size < least || *size == 0) {
        errno = EPROTO;
        return NULL;
    }
    void *address = map_aligned(fd, 0, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    return address == MAP_FAILED ? NULL : address;
}

const void *rf_map_sealed(int fd, uint64_t least, uint64_t most, uint64_t *size)
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 && errno == EBADF)
        return NULL;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW) || fstat(fd, &file) != 0 ||
        (uint64_t)file.st_size < least || (uint64_t)file.st_size > most) {
        errno = EPROTO;
        return NULL;
    }
    *size = (uint64_t)file.st_size;
    void *address = mmap(NULL, *size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return NULL;
    (void)madvise(address, *size, MADV_DONTFORK);
    return address;
}
