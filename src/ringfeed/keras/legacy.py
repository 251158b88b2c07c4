"""Keras 2, by the package `tf_keras`: its Sequence over a ring.

Keras 2 reads a Sequence in a generator of its own, in a thread of TensorFlow's, and copies what it
gets. So batches are private copies here, and a slot comes back at once.
"""

from __future__ import annotations

import inspect
import random
import threading
from typing import TYPE_CHECKING, Any

import tf_keras
from tf_keras.src.engine.data_adapter import DataHandler, KerasSequenceAdapter

from ringfeed._callers import frame_above, frames_from
from ringfeed._process import Finalizer
from ringfeed.datasets.passes import PassOrder
from ringfeed.errors import ClosedError, RingfeedError
from ringfeed.frameworks.keras.call import Call, KerasEpoch
from ringfeed.keras.fallback import feed_as_keras, look_unseen, say_fed, say_left, with_fallback
from ringfeed.keras.pydataset import DatasetFeed, Fed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType


PLACE = KerasSequenceAdapter
NAME = "_handle_multiprocessing"
"""The method by which Keras decides which process makes the batches of a Sequence."""
OWN = getattr(PLACE, NAME)


class FedSequence(Fed, tf_keras.utils.Sequence):  # type: ignore[misc]  # tf_keras has no types
    """A Sequence for ``fit``, ``evaluate`` and ``predict`` of a `tf_keras` model; made by `feed`.

    Each pass of Keras is an epoch of the loader. Keras walks it by a generator of its own that asks
    for each index once; whichever it asks for, it gets the next batch in the loader's order. Any
    other caller gets batch ``index`` from the dataset itself. Leave ``workers`` of `fit` at 1.
    Close it, or use ``with``: TensorFlow keeps one that is only dropped.
    """

    def __init__(self, feed: DatasetFeed) -> None:
        """Feed batches that are copies."""
        self.dataset_feed = feed
        self._lock = threading.Lock()  # TensorFlow asks from threads of its own
        self._walking: FrameType | None = None  # Keras' generator
        self._batches: Iterator[Any] = iter(())

    def close(self) -> None:
        """End the workers and give the memory back."""
        self._walking = None
        super().close()

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return len(self.loader)

    def __getitem__(self, index: int) -> Any:
        """Return the next batch for Keras' generator, and batch ``index`` for any other caller."""
        asking = frame_above(1)
        if not asking.f_code.co_flags & inspect.CO_GENERATOR:
            return self.dataset_feed.dataset[index]
        with self._lock:
            if asking is not self._walking:
                self._walking, self._batches = asking, iter(self.loader)
            return next(self._batches)

    def on_epoch_end(self) -> None:
        """Run the dataset's hook in this process, and have the workers see what it changed."""
        self.dataset_feed.run_hook("on_epoch_end")


def over_ring(
    adapter: Any,
    dataset: Any,
    workers: int,
    use_multiprocessing: bool,  # noqa: FBT001 - Keras calls it so
    max_queue_size: int,
) -> Callable[[], Iterator[Any]]:
    """Return what gives the batches of each pass, over the ring as long as the ring can serve."""
    own: Callable[[], Iterator[Any]] = OWN(
        adapter, dataset, workers, use_multiprocessing, max_queue_size
    )
    shuffle = vars(adapter)["_shuffle_sequence"]
    try:
        feed = feed_as_keras(
            dataset,
            look_unseen(dataset),
            PassOrder(lambda: len(dataset), _shuffled) if shuffle else None,
            shuffle=shuffle,
            workers=max(workers, 1),
            processes=workers > 0 and use_multiprocessing,
            copy=True,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, Keras may be able to do it
        say_left(dataset, error)
        return own
    say_fed(feed)
    Finalizer(feed.close).watch(_call_of(adapter))
    call, has_failed = Call(feed.stream), False

    def walk() -> Iterator[Any]:
        if has_failed:
            return iter(own())

        def go_on(error: RingfeedError) -> Iterable[Any]:
            # The call of Keras is over, and TensorFlow still reads ahead.
            if isinstance(error, ClosedError):
                return ()
            nonlocal has_failed
            has_failed = True
            say_left(dataset, error)
            feed.close()
            rest = feed.rest(call.done)
            return own() if rest is None else map(dataset.__getitem__, rest)

        return with_fallback(KerasEpoch(call, None), go_on)

    return walk


def _shuffled(count: int | None, _epoch: int) -> list[int]:
    numbers = list(range(count or 0))  # a Sequence has a length
    random.shuffle(numbers)
    return numbers


def _call_of(adapter: Any) -> Any:
    """Return what lives as long as the call of Keras: TensorFlow keeps the adapter for ever."""
    callers = (frame.f_locals.get("self") for frame in frames_from(frame_above(2)))
    return next((caller for caller in callers if isinstance(caller, DataHandler)), adapter)
