"""Cold traffic between two processes: small pickled messages and file descriptors.

Batches never travel here. A message is one SEQPACKET packet, so it arrives whole or not at all.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
from typing import TYPE_CHECKING, Any

from ringfeed.system import _system
from ringfeed.system._system import PACKET, Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _typeshed import HasFileno

ELSEWHERE = b"memfd"  # in place of a message that is in the last descriptor


class PeerGoneError(EOFError):
    """The other process has ended, or closed its end."""


def pair() -> tuple[Descriptor, Descriptor]:
    """Return the two ends of a new channel."""
    return _system.socket_pair()


def readable(ends: Iterable[HasFileno | int], timeout_s: float | None = None) -> list[int]:
    """Wait until something comes, or will come no more; return the descriptors where it does.

    A pidfd is one where its process has ended. None where the time is over.
    """
    poller = select.poll()
    for end in ends:
        poller.register(end, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)]


def send(
    end: HasFileno,
    message: object,
    fds: tuple[int, ...] = (),
    dumps: Callable[[Any], bytes] = pickle.dumps,
) -> None:
    """Send a message at once.

    A dead peer is an OSError, a peer that does not read a BlockingIOError.
    """
    packet = dumps(message)
    if len(packet) <= PACKET:
        _system.send(end.fileno(), packet, fds)
        return
    with Descriptor(os.memfd_create, "ringfeed-message", os.MFD_CLOEXEC) as memfd:
        os.fchmod(memfd.fileno(), 0o600)  # as the segment's
        with open(memfd.fileno(), "wb", closefd=False) as file:
            file.write(packet)
        _system.send(end.fileno(), ELSEWHERE, (*fds, memfd.fileno()))


def receive(
    end: HasFileno, timeout_s: float | None = None, loads: Callable[[bytes], Any] = pickle.loads
) -> tuple[Any, list[Descriptor]]:
    """Return the next message with its descriptors.

    PeerGoneError once the peer is gone, TimeoutError: none came.
    """
    if not readable([end], timeout_s):
        raise TimeoutError
    try:
        packet, fds, truncated = _system.receive(end.fileno())
    except ConnectionResetError:
        # Said once, before what it had sent, of a peer that left messages unread.
        return receive(end, timeout_s, loads)
    if truncated:
        for fd in fds:
            fd.close()
        raise OSError(errno.EMFILE, "no room for the descriptors of a message")
    if not packet:
        raise PeerGoneError
    if packet == ELSEWHERE:
        with fds.pop() as memfd:
            packet = os.pread(memfd.fileno(), os.fstat(memfd.fileno()).st_size, 0)
    return loads(packet), fds
