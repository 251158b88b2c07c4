"""What `to_torch` and `to_jax` return: the epochs of a loader, each batch in a framework's own arrays."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ringfeed.errors import SlotsHeldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.frameworks.base import BatchIterator, BatchStream
    from ringfeed.spec.builder import BatchBuilder


class Epochs:
    """Every ``iter()`` is the loader's next epoch; as long as the loader."""

    def __init__(self, stream: BatchStream, make: Callable[[], BatchBuilder]) -> None:
        self._stream = stream
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch; an older iterator raises SupersededError at its next ``next()``."""
        builder, info = self._make(), self._stream.info
        return FrameworkBatches(self._stream.epoch(builder), builder, info.slots, info.timeout_s)

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where the loader does not know."""
        return len(self._stream)


class FrameworkBatches:
    """One epoch. Dropping it before the end breaks the epoch off."""

    def __init__(self, batches: BatchIterator, builder: BatchBuilder, slots: int, timeout_s: float | None) -> None:
        self._batches = batches
        self._builder = builder
        self._slots = slots
        self._timeout_s = math.inf if timeout_s is None else timeout_s

    def __iter__(self) -> FrameworkBatches:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, in the structure of a sample."""
        began_s = time.monotonic()
        while True:
            try:
                return next(self._batches)
            except SlotsHeldError as error:  # after a second
                waited_s = time.monotonic() - began_s
                if waited_s >= self._timeout_s or not self._builder.lets_go_later(waited_s, self._slots):
                    raise SlotsHeldError(f"{error} ({self._builder.copied_by})") from None
