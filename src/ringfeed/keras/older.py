"""A loader as a `keras.utils.PyDataset`, for a Keras that takes no data adapters.

Keras walks a PyDataset by a generator of its own for each pass, which asks for each index once. One generator is told
from another by its frame, since what it asks for does not tell: the first time a frame asks, an epoch of the loader
begins. Indices make no difference; Keras may shuffle them, the loader has an order already.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from ringfeed.errors import RingfeedError, SupersededError
from ringfeed.frameworks.cast import casts_of, in_numpy
from ringfeed.frameworks.copies import sure_count
from ringfeed.frameworks.keras.arguments import check_call, class_weight_of, iterator_in_the_making
from ringfeed.frameworks.keras.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.keras.feed import ClassWeight
    from ringfeed.loader import Loader

BROKEN_OFF = 64  # passes that are remembered, since TensorFlow may go on with them for a moment


class LoaderDataset(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """A loader's batches as private arrays, made by `to_keras` and cast by NumPy. Each pass of Keras is an epoch of it.

    What Keras 3.7 is told of an adapter holds here too, except that Keras 3.4 on TensorFlow shuffles the batches once
    more unless `fit` is told ``shuffle=False``, and that a loader of unknown length is refused.
    """

    def __init__(self, loader: Loader, class_weight: ClassWeight | None, cast: CastTree = None) -> None:
        """Refuse what cannot be fed, weighted or counted."""
        super().__init__(workers=0)
        self._feed = Feed(loader, class_weight)
        self._own = in_numpy(casts_of(loader.spec, cast, "to_keras"))
        if sure_count(loader) is None:
            raise ValueError(
                f"Keras {keras.__version__} takes only datasets whose length is known, and this loader's is not; "
                "update Keras to 3.7 or later, give the sampler a __len__, or leave on_error at 'raise'"
            )
        self._loader = loader
        self._class_weight = class_weight
        self._lock = threading.Lock()  # TensorFlow asks from threads of its own
        self._pass: FrameType | None = None  # the frame that walks now
        self._past: deque[FrameType] = deque(maxlen=BROKEN_OFF)
        self._leaves: Iterator[Any] = iter(())
        self._trained = True

    def __len__(self) -> int:
        """The batches of one epoch."""
        making = iterator_in_the_making(sys._getframe(1))  # noqa: SLF001 - see keras_call
        if making is not None:
            check_call(making, self._loader, self)
            if class_weight_of(making, self._loader, self._class_weight) is not None and not _keras_weighs():
                raise ValueError(
                    f"Keras {keras.__version__} ignores class_weight= of fit for such a dataset; give it to to_keras()"
                )
        return len(self._loader)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """The next batch of whoever asks, in the order of the loader."""
        del index
        asks = sys._getframe(1)  # noqa: SLF001
        with self._lock:
            if asks is not self._pass:
                self._begin(asks)
            self._trained = self._trained or not _only_looks(asks)
            leaves = next(self._leaves, None)
            if leaves is None:
                raise RingfeedError(
                    f"the epoch ended before its {len(self._loader)} batches, which Keras {keras.__version__} does not "
                    "take: the dataset has None in the place of some, or has become shorter; update Keras to 3.7 or "
                    "later, or leave them out of its length"
                )
            batch = self._feed.pack(leaves)
        return tuple(batch) if isinstance(batch, tuple) else (batch,)

    def _begin(self, asks: FrameType) -> None:
        if any(asks is frame for frame in self._past):
            raise SupersededError(
                "a newer pass over this dataset has taken over the loader, which serves one at a time; give each call "
                "of Keras a loader of its own"
            )
        if self._pass is not None:
            self._past.append(self._pass)
        self._feed.leave(trained=self._trained)
        self._pass = asks
        self._trained = False
        self._leaves = self._feed.arrays(self._own)


def _only_looks(asks: FrameType) -> bool:
    """Whether Keras wants shapes and no training: outside a generator, or to build the model."""
    if not asks.f_code.co_flags & inspect.CO_GENERATOR:
        return True
    frame: FrameType | None = asks
    while frame is not None and not frame.f_code.co_name.endswith("_symbolic_build"):
        frame = frame.f_back
    return frame is not None


def _keras_weighs() -> bool:
    """Whether Keras applies class weights to what a PyDataset gives; 3.6 does so where it looks for shapes alone."""
    walks = [getattr(PyDatasetAdapter, name, None) for name in ("_get_iterator", "_finite_generator")]
    return any("_standardize_batch" in walk.__code__.co_names for walk in walks if walk is not None)
