"""A loader as what Keras' `fit`, `evaluate` and `predict` take, on any backend.

Keras wraps what it is given in a `DataAdapter`, and takes an instance of that class as it is. Such an adapter
is not told what else `fit` was given: class weights, targets, a batch size. All this stands in the
`EpochIterator` that Keras makes for each call. It is read there, in the frame of the caller, so that what
cannot be honoured is refused and not ignored.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np

from ringfeed.adapters.copies import PrivateEpoch, batch_count, sure_count, without_lists
from ringfeed.errors import RingfeedError, SpecError
from ringfeed.spec import Array, Spec

if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 7):
    raise ImportError(
        f"to_keras() needs Keras 3.7 or later, got {keras.__version__}; update it, or give fit() the dataset "
        "that loader.to_tf_dataset() makes"
    )

from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ringfeed.adapters.copies import AnyArray
    from ringfeed.loader import Loader

ClassWeight: TypeAlias = "Mapping[int, float]"

IN_THE_BATCH = {
    "y": "the loader's batches carry the targets: return (x, y) from __getitem__",
    "sample_weight": "the loader's batches carry the weights: return (x, y, sample_weight) from __getitem__",
}
"""What Keras would ignore beside an adapter, and where it belongs."""


def to_keras(loader: Loader, *, class_weight: ClassWeight | None = None) -> LoaderAdapter:
    """What ``model.fit``, ``evaluate`` and ``predict`` take in the place of arrays, on any Keras 3 backend.

    Batches are ``x``, ``(x, y)`` or ``(x, y, sample_weight)``, each an array or a structure of arrays; lists
    become tuples. Every epoch of Keras is an epoch of the loader, begun with its first batch; where
    ``steps_per_epoch`` is below the loader's length, an epoch of the loader goes on over several of Keras',
    as with a tf.data.Dataset. Each batch is copied once, so that the ring needs no more slots for a larger
    ``steps_per_execution``.

    ``class_weight``, here or in ``fit``, gives each row the weight of its class (1 where the class is not in
    the mapping), as Keras does for arrays; one-hot targets count as the class with the largest value.

    The loader's own ``shuffle`` and ``batch_size`` decide: ``fit(shuffle=True)``, Keras' default, changes
    nothing. What cannot be honoured is refused with a ValueError: ``y`` and ``sample_weight`` beside the
    adapter, another ``batch_size``, ``shuffle=False`` over a loader that shuffles.
    """
    return LoaderAdapter(loader, class_weight)


class LoaderAdapter(DataAdapter):  # type: ignore[misc]  # keras has no types
    """A loader behind the interface of Keras' data adapters; made by `to_keras`."""

    def __init__(self, loader: Loader, class_weight: ClassWeight | None) -> None:
        _check_structure(loader.spec.tree)
        _Feed(loader, class_weight)  # what cannot be weighted is refused now, not in fit
        self._loader = loader
        self._class_weight = class_weight
        # One adapter may serve several calls of Keras at a time: what each asked for, and its newest feed.
        self._asked: weakref.WeakKeyDictionary[EpochIterator, ClassWeight] = weakref.WeakKeyDictionary()
        self._feeds: weakref.WeakKeyDictionary[EpochIterator, _Feed] = weakref.WeakKeyDictionary()

    @property
    def num_batches(self) -> int | None:
        """The batches of one epoch, or None where the loader cannot know."""
        caller = sys._getframe(1)  # noqa: SLF001  # the module's docstring says why
        if caller.f_code is EpochIterator.__init__.__code__:
            self._listen(caller)
        return batch_count(self._loader)

    @property
    def batch_size(self) -> int:
        """The rows of a full batch."""
        return self._loader.max_rows

    @property
    def has_partial_batch(self) -> None:
        """None, as for a tf.data.Dataset: not known beforehand."""

    @property
    def partial_batch_size(self) -> None:
        """None, as for a tf.data.Dataset: not known beforehand."""

    def get_tf_dataset(self) -> Any:
        """A dataset that Keras walks in Python, and a distribution strategy in TensorFlow's graph."""
        from ringfeed.adapters import tensorflow as adapter  # noqa: PLC0415  # other backends run without it

        feed = self._feed(sys._getframe(1))  # noqa: SLF001
        specs = adapter.leaf_specs(self._loader, feed.extra)
        return adapter.EagerDataset(adapter.Batches(feed.leaves, sure_count(self._loader), specs, feed.pack))

    def get_numpy_iterator(self) -> Iterator[Any]:
        """One epoch in NumPy arrays."""
        return iter(self._feed(sys._getframe(1)))  # noqa: SLF001

    def get_jax_iterator(self) -> Iterator[Any]:
        """One epoch in NumPy arrays, which JAX may read at any later time."""
        return iter(self._feed(sys._getframe(1)))  # noqa: SLF001

    def get_torch_dataloader(self) -> Any:
        """A torch DataLoader in tensors on Keras' device."""
        return data_adapter_utils.get_torch_dataloader(self._feed(sys._getframe(1)))  # noqa: SLF001

    def on_epoch_end(self) -> None:
        """Give back an epoch that was begun only to build the model.

        Keras takes one batch to see its shapes, and then resets. What comes next is the first epoch to train
        on, and must be the loader's first, or that of its ``set_epoch``.
        """
        caller = sys._getframe(1)  # noqa: SLF001
        owner = caller.f_locals.get("self")
        if isinstance(owner, EpochIterator) and owner in self._feeds:
            self._feeds[owner].leave(trained=caller.f_code is not EpochIterator.reset.__code__)

    def _feed(self, caller: FrameType) -> _Feed:
        owner = caller.f_locals.get("self")
        if not isinstance(owner, EpochIterator):
            return _Feed(self._loader, self._class_weight)
        feed = self._feeds[owner] = _Feed(self._loader, self._asked.get(owner, self._class_weight))
        return feed

    def _listen(self, making: FrameType) -> None:
        """Read what the EpochIterator in the making was given, or refuse it."""
        given = making.f_locals
        for name, reason in IN_THE_BATCH.items():
            if given.get(name) is not None:
                raise ValueError(f"{name}= cannot be honoured beside to_keras(): {reason}")
        self._check_call(making)
        class_weight = given.get("class_weight")
        if class_weight is not None and self._class_weight is not None:
            raise ValueError("class_weight was given to to_keras() and to fit(); give it to one of them")
        if class_weight is not None:
            _Feed(self._loader, class_weight)
            self._asked[given["self"]] = class_weight

    def _check_call(self, making: FrameType) -> None:
        """Refuse another batch size than the loader's, and an order that it does not keep."""
        call: FrameType | None = making
        while call is not None and call.f_code.co_name == "__init__":
            call = call.f_back
        given = {} if call is None else call.f_locals  # of fit, evaluate or predict
        mine = given.get("x") is self  # otherwise this is the validation of a fit over something else
        name = "batch_size" if mine else "validation_batch_size"
        rows = given.get(name)
        if rows is not None and rows != self._loader.max_rows:
            raise ValueError(
                f"{name}={rows} cannot be honoured beside to_keras(): the loader makes batches of "
                f"{self._loader.max_rows} rows; set batch_size of ringfeed.Loader"
            )
        if mine and given.get("shuffle") is False and self._loader.shuffle:
            raise ValueError(
                "shuffle=False cannot be honoured beside to_keras(): the loader shuffles; set shuffle of "
                "ringfeed.Loader"
            )


class _Feed:
    """The loader's batches, with the weights of their classes where asked for; one epoch for each `iter`."""

    def __init__(self, loader: Loader, class_weight: ClassWeight | None) -> None:
        self._loader = loader
        self._class_weight = class_weight
        self._target = 0 if class_weight is None else _target_leaf(loader.spec, class_weight)
        self._epoch: _Epoch | None = None

    def __iter__(self) -> Iterator[Any]:
        return map(self.pack, self.leaves())

    @property
    def extra(self) -> dict[str, np.dtype[Any]]:
        """Name and dtype of the leaf of weights, where there is one."""
        return {} if self._class_weight is None else {"sample_weight": np.dtype(keras.config.floatx())}

    def leaves(self) -> Iterator[list[AnyArray]]:
        """One epoch: the private leaves of each batch, the weights last."""
        epoch = self._epoch = _Epoch(self._loader)
        return epoch if self._class_weight is None else map(self._weighted, epoch)

    def pack(self, leaves: Sequence[Any]) -> Any:
        """The batch around its leaves, whatever they have become."""
        if self._class_weight is None:
            return without_lists(self._loader.spec.unflatten(leaves))
        x, y = self._loader.spec.unflatten(leaves[:-1])
        return without_lists(x), y, leaves[-1]

    def leave(self, *, trained: bool) -> None:
        """Forget the epoch; the loader has it again where nothing was trained on it."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None and not trained:
            epoch.give_back()

    def _weighted(self, leaves: list[AnyArray]) -> list[AnyArray]:
        targets = leaves[self._target]
        return [*leaves, data_adapter_utils.class_weight_to_sample_weights(targets, self._class_weight)]


class _Epoch(PrivateEpoch):
    """An epoch whose errors keep their cause through Keras, which raises what it catches `from None`."""

    def __next__(self) -> list[AnyArray]:
        try:
            return super().__next__()
        except RingfeedError as error:
            if error.__cause__ is not None and sys.version_info >= (3, 11):
                error.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())
            raise


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
        case (x, Array()):
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
