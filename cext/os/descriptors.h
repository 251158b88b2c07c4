/* Messages with descriptors over a socket, in one call each, so that the caller owns at once what
 * it has received. */
#ifndef RF_DESCRIPTORS_H
#define RF_DESCRIPTORS_H

#include <stddef.h>

/* The kernel's limit (SCM_MAX_FD) is 253. */
#define RF_MAX_FDS 250

struct rf_received {
    size_t size; /* bytes of the packet; 0: the peer is gone */
    unsigned count;
    int truncated; /* there was no room for all of the descriptors */
    int fds[RF_MAX_FDS];
};

/* Make the two ends of a channel that keeps packets apart, close-on-exec. Returns 0 or an errno. */
int rf_socket_pair(int *fds);

/* Send a packet and `count` descriptors, at most RF_MAX_FDS, at once. Returns 0 or an errno: EAGAIN
 * where the peer does not read. */
int rf_send(int end, const void *packet, size_t size, const int *fds, unsigned count);

/* Receive a packet of at most `size` bytes that has come. The descriptors are close-on-exec, and
 * the caller's. Returns 0 or an errno: EAGAIN where none has come. */
int rf_receive(int end, void *packet, size_t size, struct rf_received *received);

#endif
