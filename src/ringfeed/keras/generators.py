"""The enqueuer of an iterator, which Keras 2 has; no framework is imported here."""

from __future__ import annotations

import threading
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ringfeed.keras.enqueuers import Running, SequenceEnqueuer
from ringfeed.keras.objects import KeptBatches, holds_objects
from ringfeed.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator


class GeneratorEnqueuer(SequenceEnqueuer):
    """The batches of an iterator, in its order, read ahead by one thread of this process.

    Whatever is asked for, it is one: a running generator cannot be sent to a process, and where Keras gives each
    process a copy of it, each batch comes as often as there are workers. So ``workers``, ``use_multiprocessing`` and
    ``random_seed``, which Keras sets in such a process, make no difference here.

    The iterator is never read further ahead than ``max_queue_size`` batches; those are lost at `stop`, as with Keras.
    At its end the loop over `get` ends too.

    Where the first batch holds a sparse or ragged tensor, of TensorFlow, JAX or SciPy, batches are handed over as they
    are, and no slot holds them.

    spec, max_batch_size: see `ringfeed.Loader`; otherwise the first batch tells.
    """

    def __init__(  # noqa: PLR0913 - Keras' parameters, and what a loader needs
        self,
        generator: Iterator[Any],
        use_multiprocessing: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        random_seed: int | None = None,
        *,
        copy: bool = True,
        spec: object = None,
        max_batch_size: int | None = None,
        timeout_s: float | None = 300,
    ) -> None:
        """Keep the iterator; `start` reads its first batch."""
        if not callable(getattr(type(generator), "__next__", None)):
            raise TypeError(
                f"a GeneratorEnqueuer was given a {type(generator).__name__}, expected a generator or another "
                f"iterator; call the function, or give iter(...)"
            )
        super().__init__(generator, use_multiprocessing=use_multiprocessing)
        self.random_seed = random_seed
        self._options: dict[str, Any] = {
            "copy": copy,
            "spec": spec,
            "max_batch_size": max_batch_size,
            "timeout_s": timeout_s,
        }
        self._batches = _Pulled(generator)

    def _open(self, slots: int) -> Running:
        batches: Iterator[Any] = self._batches
        if self._options["spec"] is None:
            first = next(batches, None)
            if first is None:
                return Running(None, partial(next, batches))
            batches = chain([first], batches)
            if holds_objects(first):
                return self._open_kept(batches, slots)
        loader = Loader(batches, batch_size=None, workers=1, slots=slots, **self._options)
        return Running(loader, partial(next, iter(loader)))

    def _open_kept(self, batches: Iterator[Any], slots: int) -> Running:
        """Begin to read batches that go past the slots."""
        kept = KeptBatches()
        loader = Loader(map(kept.put, batches), batch_size=None, workers=1, slots=slots, **self._options)
        handed = map(kept.take, iter(loader))
        return Running(loader, partial(next, handed))


class _Pulled:
    """An iterator of batches without those that are None; each start reads on where the last has left it."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()  # a thread of the last start may still be inside

    def __iter__(self) -> _Pulled:
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        with self._lock:
            while (batch := next(self._iterator)) is None:
                pass
            return batch
