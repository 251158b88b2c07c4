"""Cold traffic between the consumer and one worker: small pickled messages and file descriptors.

Batches never travel here. A message is one SEQPACKET packet, so it arrives whole or not at all.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
from typing import Any

PACKET = 1 << 18
MOST_FDS = 250  # the kernel's limit is 253


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: object, fds: tuple[int, ...] = ()) -> None:
    """Send a message at once: a dead peer is an OSError, a peer that does not read a BlockingIOError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    # Not socket.send_fds: it drops its flags before Python 3.12.
    end.sendmsg([pickle.dumps(message)], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> tuple[Any, list[int]]:
    """Return the next message with its descriptors; EOFError once the peer is gone."""
    packet, fds, _, _ = socket.recv_fds(end, PACKET, MOST_FDS)
    if not packet:
        raise EOFError
    for fd in fds:
        os.set_inheritable(fd, False)  # noqa: FBT003 - the name says it
    return pickle.loads(packet), fds  # noqa: S301 - from our own process
