"""What Keras is fed: a loader's epochs in the structures that Keras unpacks, with the weights of classes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils

from ringfeed.adapters.aliases import AliasedEpoch, Outstanding
from ringfeed.adapters.copies import PrivateEpoch, without_lists
from ringfeed.errors import RingfeedError, SpecError
from ringfeed.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringfeed.adapters.aliases import Memory
    from ringfeed.adapters.copies import AnyArray, Epoch
    from ringfeed.loader import Loader

ClassWeight: TypeAlias = "Mapping[int, float]"


class Feed:
    """The loader's batches, with the weights of their classes where asked for; one epoch at a time."""

    def __init__(self, loader: Loader, class_weight: ClassWeight | None) -> None:
        """Refuse samples that Keras cannot unpack, and class weights that these cannot have."""
        _check_structure(loader.spec.tree)
        self._loader = loader
        self._class_weight = class_weight
        self._target = 0 if class_weight is None else _target_leaf(loader.spec, class_weight)
        self._extra = None if class_weight is None else self._weights
        self._epoch: Epoch | None = None

    @property
    def extra(self) -> dict[str, np.dtype[Any]]:
        """Name and dtype of the leaf of weights, where there is one."""
        return {} if self._class_weight is None else {"sample_weight": np.dtype(keras.config.floatx())}

    def arrays(self) -> Iterator[list[AnyArray]]:
        """One epoch: the leaves of each batch as private arrays, the weights last."""
        self._epoch = PrivateEpoch(self._loader, self._extra)
        return _Explained(self._epoch)

    def tensors(self, memory: Memory, outstanding: Outstanding) -> Iterator[list[Any]]:
        """One epoch: the same as tensors of a framework, over the slots where that can be."""
        self._epoch = AliasedEpoch(self._loader, memory, outstanding, self._extra)
        return _Explained(self._epoch)

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

    def _weights(self, leaves: list[AnyArray]) -> list[AnyArray]:
        return [data_adapter_utils.class_weight_to_sample_weights(leaves[self._target], self._class_weight)]


class _Explained:
    """An epoch whose errors keep their cause through Keras, which raises what it catches `from None`."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def __iter__(self) -> _Explained:
        return self

    def __next__(self) -> list[Any]:
        try:
            return next(self._epoch)
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
