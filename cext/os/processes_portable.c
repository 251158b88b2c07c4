/* What is of use to several processes that share memory: refused here. */
#include "os/descriptors.h"
#include "os/pages.h"
#include "os/wait.h"

#include <errno.h>
#include <stddef.h>

int rf_socket_pair(int *fds)
{
    (void)fds;
    return ENOTSUP;
}

int rf_send(int end, const void *packet, size_t size, const int *fds, unsigned count)
{
    (void)end, (void)packet, (void)size, (void)fds, (void)count;
    return ENOTSUP;
}

int rf_receive(int end, void *packet, size_t size, struct rf_received *received)
{
    (void)end, (void)packet, (void)size, (void)received;
    return ENOTSUP;
}

void rf_end_child(int pid) { (void)pid; }

int rf_guard_start(int parent, int lifeline)
{
    (void)parent, (void)lifeline;
    return ENOTSUP;
}

int rf_keep_heap(int trim, int mmap)
{
    (void)trim, (void)mmap;
    return -1;
}

bool rf_reserve_huge(int fd, uint64_t offset, uint64_t size)
{
    (void)fd, (void)offset, (void)size;
    return false;
}

void *rf_map_private(int fd, uint64_t least, uint64_t *size)
{
    (void)fd, (void)least, (void)size;
    errno = ENOTSUP;
    return NULL;
}

const void *rf_map_sealed(int fd, uint64_t least, uint64_t most, uint64_t *size)
{
    (void)fd, (void)least, (void)most, (void)size;
    errno = ENOTSUP;
    return NULL;
}
