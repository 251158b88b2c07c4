"""What is kept of an engine's streams: their own states, and how far they are read again. See `data.stream_states`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.data.stream import REMEDY
from ringfeed.iterables.states import StreamStates
from ringfeed.orders.replay import Replay

if TYPE_CHECKING:
    from ringfeed.data.base import Source
    from ringfeed.resume.place import Place

LOOK_NS = 10**8  # while streams leave out what was read before


class KeptStreams:
    """The states of one engine's streams; it says so where streams that go on amid an epoch are read again for long."""

    def __init__(self, source: Source, *, shared: bool) -> None:
        """Reserve their memory, ``shared`` with worker processes; none for a dataset without streams."""
        self._source = source
        self.states = StreamStates.of(source.states_size, max(source.streams, 1), shared=shared)
        self._watches = False

    def go_on_from(self, place: Place, *, is_ahead: bool) -> None:
        """Have the streams begin at the states of a place; ``is_ahead``: workers have begun to read from there."""
        if self.states is not None:
            self.states.forget_skipped()
            if not is_ahead:
                self.states.begin_run()
            self.states.seed(place.epoch, place.streams)
            self._watches = place.samples > 0

    def patience_ns(self, left_ns: int) -> int:
        """Return how long to wait for a batch until `look`."""
        return min(left_ns, LOOK_NS) if self._watches else left_ns

    def look(self) -> None:
        """Warn once, if a stream has left out elements for a second."""
        found = self.states.skipped() if self._watches and self.states is not None else None
        if found is not None:
            what = f"the elements before {self._source.describe(found.before)} are read"
            replay = Replay(what, REMEDY, found.since_ns / 1e9)
            self._watches = False  # ahead of a warning that is made an error
            replay.note(found.done, found.total)
            self._watches = not replay.is_told

    @property
    def fd(self) -> int:
        """The descriptor of the memory; -1 where it has none."""
        memfd = None if self.states is None else self.states.memfd
        return -1 if memfd is None else memfd.fileno()

    def close(self) -> None:
        """Give the memory back."""
        if self.states is not None:
            self.states.close()
