#define _GNU_SOURCE
#include "os/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

union rights {
    char bytes[CMSG_SPACE(RF_MAX_FDS * sizeof(int))];
    struct cmsghdr aligned;
};

int rf_socket_pair(int *fds)
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) ? errno : 0;
}

int rf_send(int end, const void *packet, size_t size, const int *fds, unsigned count)
{
    union rights rights;
    struct iovec piece = {.iov_base = (void *)packet, .iov_len = size};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (count > RF_MAX_FDS)
        return EINVAL;
    if (count) {
        memset(&rights, 0, sizeof rights);
        message.msg_control = rights.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(head), fds, count * sizeof(int));
    }
    return sendmsg(end, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

int rf_receive(int end, void *packet, size_t size, struct rf_received *received)
{
    union rights rights;
    struct iovec piece = {.iov_base = packet, .iov_len = size};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = rights.bytes,
                             .msg_controllen = sizeof rights.bytes};
    /* Close-on-exec from the first moment: another thread may exec before any later call. */
    ssize_t got = recvmsg(end, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0)
        return errno;
    received->size = (size_t)got;
    received->count = 0;
    received->truncated = (message.msg_flags & MSG_CTRUNC) != 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned count = (unsigned)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        if (count > RF_MAX_FDS - received->count)
            count = RF_MAX_FDS - received->count; /* the buffer has no room for more */
        memcpy(received->fds + received->count, CMSG_DATA(head), count * sizeof(int));
        received->count += count;
    }
    return 0;
}
