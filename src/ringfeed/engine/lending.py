"""The ring in other hands for a while: C code of a feed, or the iterator's own one call a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.engine._iterator import Taker
    from ringfeed.ring._feed import Feed
    from ringfeed.ring._ring import Ring

PATIENCE_NS = 50_000_000  # in one call, before the engine is asked what may be wrong


class OvertakenError(Exception):
    """Another caller (a signal handler, for example) took a batch during this wait; call again."""


class Lending:
    """Lets the iterator or TensorFlow's op take batches without calling the engine, until `recall`."""

    def __init__(self, ring: Ring, taker: Taker) -> None:
        """Lend to ``taker``, or to feeds as they come."""
        self._ring = ring
        self._taker = taker
        self._feed: Feed | None = None  # the last there was
        self._is_out = False  # the feed has the ring
        self._waited_ns = 0

    def to_feed(self, feed: Feed, turn: int, batches: int, timeout_ns: int) -> None:
        """Let C code take so many batches, each waited for up to ``timeout_ns``."""
        self._feed = feed
        self._waited_ns = 0
        self._is_out = True
        feed.lend(self._ring, turn, batches, timeout_ns)

    def to_iterator(  # noqa: PLR0913 - as `Taker.lend` has them
        self, turn: int, batches: int, timeout_ns: int, recalls: int, until_ns: int, *, lets_go: bool
    ) -> None:
        """Let the iterator of this turn take so many, without a call of Python's; see `Taker.lend`."""
        self._waited_ns = 0
        self._taker.lend(turn, batches, min(PATIENCE_NS, timeout_ns), recalls, until_ns, lets_go)

    def recall(self) -> int:
        """Have the ring back; only then may anything be planned, taken or cancelled by others.

        Returns how often that has been done.
        """
        waited_ns = self._taker.recall()
        if self._is_out and self._feed is not None:
            _, waited_ns = self._feed.recall()
            self._is_out = False
        if waited_ns:
            self._waited_ns = waited_ns
        return self._taker.recalls

    def waited_ns(self) -> int:
        """Return what the last caller has waited in vain, once."""
        waited_ns, self._waited_ns = self._waited_ns, 0
        return waited_ns
