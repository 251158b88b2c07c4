"""An iterator behind an enqueuer: one thread reads it into slots, in its order, until its end."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from ringfeed.adapters.enqueuer_epochs import Maker, OrderedLoader, Over
from ringfeed.errors import WorkerError
from ringfeed.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.loader import Loader


class Exhausted(Exception):  # noqa: N818 - no error
    """The iterator has come to its end."""


class Pulled:
    """An iterator of batches behind an index, for one worker thread: it claims them in their order."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()  # a thread of the last start may still be inside
        self._first: list[Any] = []
        self._exhausted = False

    def __getitem__(self, index: int) -> Any:
        """Return the next batch, whatever the index; Exhausted after the last."""
        with self._lock:
            return self._first.pop() if self._first else self._pull()

    def peek(self) -> Any:
        """Return the next batch, and keep it for who asks next."""
        with self._lock:
            if not self._first:
                self._first.append(self._pull())
            return self._first[0]

    def _pull(self) -> Any:
        while not self._exhausted:
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._exhausted = True
            else:
                if batch is not None:
                    return batch
        raise Exhausted


class PulledStream:
    """The batches of an iterator, read by one thread of this process."""

    def __init__(self, loader: Loader, *, copy: bool) -> None:
        self.loader = loader
        self._taking = threading.RLock()
        self._over = False
        self._batches = loader.batches(Maker(loader, copy=copy))

    def take(self) -> Any:
        """Return the next batch; Over after the last."""
        with self._taking:
            if self._over:
                raise Over
            try:
                return next(self._batches)
            except WorkerError as error:
                if not isinstance(error.__cause__, Exhausted):
                    raise
            self._over = True
            raise Over


def open_pulled(pulled: Pulled, options: dict[str, Any], *, copy: bool) -> PulledStream:
    """Start a loader over an iterator, with one thread."""
    if options["spec"] is None:
        try:
            spec, rows = Spec.infer_batch(pulled.peek(), 0)
        except Exhausted:
            raise Over from None
        options = {**options, "spec": spec, "max_batch_size": options["max_batch_size"] or max(rows, 1)}
    sampler = lambda number: itertools.count()  # noqa: ARG005, E731 - there is one epoch, without end
    loader = OrderedLoader(pulled, batch_size=None, sampler=sampler, workers=1, backend="thread", **options)
    return PulledStream(loader, copy=copy)
