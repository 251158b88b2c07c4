"""A training's connection to the host process; it is closed when the last lease is gone.

A forked child has a copy of it, by which it must say nothing; the host process takes the end of the
process that joined for the end of the training, not that of its children.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed._process import Forks
from ringfeed.errors import StallError, WorkerError
from ringfeed.sharing.names import hear, tell

if TYPE_CHECKING:
    from ringfeed.system._system import Descriptor

HOST_S = 30.0  # beyond timeout_s, after which the host process itself counts as stuck
UNSENT_S = 0.05  # between two attempts to send what there was no room for


class Connection:
    """Small messages to and from the host process."""

    def __init__(self, channel: Descriptor, share: str, host: int, timeout_s: float) -> None:
        """Talk to the host process of this pid."""
        self._channel = channel
        self._unsent: deque[object] = deque()
        self._forks = Forks.count
        self.share = share
        """What messages begin with."""
        self.host = host
        self._timeout_s = timeout_s

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that has joined."""
        return self._forks == Forks.count

    def tell(self, *message: object) -> None:
        """Send a message; a host process that has gone is noticed where an answer is waited for."""
        if self.is_ours:
            self._unsent.append(message)
            self._send()

    def _send(self) -> None:
        """Send what waits to be sent, as far as there is room: a busy host reads it later."""
        with suppress(
            IndexError
        ):  # no more; the garbage collector may have come in, and have sent some
            while self._unsent:
                message = self._unsent.popleft()
                try:
                    tell(self._channel, message)
                except BlockingIOError:
                    self._unsent.appendleft(message)
                    return
                except OSError:
                    continue

    def hear(self, *, wait: bool) -> tuple[Any, list[Descriptor]] | None:
        """Return the next message and its descriptors; None without ``wait`` where none came."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._send()
            left_s = max(deadline - time.monotonic(), 0) if wait else 0
            try:
                return hear(self._channel, min(left_s, UNSENT_S) if self._unsent else left_s)
            except TimeoutError:
                if not wait:
                    return None
                if time.monotonic() >= deadline:
                    raise StallError(
                        f"{self.share}: its host process (pid {self.host}) has not answered for "
                        f"{self._timeout_s:.0f} s"
                    ) from None
            except (EOFError, ConnectionError) as error:
                raise WorkerError(
                    f"{self.share}: its host process (pid {self.host}) has ended; what it wrote on "
                    "standard error says why, if it was not killed. Join again, and go on from a "
                    "state_dict()"
                ) from error
