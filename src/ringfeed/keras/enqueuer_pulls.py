"""An iterator behind an enqueuer: one thread reads it into slots, in its order, until its end."""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Any

from ringfeed.keras.enqueuer_epochs import Maker, Over
from ringfeed.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pulled:
    """An iterator of batches without those that are None; each start reads on where the last has left it."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()  # a thread of the last start may still be inside

    def __iter__(self) -> Pulled:
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        with self._lock:
            while (batch := next(self._iterator)) is None:
                pass
            return batch


class PulledStream:
    """The batches of an iterator, read by one thread of this process."""

    def __init__(self, loader: Loader, *, copy: bool) -> None:
        self.loader = loader
        self._taking = threading.RLock()
        self._batches = loader._begin_epoch(Maker(loader, copy=copy))  # noqa: SLF001 - as its own adapters do

    def take(self) -> Any:
        """Return the next batch; Over after the last."""
        with self._taking:
            try:
                return next(self._batches)
            except StopIteration:
                raise Over from None


def open_pulled(pulled: Pulled, options: dict[str, Any], *, copy: bool) -> PulledStream:
    """Start a loader over an iterator, which is one thread's to read."""
    batches: Iterator[Any] = pulled
    if options["spec"] is None:
        first = next(pulled, None)
        if first is None:
            raise Over
        batches = chain([first], pulled)
    return PulledStream(Loader(batches, batch_size=None, workers=1, **options), copy=copy)
