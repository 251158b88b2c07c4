"""What is kept of an engine's streams: their own states, and how far they are read again. See `states`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._units import show_bytes
from ringfeed.datasets.states import StreamStates
from ringfeed.datasets.stream import REMEDY
from ringfeed.datasets.terms import Kept
from ringfeed.errors import PlanError
from ringfeed.orders.replay import Replay

if TYPE_CHECKING:
    from ringfeed.datasets.streams import StreamSource

LOOK_NS = 10**8  # while streams leave out what was read before


class KeptStreams(Kept):
    """The states of one engine's streams; it says so where streams that go on amid an epoch are read again for long."""

    def __init__(self, source: StreamSource, sizes: Any = None, *, shared: bool) -> None:
        """Reserve their memory, ``shared`` with worker processes.

        ``sizes``: the `StoreSizes` of the elements that a process reads for the workers, if one does.
        """
        self._source = source
        behind = (0, 0) if sizes is None else (sizes.total, sizes.words)
        self.states = StreamStates.of(source.states_size, source.streams, shared=shared, behind=behind)
        self._store = None if sizes is None else self._opened(sizes)
        self._watches = False

    def _opened(self, sizes: Any) -> Any:
        states = self.states
        assert states is not None
        assert states.memfd is not None
        try:
            return sizes.open(states.memfd, states.end)
        except OSError as error:
            states.close()
            message = (
                f"cannot map {show_bytes(sizes.words)} for an iterable: {error.strerror}; raise RLIMIT_AS (ulimit -v)"
            )
            raise PlanError(message) from error

    def go_on_from(self, epoch: int, samples: int, streams: Any, *, is_ahead: bool) -> None:
        """Have the streams begin at the states of a place; ``is_ahead``: workers have begun to read from there."""
        if self.states is not None:
            self.states.forget_skipped()
            if not is_ahead:
                self.states.begin_run()
            self.states.seed(epoch, streams)
            self._watches = samples > 0
            if self._store is not None:
                self._store.tell(self.states.run, epoch, samples)  # last: its reader begins at once

    def look_in_ns(self, left_ns: int) -> int:
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
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor of the memory; -1 where it has none."""
        memfd = None if self.states is None else self.states.memfd
        return -1 if memfd is None else memfd.fileno()

    def close(self) -> None:
        """Give the memory back."""
        if self._store is not None:
            self._store.close()
        if self.states is not None:
            self.states.close()
