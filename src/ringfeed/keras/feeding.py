"""A Keras dataset over a ring, for `fit`, `evaluate` and `predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._callers import frame_above
from ringfeed._classes import root_of
from ringfeed.frameworks.keras import check_takes_adapters
from ringfeed.frameworks.keras.adapter import LoaderAdapter
from ringfeed.keras.pydataset import DatasetFeed, Fed, check_dataset

if TYPE_CHECKING:
    from ringfeed.frameworks.keras.call import ClassWeight


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
