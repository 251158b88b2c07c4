"""A Keras dataset over a ring: `feed` gives one, and `install` has Keras take every PyDataset so.

`install` puts `RingAdapter` in the place of Keras' adapter.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import keras
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import py_dataset_adapter

from ringfeed._callers import frame_above
from ringfeed._checks import check_count
from ringfeed._classes import root_of
from ringfeed._units import parse_memory
from ringfeed.frameworks.keras import check_takes_adapters
from ringfeed.frameworks.keras.adapter import LoaderAdapter
from ringfeed.keras.pydataset import DatasetFeed, Fed, check_dataset

if TYPE_CHECKING:
    from ringfeed.frameworks.keras.call import ClassWeight

NAME = "PyDatasetAdapter"
PLACES = (data_adapters, py_dataset_adapter)
"""The modules in which Keras has its adapter by name."""

_lock = threading.Lock()
_wanted: dict[ExitStack, dict[str, Any]] = {}
"""What `install` has returned, and nothing has taken back, with the memory that each asked for."""


class DatasetAdapter(Fed, LoaderAdapter):
    """A Keras dataset as data of Keras, filled by workers into slots; made by `feed`.

    It may serve any number of calls, one after another; its workers stay until `close`, or until it
    is dropped.
    """

    def __init__(self, dataset_feed: DatasetFeed, class_weight: ClassWeight | None) -> None:
        """Refuse what cannot be fed or weighted."""
        super().__init__(dataset_feed.stream, class_weight)
        self.dataset_feed = dataset_feed

    # ---- the hooks, where Keras calls them ----

    def on_epoch_begin(self) -> None:
        """Run the dataset's hook in this process, and tell Keras how long the dataset is now."""
        self.dataset_feed.run_hook("on_epoch_begin")
        self.call.tell_length()

    def on_epoch_end(self) -> None:
        """Run the dataset's hook in this process.

        An epoch that was begun only to build the model is given back first.
        """
        self._leave(frame_above(1))
        self.dataset_feed.run_hook("on_epoch_end")


def feed(  # noqa: PLR0913 - the public parameters
    dataset: Any,
    *,
    workers: int | None = None,
    shuffle: bool | int = False,
    seed: int | None = 0,
    spec: object = None,
    max_batch_size: int | None = None,
    class_weight: ClassWeight | None = None,
    **settings: Any,
) -> Any:
    """Return a Keras dataset, filled by workers, for ``x`` of ``fit``, ``evaluate``, ``predict``.

    ``dataset[i]`` is a whole batch: ``x``, ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, each
    an array or a structure of arrays. It is a `keras.utils.PyDataset`, or any object with
    ``__getitem__`` and ``num_batches`` (None: without end) or ``__len__``. ``on_epoch_begin`` and
    ``on_epoch_end`` run in this process, when Keras calls them; their changes, also of the length,
    reach all workers. Batches that are None are left out; Keras then says that its data ran out.

    workers: None for the dataset's own ``workers`` if that is above 1, else for as many as the CPUs
        that this process may use.
    shuffle, seed: as of `ringfeed.Loader`: a new order of batches each epoch, a pure function of
        (seed, epoch). ``shuffle`` of ``fit`` has no effect, and a warning says so.
    max_batch_size: the most rows of a batch; by default those of batch 0, or the dataset's
        attribute ``batch_size``.
    class_weight: the weight of each class, as in ``fit``.

    A ``Sequence`` of `tf_keras` (Keras 2) becomes a Sequence of private copies for its models: see
    `FedSequence`.

    All other parameters are those of `ringfeed.Loader`, with worker processes and workers + 2 slots
    by default. ``use_multiprocessing`` and ``max_queue_size`` of the dataset are not used.
    """
    given: dict[str, Any] = {
        "shuffle": shuffle,
        "seed": seed,
        "spec": spec,
        "max_batch_size": max_batch_size,
    } | settings
    is_keras_2 = "tf_keras" in map(root_of, type(dataset).__mro__)
    if not is_keras_2:
        check_takes_adapters("feed()")
    elif class_weight is not None:
        raise TypeError("class_weight= is for Keras 3; give it to fit() of the tf_keras model")
    else:
        given["copy"] = True
    for name in ("batch_size", "sampler"):
        if name in settings:
            raise TypeError(
                f"{name}= is not for feed(): the dataset says what a batch is and how many there "
                "are; leave it out"
            )
    check_dataset(dataset)
    if workers is None and getattr(dataset, "_workers", 1) > 1:
        workers = dataset.workers
    dataset_feed = DatasetFeed(dataset, workers=workers, **given)
    if is_keras_2:
        from ringfeed.keras.legacy import FedSequence  # noqa: PLC0415 - imports tf_keras

        return FedSequence(dataset_feed)
    return DatasetAdapter(dataset_feed, class_weight)


def install(*, slots: int | None = None, memory: int | str | None = None) -> ExitStack:
    """Run every ``PyDataset`` in ``fit``, ``evaluate`` and ``predict`` over ringfeed.

    It applies at once, until `uninstall`, or to the end of a ``with`` statement: ``with install():
    ...``. These may be nested; the last one to end ends it. Running calls of Keras are not changed.

    slots, memory: for each dataset, the number of batches that exist at once; or the bytes that its
        shared memory may take ("512MB"), from which the number of slots follows. Two slots are the
        least. None: workers + 2 slots. Of nested statements the innermost decides.

    A dataset gets the workers that it requests: threads, or processes with
    ``use_multiprocessing=True``, each of which gets its own copy. Batches come in Keras' order,
    with the same seed of ``random``; the hooks run when Keras runs them. For each dataset one line
    of the logger ``ringfeed.keras`` says how it runs, or why Keras reads it: batches that are no
    plain arrays, or that differ in shape, a dataset that cannot be sent to processes, or two slots
    that exceed ``memory``. During an epoch, Keras continues from the batch that does not fit or
    whose workers fail.

    Sequences of `tf_keras` (Keras 2) as well, if it has been imported before this call.

    ImportError if this version of Keras does not fit; ValueError or TypeError for an invalid number
    of slots, an invalid amount of memory, or both.
    """
    check_count("slots", slots, 2)
    if memory is not None:
        parse_memory(memory)
    if slots is not None and memory is not None:
        raise ValueError("give slots= or memory=, not both: each decides the other")
    check_takes_adapters("install()")
    from ringfeed.keras.fallback import OWN, RingAdapter  # noqa: PLC0415 - older ones cannot

    with _lock:
        for place in PLACES:
            if getattr(place, NAME, None) not in (OWN, RingAdapter):
                raise ImportError(
                    f"install() finds no {NAME} of Keras' own in {place.__name__} of Keras "
                    f"{keras.__version__}; give each dataset to ringfeed.keras.feed() instead"
                )
        installed = ExitStack()
        installed.callback(_take_back, installed)
        _wanted[installed] = {"slots": slots, "memory": memory}
        _settle()
        return installed


def _take_back(installed: ExitStack) -> None:
    """Take one installation back; others stay in force."""
    with _lock:
        _wanted.pop(installed, None)
        _settle()


def uninstall() -> None:
    """Undo every `install`, also those of ``with`` statements that have not ended."""
    with _lock:
        _wanted.clear()
        _settle()


def _settle() -> None:
    """Have Keras' names for its own ways of reading mean what is wanted."""
    from ringfeed.keras import fallback  # noqa: PLC0415 - see install

    fallback.installed_memory = next(reversed(_wanted.values()), {})
    swaps: list[tuple[Any, str, object, object]] = [
        (place, NAME, fallback.OWN, fallback.RingAdapter) for place in PLACES
    ]
    if "tf_keras" in sys.modules:
        from ringfeed.keras import legacy  # noqa: PLC0415 - imports tf_keras

        swaps.append((legacy.PLACE, legacy.NAME, legacy.OWN, legacy.over_ring))
    for place, name, own, ours in swaps:
        before, after = (own, ours) if _wanted else (ours, own)
        if getattr(place, name, None) is before:
            setattr(place, name, after)
