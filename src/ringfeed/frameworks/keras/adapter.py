"""A loader behind the interface of Keras' data adapters, which Keras 3.7 and later take as they are.

LoaderAdapter    what Keras is given as ``x``
Feed             the loader's epochs in the structures that Keras unpacks, with the weights of classes
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed.errors import SpecError
from ringfeed.frameworks.base import BuildAhead, Reiterable
from ringfeed.frameworks.batch import NUMPY, Outstanding, TensorBuilder, without_lists
from ringfeed.frameworks.facts import LoaderFacts
from ringfeed.frameworks.forms import Joiner
from ringfeed.frameworks.keras.arguments import (
    check_call,
    check_targets,
    class_weight_of,
    iterator_in_the_making,
)
from ringfeed.frameworks.keras.backends import (
    PAIRS,
    KerasCasts,
    form_joiner,
    jax_memory,
    tensorflow_memory,
    torch_memory,
)
from ringfeed.frameworks.keras.caller import caller, owner
from ringfeed.frameworks.keras.fit_position import KerasEpoch, Place, begins_loader, done_batches, go_on
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from ringfeed.frameworks.base import BatchStream, Framework, LoaderInfo
    from ringfeed.frameworks.batch import Extra, Own
    from ringfeed.frameworks.cast import CastTree, Chosen
    from ringfeed.frameworks.epoch import Epoch
    from ringfeed.frameworks.keras.arguments import ClassWeight
    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.builder import BuildBatch


class LoaderAdapter(LoaderFacts, DataAdapter):  # type: ignore[misc]  # keras has no types
    """A loader as Keras' data; made by `to_keras`. One may serve several calls of Keras at a time."""

    def __init__(self, stream: BatchStream, class_weight: ClassWeight | None, cast: CastTree = None) -> None:
        """Refuse what cannot be fed, weighted or cast now, not in fit."""
        self._stream = stream
        self._info = stream.info  # asked once, but for the length: a dataset may have to be walked for it
        Feed(stream, self._info, class_weight)
        self._casts = KerasCasts(self._info.spec, cast)
        self._class_weight = class_weight
        self._outstanding = Outstanding(self._info.slots)
        # What each call of Keras asked for, and its newest feed.
        self._asked: weakref.WeakKeyDictionary[EpochIterator, ClassWeight] = weakref.WeakKeyDictionary()
        self._feeds: weakref.WeakKeyDictionary[EpochIterator, Feed] = weakref.WeakKeyDictionary()
        self._places: weakref.WeakKeyDictionary[EpochIterator, Place] = weakref.WeakKeyDictionary()
        self._own_place = Place(stream)

    # ---- what it is ----

    @property
    def copied(self) -> int:
        """Batches that were handed out as copies so far, because every other slot was held."""
        return self._outstanding.copied

    @property
    def num_batches(self) -> int | None:
        """The batches of one epoch, or None where the loader cannot know."""
        making = iterator_in_the_making(caller())
        if making is not None:
            self._listen(making)
        return self._stream.info.length

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where the loader does not know."""
        return len(self._stream)

    def __getitem__(self, index: object) -> Any:
        """Refuse a number: batches come in the loader's order."""
        raise TypeError(
            f"what feed() and to_keras() return has its batches in the order of an epoch, and none by number "
            f"([{index!r}]); ask the dataset for dataset[{index!r}], or take the next batch by next(iter(...))"
        )

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch, in NumPy arrays of their own, as Keras is given them."""
        return iter(self.get_numpy_iterator())

    @property
    def batch_size(self) -> int:
        """The rows of a full batch."""
        return self._info.max_rows

    @property
    def has_partial_batch(self) -> None:
        """None, as for a tf.data.Dataset: not known beforehand."""

    @property
    def partial_batch_size(self) -> None:
        """None, as for a tf.data.Dataset: not known beforehand."""

    def place(self, iterator: EpochIterator | None = None) -> Place:
        """Where a call of Keras is in the loader's epochs; without one, where all callers of this adapter are."""
        return self._own_place if iterator is None else self._places.setdefault(iterator, Place(self._stream))

    # ---- one epoch ----

    def get_tf_dataset(self) -> Any:
        """A dataset that Keras walks in Python, and a distribution strategy in TensorFlow's graph."""
        from ringfeed.frameworks.keras.tensorflow import WalkedDataset, packer_of  # noqa: PLC0415
        from ringfeed.frameworks.tensorflow import dataset as adapter  # noqa: PLC0415 - other backends run without it

        feed = self._feed(caller())
        specs = adapter.leaf_specs(self._info, feed.extra)
        cast = self._casts.in_tensorflow(specs)
        batches = adapter.Batches(feed.arrays, self._stream.info.exact_length, specs, feed.pack, cast)
        memory, packed = tensorflow_memory(), packer_of(batches)
        return WalkedDataset(adapter.dataset_of(batches), lambda: map(packed, feed.tensors(memory, self._outstanding)))

    def get_numpy_iterator(self) -> Iterator[Any]:
        """One epoch in NumPy arrays of their own."""
        feed = self._feed(caller())
        return map(feed.pack_numpy, feed.arrays(self._casts.in_numpy))

    def get_jax_iterator(self) -> Iterator[Any]:
        """One epoch in JAX's arrays, or in NumPy's where Keras puts them on devices."""
        return self._walk(self._feed(caller()), jax_memory(), *self._casts.in_jax())

    def get_torch_dataloader(self) -> Any:
        """A torch DataLoader in tensors on Keras' device."""
        feed = self._feed(caller())
        memory = torch_memory()
        return data_adapter_utils.get_torch_dataloader(
            Reiterable(lambda: self._walk(feed, memory, *self._casts.in_torch()))
        )

    def on_epoch_begin(self) -> None:
        """Run the dataset's hook, where the loader begins an epoch, and tell Keras how long the dataset is then."""
        if self._stream.source.hooks:
            frame = caller()
            iterator = owner(frame)
            if isinstance(iterator, EpochIterator) and begins_loader(iterator):
                self.place(iterator).prepare()
            self._tell_length(frame)

    def _tell_length(self, frame: FrameType) -> None:
        iterator = owner(frame)
        if isinstance(iterator, EpochIterator) and "_num_batches" in vars(iterator):
            iterator._num_batches = self._stream.info.length  # noqa: SLF001 - Keras asks once a call only

    def on_epoch_end(self) -> None:
        """Give back an epoch that was begun only to build the model.

        Keras takes one batch to see its shapes, and then resets. What comes next is the first epoch to train
        on, and must be the loader's first, or that of its ``set_epoch``.
        """
        self._leave(caller())

    def _leave(self, frame: FrameType) -> None:
        iterator = owner(frame)
        if isinstance(iterator, EpochIterator) and iterator in self._feeds:
            self._feeds[iterator].leave(trained=frame.f_code is not EpochIterator.reset.__code__)
        if isinstance(iterator, EpochIterator) and frame.f_code is EpochIterator.reset.__code__:
            done = done_batches(self._stream)
            if done:  # the user has loaded a state
                go_on(iterator, 0 if iterator.steps_per_epoch else done, done)

    # ---- the call of Keras ----

    def _walk(self, feed: Feed, memory: Framework, own: Own, cast: Chosen) -> Iterator[Any]:
        leaves = feed.tensors(memory, self._outstanding, own)
        return map(feed.pack, map(cast, leaves) if cast.numbers else leaves)

    def _feed(self, frame: FrameType) -> Feed:
        iterator = owner(frame)
        if not isinstance(iterator, EpochIterator):
            return Feed(self._stream, self._info, self._class_weight, self._own_place)
        asked = self._asked.get(iterator, self._class_weight)
        feed = self._feeds[iterator] = Feed(self._stream, self._info, asked, self.place(iterator))
        return feed

    def _listen(self, making: FrameType) -> None:
        """Read what the EpochIterator in the making was given, or refuse it."""
        check_targets(making)
        check_call(making, self._info, self)
        class_weight = class_weight_of(making, self._class_weight)
        if class_weight is not None:
            Feed(self._stream, self._info, class_weight)
            self._asked[making.f_locals["self"]] = class_weight


class Feed:
    """The loader's batches, with the weights of their classes where asked for; one epoch at a time."""

    def __init__(
        self, stream: BatchStream, info: LoaderInfo, class_weight: ClassWeight | None, place: Place | None = None
    ) -> None:
        """Refuse samples that Keras cannot unpack, and class weights that these cannot have."""
        _check_structure(info.spec.tree)
        self._stream = stream
        self._info = info
        self.extra: dict[str, np.dtype[Any]] = {}
        """Name and dtype of the leaf of weights, where there is one."""
        self._weights: Extra | None = None
        if class_weight is not None:
            self.extra["sample_weight"] = np.dtype(keras.config.floatx())
            self._weights = partial(_weights, _target_leaf(info.spec, class_weight), class_weight)
        tree, leaves = info.spec.tree, info.spec.leaves
        if isinstance(tree, Array) and stream.source.whole and not info.is_iterable:
            tree = (tree,)  # as Keras has the batches of a PyDataset
        pack = _packer(tree, list(self.extra.values()))
        self.pack = _joined(leaves, form_joiner(leaves), pack)
        """Makes the batch around its leaves, whatever they have become, and what is beside them."""
        self.pack_numpy = _joined(leaves, Joiner(leaves, PAIRS, strings=True), pack)
        """The same of private arrays."""
        self._epoch: Epoch | None = None
        self._place = place or Place(stream)

    def arrays(self, own: Own | None = None) -> Iterator[list[AnyArray]]:
        """One epoch: the leaves of each batch as private arrays, made their ``own`` way or copied; the weights last."""
        return self._begin(TensorBuilder(self._info, NUMPY, own=own, extra=self._weights).leaves)

    def tensors(self, memory: Framework, outstanding: Outstanding, own: Own | None = None) -> Iterator[list[Any]]:
        """One epoch: the same as tensors of a framework, over the slots where that can be."""
        builder = TensorBuilder(self._info, memory, own=own, extra=self._weights)
        return self._begin(BuildAhead(partial(outstanding.build, builder), memory.is_computing))

    def leave(self, *, trained: bool) -> None:
        """Forget the epoch; the loader has it again where nothing was trained on it."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None and not trained:
            epoch.give_back()

    def _begin(self, build: BuildBatch) -> Epoch:
        self._epoch = KerasEpoch(self._stream, build, self._place)
        return self._epoch


def _weights(target: int, class_weight: ClassWeight, leaves: list[AnyArray]) -> list[AnyArray]:
    return [data_adapter_utils.class_weight_to_sample_weights(leaves[target], class_weight)]


def _joined(leaves: Sequence[Leaf], join: Joiner, pack: Callable[[Sequence[Any]], Any]) -> Callable[[Any], Any]:
    if not any(leaf.form for leaf in leaves):
        return pack
    return lambda flat: pack(join(flat))


def _packer(tree: Any, extra: list[np.dtype[Any]]) -> Callable[[Sequence[Any]], Any]:
    """What makes the structure of a batch of its leaves; with extra ones, of a batch of two parts."""
    tree = without_lists(tree)
    if isinstance(tree, Array) and tree.form is not None and tree.form.is_padded and tree.form.beside is not None:
        tree = (tree,)  # or Keras would take the lengths for targets
    tree = (*tree, *(Array((), dtype) for dtype in extra)) if extra else tree
    if type(tree) is tuple and all(isinstance(part, Array) for part in tree):
        return tuple
    return Spec(tree).unflatten


def _check_structure(tree: Any) -> None:
    if isinstance(tree, (tuple, list)) and len(tree) not in (1, 2, 3):
        raise SpecError(
            f"sample is a {type(tree).__name__} of {len(tree)}, expected x, (x, y) or (x, y, sample_weight), "
            "which is what Keras takes; group the inputs in __getitem__, as in ((a, b, c), y)"
        )


def _target_leaf(spec: Spec, class_weight: ClassWeight) -> int:
    """The number of the leaf with the targets, or an error where no weights can be made from them."""
    _check_class_weight(class_weight)
    match spec.tree:
        case (x, Array() as y):
            if y.form is not None:
                raise ValueError(
                    f"class_weight needs one target a row, and sample[1] is {y.form.name}; return weights from "
                    "__getitem__ instead, as in (x, y, sample_weight)"
                )
            return len(Spec(x).leaves)
        case (_, _):
            raise ValueError(
                "class_weight is for one array of targets, and this loader has several; return weights from "
                "__getitem__ instead, as in (x, y, sample_weight)"
            )
        case (_, _, _):
            raise ValueError(
                "class_weight does not go with sample weights, in Keras either; multiply both in __getitem__"
            )
        case _:
            raise ValueError(
                "class_weight needs targets, and this loader's batches are inputs alone; return (x, y) from __getitem__"
            )


def _check_class_weight(class_weight: object) -> None:
    if not isinstance(class_weight, Mapping):
        raise TypeError(
            f"class_weight is a {type(class_weight).__name__}, expected a mapping from class to weight; "
            "write it as in {0: 1.0, 1: 2.5}"
        )
    for key in class_weight:
        if not hasattr(key, "__index__"):
            raise TypeError(f"class_weight has the key {key!r}, expected the number of a class, as an int")
