"""Cold traffic between the consumer and one worker: small pickled messages and file descriptors.

Batches never travel here. A message is one SEQPACKET packet, so it arrives whole or not at all.
"""

from __future__ import annotations

import array
import errno
import os
import pickle
import socket
from typing import Any

PACKET = 1 << 16  # a longer message goes beside it, in a memfd: what a socket takes at once is not ours to say
MOST_FDS = 250  # the kernel's limit is 253
FD_SIZE = array.array("i").itemsize
ELSEWHERE = b"memfd"  # in place of a message that is in the last descriptor


class PeerGoneError(EOFError):
    """The other process has ended, or closed its end."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new channel."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(True)  # noqa: FBT003 - the name says it; socket.setdefaulttimeout() is not for us
    return ends


def send(end: socket.socket, message: object, fds: tuple[int, ...] = ()) -> None:
    """Send a message at once: a dead peer is an OSError, a peer that does not read a BlockingIOError."""
    packet = pickle.dumps(message)
    if len(packet) <= PACKET:
        _send(end, packet, fds)
        return
    with open(os.memfd_create("ringfeed-message", os.MFD_CLOEXEC), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(packet)
        file.flush()
        _send(end, ELSEWHERE, (*fds, file.fileno()))


def _send(end: socket.socket, packet: bytes, fds: tuple[int, ...]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    # Not socket.send_fds: it drops its flags before Python 3.12.
    end.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _receive(end: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
    # Not socket.recv_fds: it drops its flags, and between it and a later fcntl() another thread may exec.
    return end.recvmsg(PACKET, socket.CMSG_LEN(MOST_FDS * FD_SIZE), socket.MSG_CMSG_CLOEXEC)


def receive(end: socket.socket) -> tuple[Any, list[int]]:
    """Return the next message with its descriptors; PeerGoneError once the peer is gone."""
    try:
        packet, rights, flags, _ = _receive(end)
    except ConnectionResetError:  # said once of a peer that has left messages unread, before what it had sent
        packet, rights, flags, _ = _receive(end)
    fds = [fd for _, _, some in rights for fd in array.array("i", some)]
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, "no room for the descriptors of a message")
    if not packet:
        raise PeerGoneError
    if packet == ELSEWHERE:
        with open(fds.pop(), "rb") as file:  # noqa: PTH123 - a descriptor
            packet = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    return pickle.loads(packet), fds  # noqa: S301 - from our own process
