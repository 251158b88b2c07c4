"""The socket of a share, a name in the abstract namespace that leaves no file, and its messages.

Such names are those of a network namespace, which containers may have in common. So the name has
the user's number and the namespaces of this process in it, and both ends ask the kernel whose
process the other is (SO_PEERCRED and SO_PEERPIDFD, unix(7)) before they look at what it says.
Messages are JSON. Pickle opens only what is code, an exception, a spec or a state as a whole, of a
process that was found to be one of ours. So nothing that lies in a state is opened by pickle: a
state may come from a file.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.system import channel as channels
from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from _typeshed import HasFileno

_ALLOWED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_PEER_PIDFD = getattr(socket, "SO_PEERPIDFD", 77)  # since Linux 6.5
_BYTES = "ringfeed:bytes"  # the key of what JSON has no word for
BACKLOG = 1024


# ---- which process ----


class Peer(NamedTuple):
    """The process at the other end; pid 0 is in a pid namespace that this process does not see."""

    pid: int
    uid: int


def namespaces_of(pid: int | str) -> tuple[int, ...]:
    """Return the inodes of the pid, user and mount namespaces of a process.

    OSError where it has ended, or hides them.
    """
    return tuple(Path(f"/proc/{pid}/ns/{kind}").stat().st_ino for kind in ("pid", "user", "mnt"))


def peer_of(connection: socket.socket) -> Peer:
    """Return whose process is at the other end: of a listener, the one that made it listen last."""
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Peer(pid, uid)


def identify(connection: socket.socket, peer: Peer) -> Descriptor:
    """Return a pidfd of the process at the other end.

    PermissionError where that is another user's, or in another container; ProcessLookupError where
    it has ended.
    """
    _check(peer)  # first: no descriptor is opened for those of others
    pidfd = _pidfd_of(connection, peer)  # it is closed with its last reference
    _check(peer)  # of this process, unless it has ended and its number is another's
    if channels.readable([pidfd], 0):  # it has ended
        raise ProcessLookupError
    return pidfd


def _check(peer: Peer) -> None:
    if peer.uid != os.getuid():
        raise PermissionError(
            f"another user (uid {peer.uid}, and this process has uid {os.getuid()})"
        )
    try:
        is_here = peer.pid != 0 and namespaces_of(peer.pid) == namespaces_of("self")
    except PermissionError:
        is_here = False
    except FileNotFoundError:
        raise ProcessLookupError from None
    if not is_here:
        raise PermissionError(
            "another container (its pid, user or mount namespace is not that of this process)"
        )


def _pidfd_of(connection: socket.socket, peer: Peer) -> Descriptor:
    try:
        return Descriptor(connection.getsockopt, socket.SOL_SOCKET, _PEER_PIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return Descriptor(os.pidfd_open, peer.pid)


# ---- its socket ----


def check_name(name: object) -> str:
    """Return the name of a share, or raise."""
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} must be a str")
    if not _ALLOWED.fullmatch(name):
        raise ValueError(
            f"name={name!r} must be 1 to 64 of the letters A-Z and a-z, digits, '.', '_' and '-'"
        )
    return name


def address_of(name: str) -> str:
    """Return the address of a share of this user in these namespaces, of at most 108 bytes."""
    inodes = struct.pack("<3I", *(inode & 0xFFFFFFFF for inode in namespaces_of("self")))
    return f"\0ringfeed/share/{os.getuid()}/{base64.urlsafe_b64encode(inodes).decode()}/{name}"


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

    PermissionError where that is another user's, or another container's.
    """
    with _socket() as made:
        made.settimeout(0)
        try:
            made.connect(address_of(name))
        except (
            ConnectionRefusedError,
            BlockingIOError,
        ):  # not listening yet, or not any more; its backlog is full
            return None
        try:
            identify(made, peer_of(made)).close()
        except ProcessLookupError:  # the first training has ended, and the host does not listen yet
            return None
        except PermissionError as error:
            raise PermissionError(
                f"name={name!r} is in use by {error}; choose another name"
            ) from None
        return Descriptor(made.detach)


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection, if one waits."""
    try:
        return listener.accept()[0]
    except (BlockingIOError, ConnectionAbortedError):
        return None


# ---- what is said ----


def tell(channel: HasFileno, message: object, fds: tuple[int, ...] = ()) -> None:
    """Send a message of numbers, strings, bytes, lists and dicts; errors as of `channel.send`."""
    channels.send(channel, message, fds, lambda said: json.dumps(said, default=_as_text).encode())


def hear(channel: Descriptor, timeout_s: float | None = None) -> tuple[Any, list[Descriptor]]:
    """Return the next message with its descriptors; errors as of `channel.receive`."""
    return channels.receive(
        channel, timeout_s, lambda packet: json.loads(packet, object_hook=_from_text)
    )


def _as_text(value: Any) -> dict[str, str]:
    return {_BYTES: base64.b64encode(value).decode()}


def _from_text(value: dict[str, Any]) -> Any:
    return base64.b64decode(value[_BYTES]) if value.keys() == {_BYTES} else value
