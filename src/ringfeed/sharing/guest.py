"""A training as the host process sees it: a connection, and the process behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.sharing.names import identify, peer_of, tell
from ringfeed.sharing.trainings import Training

if TYPE_CHECKING:
    from ringfeed.sharing.host_loader import Held
    from ringfeed.sharing.terms import Terms
    from ringfeed.sharing.trainings import Sent
    from ringfeed.system._system import Descriptor


class Guest:
    """A connection, and the process behind it."""

    def __init__(self, channel: Descriptor) -> None:
        """Know the process by its pidfd; PermissionError and ProcessLookupError as of `identify`."""
        self.channel = channel
        peer = peer_of(channel.fileno())
        self.pidfd = identify(channel.fileno(), peer)
        self.training = Training(peer.pid)
        self.asks: Terms | None = None  # to be let in, with these
        self.expects: str | None = None  # of samples: what a spec of theirs shows
        self.has_joined = False
        self.has_left = False  # and holds arrays yet, which need no host
        self.is_broken = False
        self._last: tuple[int, object] = 0, None

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Send at once; a process that does not read even the few messages that there are counts as gone."""
        try:
            tell(self.channel, message, fds)
        except OSError:
            self.is_broken = True

    def send_entry(self, sent: Sent) -> None:
        """Send what `Flow` says, or send it again."""
        serial, entry, private = sent
        held: Held | None = None if entry.batch is None else entry.batch.lease
        if serial != self._last[0]:
            content = {**entry.content, "private": private}
            if entry.kind in {"batch", "end"}:
                content["lost"], self.training.lost = self.training.lost, 0
            if entry.batch is not None:
                content["number"] = entry.batch.number
            self._last = serial, (serial, entry.kind, entry.epoch_id, content)
        self.send(self._last[1], () if held is None else (held.slots.fileno(),))
