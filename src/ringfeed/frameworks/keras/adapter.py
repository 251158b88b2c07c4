"""A loader behind the interface of Keras' data adapters, as Keras 3.7 and later take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed._callers import frame_above
from ringfeed.errors import SpecError
from ringfeed.frameworks.base import BatchStream, LoaderFacts
from ringfeed.frameworks.batch import (
    Extra,
    Framework,
    Outstanding,
    Own,
    TensorBuilder,
    without_lists,
)
from ringfeed.frameworks.cast import NOTHING, CastTree, Chosen
from ringfeed.frameworks.keras.backends import (
    check_forms,
    jax_way,
    keras_casts,
    numpy_way,
    tensorflow_memory,
    torch_way,
)
from ringfeed.frameworks.keras.call import (
    Call,
    ClassWeight,
    KerasEpoch,
    begins_epoch,
    check_call,
    done_batches,
    go_on,
)
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from types import FrameType

    from ringfeed.spec.array import AnyArray


class LoaderAdapter(LoaderFacts, DataAdapter):  # type: ignore[misc]  # keras has no types
    """A loader as Keras' data, made by `to_keras`; each call of Keras gets a copy of its own."""

    def __init__(
        self, stream: BatchStream, class_weight: ClassWeight | None, cast: CastTree = None
    ) -> None:
        """Refuse what cannot be fed, weighted or cast now, not in fit."""
        self._stream = stream
        self._info = info = stream.info
        _check_structure(info.spec.tree)
        check_forms(info.spec.leaves)
        self._casts = keras_casts(info.spec, cast)
        self._outstanding = Outstanding()
        self.call = Call(stream, _weigher(info.spec, class_weight))
        """Where the call of Keras is, or all callers that are none."""

    # ---- what it is ----

    @property
    def copied(self) -> int:
        """Batches that were handed out as copies so far, because every other slot was held."""
        return self._outstanding.copied

    @property
    def num_batches(self) -> int | None:
        """The batches of one epoch, or None where the loader cannot know."""
        asking = frame_above(1)
        if asking.f_code is EpochIterator.__init__.__code__:
            self._serve(asking)
        return self._stream.length

    def _serve(self, making: FrameType) -> None:
        """Give the call of Keras that begins a copy, or refuse what else it was given."""
        check_call(making, self._stream, self)
        iterator, class_weight = making.f_locals["self"], making.f_locals.get("class_weight")
        weights = self.call.weights
        if class_weight is not None:
            if weights is not None:
                raise ValueError(
                    "class_weight was given to to_keras() and to fit(); give it to one of them"
                )
            weights = _weigher(self._info.spec, class_weight)
        iterator.data_adapter = served = copy(self)
        served.call = Call(self._stream, weights, iterator)

    def __getitem__(self, index: object) -> Any:
        """Refuse a number: batches come in the loader's order."""
        raise TypeError(
            "what feed() and to_keras() return has its batches in the order of an epoch, and none "
            f"by number ([{index!r}]); ask the dataset for dataset[{index!r}], or take the next "
            "batch by next(iter(...))"
        )

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch, in NumPy arrays of their own, as Keras is given them."""
        return self.get_numpy_iterator()

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

    # ---- one epoch ----

    def get_tf_dataset(self) -> Any:
        """A dataset that Keras walks in Python, and a distribution strategy in its graph."""
        # Other backends run without TensorFlow.
        from ringfeed.frameworks.keras.tensorflow import WalkedDataset, packer_of  # noqa: PLC0415
        from ringfeed.frameworks.tensorflow import dataset as adapter  # noqa: PLC0415
        from ringfeed.frameworks.tensorflow.forms import TensorFlowCasts  # noqa: PLC0415 - as above

        call, builder = self.call, self._builder(tensorflow_memory())
        specs = adapter.leaf_specs(self._info, _extra(call))
        cast = TensorFlowCasts(self._casts, specs) if self._casts else None
        in_graph = partial(KerasEpoch, call, self._builder(*numpy_way({})).leaves)
        batches = adapter.Batches(in_graph, self._stream.exact_length, specs, builder.pack, cast)
        packed = packer_of(batches)
        return WalkedDataset(
            adapter.dataset_of(batches), lambda: map(packed, KerasEpoch(call, builder))
        )

    def get_numpy_iterator(self) -> Iterator[Any]:
        """One epoch in NumPy arrays of their own."""
        return self._walk(*numpy_way(self._casts))

    def get_jax_iterator(self) -> Iterator[Any]:
        """One epoch in JAX's arrays, or in NumPy's where Keras puts them on devices."""
        return self._walk(*jax_way(self._info.spec.leaves, self._casts))

    def get_torch_dataloader(self) -> Any:
        """A torch DataLoader in tensors on Keras' device."""
        way = torch_way(self._info.spec.leaves, self._casts)
        return data_adapter_utils.get_torch_dataloader(Reiterable(lambda: self._walk(*way)))

    def _walk(self, memory: Framework, own: Own, cast: Chosen) -> Iterator[Any]:
        builder = self._builder(memory, own, cast)
        return map(builder.finish, KerasEpoch(self.call, builder))

    def _builder(
        self, memory: Framework, own: Own | None = None, cast: Chosen = NOTHING
    ) -> TensorBuilder:
        """What makes batches as Keras takes them, with weights of classes where asked for."""
        source, tree = self._stream.runner.source, self._info.spec.tree
        if isinstance(tree, Array) and source.whole and not source.streams:
            tree = (tree,)  # as Keras has the batches of a PyDataset
        return TensorBuilder(
            self._info,
            memory,
            cast=cast,
            own=own,
            extra=self.call.weights,
            pack=_packer(tree, list(_extra(self.call).values())),
            outstanding=self._outstanding,
        )

    # ---- the hooks, where Keras calls them ----

    def on_epoch_begin(self) -> None:
        """Run the dataset's hook where the loader begins an epoch, and tell Keras its length."""
        if self._stream.runner.source.hooks:
            iterator = self.call.iterator
            if iterator is not None and begins_epoch(iterator):
                self.call.prepare()
            self.call.tell_length()

    def on_epoch_end(self) -> None:
        """Give back an epoch that was begun only to build the model.

        Keras takes one batch to see its shapes, and then resets. What comes next is the first epoch
        to train on, and must be the loader's first, or that of its ``set_epoch``.
        """
        self._leave(frame_above(1))

    def _leave(self, asking: FrameType) -> None:
        call, iterator = self.call, self.call.iterator
        if iterator is None:
            return
        resets = asking.f_code is EpochIterator.reset.__code__
        call.leave(trained=not resets)
        done = done_batches(self._stream) if resets else 0
        if done:  # the user has loaded a state
            go_on(iterator, 0 if iterator.steps_per_epoch else done, done)


class Reiterable:
    """Begins anew at each `iter`."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """Begin; an older iterator of the loader raises SupersededError at its next ``next()``."""
        return self._begin()


def _weigher(spec: Spec, class_weight: ClassWeight | None) -> Extra | None:
    """What makes the weights of a batch; an error for class weights that it cannot have."""
    if class_weight is None:
        return None
    target = _target_leaf(spec, class_weight)

    def weights(leaves: list[AnyArray]) -> list[AnyArray]:
        return [data_adapter_utils.class_weight_to_sample_weights(leaves[target], class_weight)]

    return weights


def _extra(call: Call) -> dict[str, np.dtype[Any]]:
    """Name and dtype of the leaf of weights, where there is one."""
    return {} if call.weights is None else {"sample_weight": np.dtype(keras.config.floatx())}


def _packer(tree: Any, extra: list[np.dtype[Any]]) -> Callable[[Sequence[Any]], Any]:
    """What makes a batch of its leaves; with extra leaves, of a batch of two parts."""
    tree = without_lists(tree)
    if (
        isinstance(tree, Array)
        and tree.form is not None
        and tree.form.is_padded
        and tree.form.beside is not None
    ):
        tree = (tree,)  # or Keras would take the lengths for targets
    tree = (*tree, *(Array((), dtype) for dtype in extra)) if extra else tree
    if type(tree) is tuple and all(isinstance(part, Array) for part in tree):
        return tuple
    return Spec(tree).unflatten


def _check_structure(tree: Any) -> None:
    if isinstance(tree, (tuple, list)) and len(tree) not in (1, 2, 3):
        raise SpecError(
            f"sample is a {type(tree).__name__} of {len(tree)}, expected x, (x, y) or (x, y, "
            "sample_weight), which is what Keras takes; group the inputs in __getitem__, as in "
            "((a, b, c), y)"
        )


def _target_leaf(spec: Spec, class_weight: ClassWeight) -> int:
    """The number of the leaf with the targets; an error where they give no weights."""
    _check_class_weight(class_weight)
    match spec.tree:
        case (x, Array() as y):
            if y.form is not None:
                raise ValueError(
                    f"class_weight needs one target a row, and sample[1] is {y.form.name}; return "
                    "weights from __getitem__ instead, as in (x, y, sample_weight)"
                )
            return len(Spec(x).leaves)
        case (_, _):
            raise ValueError(
                "class_weight is for one array of targets, and this loader has several; return "
                "weights from __getitem__ instead, as in (x, y, sample_weight)"
            )
        case (_, _, _):
            raise ValueError(
                "class_weight does not go with sample weights, in Keras either; multiply both in "
                "__getitem__"
            )
        case _:
            raise ValueError(
                "class_weight needs targets, and this loader's batches are inputs alone; return "
                "(x, y) from __getitem__"
            )


def _check_class_weight(class_weight: object) -> None:
    if not isinstance(class_weight, Mapping):
        raise TypeError(
            f"class_weight is a {type(class_weight).__name__}, expected a mapping from class to "
            "weight; write it as in {0: 1.0, 1: 2.5}"
        )
    for key in class_weight:
        if not hasattr(key, "__index__"):
            raise TypeError(
                f"class_weight has the key {key!r}, expected the number of a class, as an int"
            )
