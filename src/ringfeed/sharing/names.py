"""The socket of a share: a name in the abstract namespace, so that no file is left behind.

The name has the user's number in it, and both ends ask the kernel whose process the other is: SO_PEERCRED, unix(7).
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from typing import NamedTuple

from ringfeed.system._system import Descriptor

_ALLOWED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
BACKLOG = 1024


class Peer(NamedTuple):
    """The process at the other end; its pid is 0 where it is in a pid namespace that this one does not see."""

    pid: int
    uid: int


def check_name(name: object) -> str:
    """Return the name of a share, or raise."""
    if not isinstance(name, str):
        message = f"name={name!r} must be a str"
        raise TypeError(message)
    if not _ALLOWED.fullmatch(name):
        message = f"name={name!r} must be 1 to 64 of the letters A-Z and a-z, digits, '.', '_' and '-'"
        raise ValueError(message)
    return name


def address_of(name: str) -> str:
    """Return the address of this user's share of that name."""
    return f"\0ringfeed/share/{os.getuid()}/{name}"


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def bind(name: str) -> Descriptor | None:
    """Return a socket that listens by this name; None where one does already."""
    with _socket() as made:
        try:
            made.bind(address_of(name))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        made.listen(BACKLOG)
        return Descriptor(made.detach)


def connect(name: str) -> Descriptor | None:
    """Return a connection to the socket that listens by this name; None where none does.

    PermissionError where that is another user's.
    """
    with _socket() as made:
        made.settimeout(0)
        try:
            made.connect(address_of(name))
        except (ConnectionRefusedError, BlockingIOError):  # not listening yet, or not any more; its backlog is full
            return None
        peer = peer_of(made.fileno())
        if peer.uid != os.getuid():
            raise PermissionError(
                f"name={name!r} is in use by another user (uid {peer.uid}, and this process has uid {os.getuid()}); "
                "choose another name"
            )
        return Descriptor(made.detach)


def peer_of(fd: int) -> Peer:
    """Return whose process is at the other end; of a listener, the process that made it listen."""
    with socket.socket(fileno=os.dup(fd)) as asked:
        pid, uid, _ = _CREDENTIALS.unpack(asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def accept(listener: Descriptor) -> Descriptor | None:
    """Return the next connection, if one waits."""
    with socket.socket(fileno=os.dup(listener.fileno())) as listening:
        listening.settimeout(0)
        try:
            made, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        with made:
            return Descriptor(made.detach)
