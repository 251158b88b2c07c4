"""Keras 2, by the package `tf_keras`: its Sequence over a ring.

Keras 2 reads a Sequence in a generator of its own, in a thread of TensorFlow's, and copies what it gets. So batches are
private copies here, and a slot comes back at once.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine.data_adapter import DataHandler, KerasSequenceAdapter

from ringfeed.errors import ClosedError, RingfeedError
from ringfeed.keras.choice import check_leaves, look_unseen, ring_of, say_fed, say_left
from ringfeed.keras.pydataset import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from typing_extensions import Self

    from ringfeed.keras.pydataset import DatasetLoader

OWN = KerasSequenceAdapter._handle_multiprocessing  # noqa: SLF001 - where Keras decides which process makes the batches


class FedSequence(tf_keras.utils.Sequence):  # type: ignore[misc]  # tf_keras has no types
    """A Sequence for ``fit``, ``evaluate`` and ``predict`` of a `tf_keras` model; made by `feed`.

    Each pass of Keras is an epoch of the loader. Keras walks it by a generator of its own that asks for each index
    once; whichever it asks for, it gets the next batch in the loader's order. Any other caller gets batch
    ``index`` from the dataset itself. Leave ``workers`` of `fit` at 1. Close it, or use ``with``: TensorFlow keeps one
    that is only dropped.
    """

    def __init__(self, loader: DatasetLoader) -> None:
        """Feed from ``loader``, whose batches are copies."""
        self._loader = loader
        self._lock = threading.Lock()  # TensorFlow asks from threads of its own
        self._pass: FrameType | None = None  # the frame that walks now
        self._batches: Iterator[Any] = iter(())

    @property
    def loader(self) -> DatasetLoader:
        """The loader that runs."""
        return self._loader

    def close(self) -> None:
        """End the workers and give the memory back."""
        self._pass = None
        self._loader.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close it."""
        self.close()

    def __len__(self) -> int:
        """The batches of an epoch."""
        return len(self._loader)

    def __getitem__(self, index: int) -> Any:
        """The next batch for Keras' generator, and batch ``index`` for any other caller."""
        asks = sys._getframe(1)  # noqa: SLF001 - see above
        if not asks.f_code.co_flags & inspect.CO_GENERATOR:
            return self._loader.dataset[index]
        with self._lock:
            if asks is not self._pass:
                self._pass, self._batches = asks, iter(self._loader)
            return next(self._batches)

    def on_epoch_end(self) -> None:
        """Run the dataset's hook in this process, and have the workers see what it changed."""
        run_hook(self._loader, "on_epoch_end")


def over_ring(
    adapter: Any,
    dataset: Any,
    workers: int,
    use_multiprocessing: bool,  # noqa: FBT001 - Keras calls it so
    max_queue_size: int,
) -> Callable[[], Iterator[Any]]:
    """What takes the place of Keras' own `_handle_multiprocessing`: a new generator for each pass."""
    own: Callable[[], Iterator[Any]] = OWN(adapter, dataset, workers, use_multiprocessing, max_queue_size)
    processes = workers > 0 and use_multiprocessing
    shuffle = adapter._shuffle_sequence  # noqa: SLF001
    try:
        seen = look_unseen(dataset)
        check_leaves(tf.nest.flatten(seen))
        loader = ring_of(dataset, seen, shuffle=shuffle, workers=max(workers, 1), processes=processes, copy=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, Keras may be able to do it
        say_left(dataset, error)
        return own
    say_fed(loader)
    weakref.finalize(_call_of(adapter), loader.close)
    return _Sequence(dataset, loader, own).walk


def _call_of(adapter: Any) -> Any:
    """What lives as long as the call of Keras that the adapter is made for; TensorFlow keeps the adapter for ever."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None and not isinstance(frame.f_locals.get("self"), DataHandler):
        frame = frame.f_back
    return adapter if frame is None else frame.f_locals["self"]


class _Sequence:
    """A Sequence over a ring, until the ring cannot serve it any more."""

    def __init__(self, dataset: Any, loader: DatasetLoader, own: Callable[[], Iterator[Any]]) -> None:
        self._dataset = dataset
        self._loader: DatasetLoader | None = loader
        self._own = own

    def walk(self) -> Iterator[Any]:
        """One pass: over the ring, and from the batch on that it cannot serve, as Keras would."""
        loader = self._loader
        if loader is None:
            yield from self._own()
            return
        try:
            yield from loader
        except ClosedError:  # the call of Keras is over, and TensorFlow still reads ahead
            return
        except RingfeedError as error:
            say_left(self._dataset, error)
            self._loader, rest = None, loader.rest()
        else:
            return
        loader.close()
        yield from (self._dataset[number] for number in rest)


def settle(*, wanted: bool) -> None:
    """Have Keras 2 ask `over_ring` for the batches of a Sequence, or itself again."""
    before, after = (OWN, over_ring) if wanted else (over_ring, OWN)
    if KerasSequenceAdapter._handle_multiprocessing is before:  # noqa: SLF001
        KerasSequenceAdapter._handle_multiprocessing = after  # noqa: SLF001
