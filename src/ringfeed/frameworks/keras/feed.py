"""What Keras is fed: a loader's epochs in the structures that Keras unpacks, with the weights of classes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils

from ringfeed.errors import SpecError
from ringfeed.frameworks.copies import Copies, Epoch, without_lists
from ringfeed.frameworks.keras.arguments import resumed_epoch
from ringfeed.frameworks.zero_copy import Aliases
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.errors import RingfeedError
    from ringfeed.frameworks.base import BatchStream, LoaderInfo
    from ringfeed.frameworks.copies import AnyArray, Extra, Own
    from ringfeed.frameworks.zero_copy import Memory, Outstanding
    from ringfeed.spec.builder import BuildBatch

ClassWeight: TypeAlias = "Mapping[int, float]"


class Feed:
    """The loader's batches, with the weights of their classes where asked for; one epoch at a time."""

    def __init__(self, stream: BatchStream, info: LoaderInfo, class_weight: ClassWeight | None) -> None:
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
        self.pack = _packer(info.spec.tree, list(self.extra.values()))
        """Makes the batch around its leaves, whatever they have become."""
        self._epoch: Epoch | None = None

    def arrays(self, own: Own | None = None) -> Iterator[list[AnyArray]]:
        """One epoch: the leaves of each batch as private arrays, made their ``own`` way or copied; the weights last."""
        return self._begin(Copies(self._info, self._weights, own))

    def tensors(self, memory: Memory, outstanding: Outstanding, own: Own | None = None) -> Iterator[list[Any]]:
        """One epoch: the same as tensors of a framework, over the slots where that can be."""
        return self._begin(Aliases(self._info, memory, outstanding, self._weights, own))

    def leave(self, *, trained: bool) -> None:
        """Forget the epoch; the loader has it again where nothing was trained on it."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None and not trained:
            epoch.give_back()

    def _begin(self, build: BuildBatch) -> Epoch:
        self._epoch = _KerasEpoch(self._stream, build)
        return self._epoch


class _KerasEpoch(Epoch):
    """An epoch that Keras walks."""

    def _choose(self) -> None:
        """Go on where a `fit` does that was told to, or restored."""
        number = resumed_epoch(sys._getframe(2), self._stream.info.length)  # noqa: SLF001 - see arguments
        if number is not None:
            self._stream.set_epoch(number)

    def _explain(self, error: RingfeedError) -> None:
        """Keep the cause of an error through Keras, which raises what it catches `from None`."""
        if error.__cause__ is not None and sys.version_info >= (3, 11):
            error.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())


def _weights(target: int, class_weight: ClassWeight, leaves: list[AnyArray]) -> list[AnyArray]:
    return [data_adapter_utils.class_weight_to_sample_weights(leaves[target], class_weight)]


def _packer(tree: Any, extra: list[np.dtype[Any]]) -> Callable[[Sequence[Any]], Any]:
    """What makes the structure of a batch of its leaves; with extra ones, of a batch of two parts."""
    tree = without_lists(tree)
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
