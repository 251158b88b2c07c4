"""Keras' adapter for a PyDataset, over a ring; what takes the place of `PyDatasetAdapter` while `install` is in force.

    a PyDataset ──> RingAdapter ── as long as the ring can serve ──> the loader's batches
                         │
                         └── else, from the batch on that it cannot ──> Keras' own way, by the class it derives from

Nothing may fail here that does not fail in Keras. So whatever the ring refuses or raises, at the start or amid a
pass, is put down in one line, and Keras makes that batch and all that follow. A dataset that raises does so again.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import keras
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed.errors import RingfeedError
from ringfeed.frameworks.base import Reiterable
from ringfeed.keras.choice import check_leaves, look_unseen, ring_of, say_fed, say_left
from ringfeed.keras.pydataset import check_dataset, run_hook
from ringfeed.transport.opened import as_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ringfeed.frameworks.keras.adapter import LoaderAdapter
    from ringfeed.keras.pydataset import DatasetLoader

OWN = PyDatasetAdapter


class RingAdapter(PyDatasetAdapter):  # type: ignore[misc]  # keras has no types
    """A PyDataset filled by the workers that it asks for: threads, or processes where it says so.

    With the same seeds of ``random`` and ``numpy.random`` the batches come in the order that Keras shuffles them to,
    and the dataset draws the numbers that it draws in Keras.
    """

    def __init__(self, x: Any, class_weight: Any = None, shuffle: bool = False) -> None:  # noqa: FBT001, FBT002 - Keras'
        """Look at the dataset as Keras does, and plan its ring; nothing runs yet."""
        self.py_dataset = x
        self.class_weight = class_weight
        self.shuffle = shuffle
        self._rest: Iterable[int] | None = None
        self._seen: list[Any] = []
        self._loader: DatasetLoader | None = None
        self._ring: LoaderAdapter | None = None
        try:
            self._seen = _look(x)
            self._loader = _loader_of(x, self._seen, shuffle=shuffle)
            self._ring = self._loader.to_keras(class_weight=class_weight)
        except Exception as error:  # noqa: BLE001 - whatever it is, Keras may be able to do it
            self._fall_back(error)
        else:
            say_fed(self._loader)
            # TensorFlow keeps what it has made a graph of, the loader with it.
            weakref.finalize(self, self._loader.close)

    def _fall_back(self, why: Exception) -> None:
        """Go on as Keras' own adapter."""
        say_left(self.py_dataset, why)
        loader, self._loader, self._ring = self._loader, None, None
        super().__init__(self.py_dataset, self.class_weight, self.shuffle)
        seen, self._seen = self._seen, []
        if keras.backend.backend() == "tensorflow" and seen:
            with suppress(Exception):  # Keras says so itself, if it is asked for such a dataset
                self._output_signature = data_adapter_utils.get_tensor_spec([*map(self._standardize_batch, seen)])
        if loader is not None:
            loader.close()

    # ---- one pass, in the forms of each backend ----

    def get_tf_dataset(self) -> Any:
        """A dataset that Keras walks in Python."""
        if self._ring is None:
            return super().get_tf_dataset()
        import tensorflow as tf  # noqa: PLC0415 - other backends run without it

        from ringfeed.frameworks.keras.tensorflow import WalkedDataset  # noqa: PLC0415

        inner = self._ring.get_tf_dataset()
        end = tf.errors.OutOfRangeError(None, None, "the dataset's pass has ended")
        return WalkedDataset(inner, lambda: self._walk(lambda: inner, super(RingAdapter, self).get_tf_dataset, end))

    def get_numpy_iterator(self) -> Iterator[Any]:
        """One pass in NumPy arrays of their own."""
        return self._walk(lambda: self._need_ring().get_numpy_iterator(), super().get_numpy_iterator)

    def get_jax_iterator(self) -> Iterator[Any]:
        """One pass in JAX's arrays over the slots for Keras, and in private NumPy arrays for any other caller."""
        if not isinstance(sys._getframe(1).f_locals.get("self"), EpochIterator):  # noqa: SLF001 - see frameworks.keras.arguments
            return self._walk(lambda: self._need_ring().get_numpy_iterator(), super().get_jax_iterator)
        return self._walk(lambda: self._need_ring().get_jax_iterator(), super().get_jax_iterator)

    def get_torch_dataloader(self) -> Any:
        """Passes in tensors on Keras' device."""
        own = super().get_torch_dataloader
        return Reiterable(lambda: self._walk(lambda: self._need_ring().get_torch_dataloader(), own))

    def _need_ring(self) -> LoaderAdapter:
        assert self._ring is not None
        return self._ring

    def _walk(
        self, over_ring: Callable[[], Any], own: Callable[[], Any], end: Exception | None = None
    ) -> Iterator[Any]:
        """One pass, over the ring as long as it goes, and then as Keras' ``own``."""

        def go_on(error: RingfeedError) -> Iterator[Any]:
            if self._loader is None:  # another pass has found it out before
                raise error
            self._rest = self._loader.rest()
            self._fall_back(error)
            return iter(own())

        if self._ring is None:
            return _Watched(iter(own()), go_on, end)
        return _Watched(iter(over_ring()), go_on, end)

    def _get_iterator(self) -> Iterator[Any]:
        """What Keras' own way reads: where the ring gave up amid a pass, first the rest of that."""
        rest, self._rest = self._rest, None
        if rest is None:
            found: Iterator[Any] = super()._get_iterator()
            return found
        batches = (self.py_dataset[number] for number in rest)
        wanted = batches if self.enqueuer is None else (batch for batch in batches if batch is not None)
        return map(self._standardize_batch, wanted)

    # ---- the hooks, where Keras calls them ----

    def on_epoch_begin(self) -> None:
        """Run the dataset's hook."""
        if self._loader is None:
            super().on_epoch_begin()
        else:
            run_hook(self._loader, "on_epoch_begin")

    def on_epoch_end(self) -> None:
        """Run the dataset's hook."""
        if self._loader is None:
            super().on_epoch_end()
        else:
            run_hook(self._loader, "on_epoch_end")


class _Watched:
    """The batches of one pass; at an error of the ring they are taken from what ``go_on`` finds.

    ``end`` is raised where an execution of several steps finds no batch: see `EagerBatches`.
    """

    def __init__(
        self, batches: Iterator[Any], go_on: Callable[[RingfeedError], Iterator[Any]], end: Exception | None
    ) -> None:
        self._batches = batches
        self._go_on = go_on
        self._end = end
        self._found_some = False

    def __iter__(self) -> _Watched:
        self._batches = iter(self._batches)
        self._found_some = False
        return self

    def __next__(self) -> Any:
        try:
            batch = self._next()
        except StopIteration:
            if self._end is not None and not self._found_some:
                raise self._end from None
            raise
        self._found_some = True
        return batch if isinstance(batch, (tuple, list, dict)) else (batch,)  # Keras makes a tuple of a bare array

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except RingfeedError as error:
            self._batches = self._go_on(error)
        return next(self._batches)


# ---- a dataset, looked at ----


def _look(dataset: Any) -> list[Any]:
    """The batches that Keras looks at itself before it trains, or one where it looks at none."""
    with as_before(dataset):
        check_dataset(dataset)
        if keras.backend.backend() != "tensorflow":
            return look_unseen(dataset)
        count = dataset.num_batches
        most = data_adapter_utils.NUM_BATCHES_FOR_TENSOR_SPEC
        return [dataset[number] for number in range(most if count is None else min(most, count))]


def _loader_of(dataset: Any, seen: list[Any], *, shuffle: bool) -> DatasetLoader:
    """A loader with the workers that Keras would have."""
    workers = dataset.workers
    processes = workers > 0 and dataset.use_multiprocessing
    if keras.backend.backend() == "tensorflow":
        workers = max(workers, 1)  # Keras reads in a thread of TensorFlow's, in any case
    elif not processes and workers == 1:
        workers = 0  # Keras makes such batches itself, between two steps: what else draws or changes then has its order
    check_leaves(keras.tree.flatten(seen))
    return ring_of(dataset, seen, shuffle=shuffle, workers=workers, processes=processes)
