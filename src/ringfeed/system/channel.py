"""Cold traffic between two processes: small pickled messages and file descriptors.

Batches never travel here. A message is one SEQPACKET packet, so it arrives whole or not at all.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed.system import _system
from ringfeed.system._system import PACKET, Descriptor

if TYPE_CHECKING:
    from _typeshed import HasFileno

ELSEWHERE = b"memfd"  # in place of a message that is in the last descriptor


class PeerGoneError(EOFError):
    """The other process has ended, or closed its end."""


def pair() -> tuple[Descriptor, Descriptor]:
    """Return the two ends of a new channel."""
    return _system.socket_pair()


def send(end: HasFileno, message: object, fds: tuple[int, ...] = ()) -> None:
    """Send a message at once.

    A dead peer is an OSError, a peer that does not read a BlockingIOError.
    """
    send_packet(end, pickle.dumps(message), fds)


def send_packet(end: HasFileno, packet: bytes, fds: tuple[int, ...] = ()) -> None:
    """Send bytes as `send` does a message."""
    if len(packet) <= PACKET:
        _system.send(end.fileno(), packet, fds)
        return
    with Descriptor(os.memfd_create, "ringfeed-message", os.MFD_CLOEXEC) as memfd:
        os.fchmod(memfd.fileno(), 0o600)  # as the segment's
        with open(memfd.fileno(), "wb", closefd=False) as file:
            file.write(packet)
        _system.send(end.fileno(), ELSEWHERE, (*fds, memfd.fileno()))


def receive(end: HasFileno, timeout_s: float | None = None) -> tuple[Any, list[Descriptor]]:
    """Return the next message with its descriptors.

    PeerGoneError once the peer is gone, TimeoutError: none came.
    """
    packet, fds = receive_packet(end, timeout_s)
    return pickle.loads(packet), fds  # noqa: S301 - from our own process


def receive_packet(
    end: HasFileno, timeout_s: float | None = None
) -> tuple[bytes, list[Descriptor]]:
    """Return the next bytes as `receive` does a message."""
    packet, fds, truncated = _next_packet(end, timeout_s)
    if truncated:
        for fd in fds:
            fd.close()
        raise OSError(errno.EMFILE, "no room for the descriptors of a message")
    if not packet:
        raise PeerGoneError
    if packet == ELSEWHERE:
        with fds.pop() as memfd:
            packet = os.pread(memfd.fileno(), os.fstat(memfd.fileno()).st_size, 0)
    return packet, fds


def _next_packet(end: HasFileno, timeout_s: float | None) -> tuple[bytes, list[Descriptor], bool]:
    poller = select.poll()
    poller.register(end.fileno(), select.POLLIN)
    while True:
        if not poller.poll(None if timeout_s is None else timeout_s * 1000):
            raise TimeoutError
        with suppress(ConnectionResetError):
            # Said once, before what it had sent, of a peer that left messages unread.
            return _system.receive(end.fileno())
