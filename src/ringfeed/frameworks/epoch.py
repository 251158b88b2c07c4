"""An epoch as a framework asks for it: ahead of the step, which alone knows how far the training is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.engine.position import UNKNOWN
from ringfeed.errors import RingfeedError

if TYPE_CHECKING:
    from ringfeed.engine._iterator import Progress
    from ringfeed.frameworks.base import BatchIterator, BatchStream
    from ringfeed.spec.builder import BuildBatch


class Epoch:
    """The loader's next epoch, begun by the first ``next()``, which gives what ``build`` makes of a batch.

    An error of the loader does not end the epoch: the next ``next()`` goes on as the loader does. ``build`` must not
    refer to the epoch, which breaks off where it is dropped.
    """

    def __init__(self, stream: BatchStream, build: BuildBatch) -> None:
        self._stream = stream
        self._build = build
        self._batches: BatchIterator | None = None
        self._left: int | None = None

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        batches = self._batches or self.begin()
        if self._left is not None:
            self._left -= 1
        try:
            leaves = next(batches)
        except RingfeedError as error:
            self._explain(error)
            raise
        if self._left == 0:
            # Callers that know the length never ask past the end, where the loader closes its epoch.
            next(batches, None)
        return leaves

    def begin(self) -> BatchIterator:
        """Begin now, where the first ``next()`` has not."""
        if self._batches is None:
            self._choose()
            self._stream.prepare()
            left = self._stream.position.left()
            self._batches = self._stream.epoch(self._build, wait_for_slots=True)
            self._note(self._batches.count_alone())
            # An iterable may give more than it says, or raise instead of ending: either is what comes next.
            self._left = None if self._stream.info.is_iterable else left
        return self._batches

    def _choose(self) -> None:
        """Set the loader's next epoch, where it is not the one after the last."""

    def _note(self, progress: Progress) -> None:
        """Say how far the training loop is, whose batches are read ahead: it knows alone."""
        progress.given = UNKNOWN

    def _explain(self, error: RingfeedError) -> None:
        """Add to an error what its caller would lose of it."""

    def give_back(self) -> None:
        """Let the next epoch be this one again, unless another was begun since."""
        if self._batches is not None:
            self._stream.give_back(self._batches.epoch_id)
