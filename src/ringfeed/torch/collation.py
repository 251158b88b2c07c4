"""What torch's default_collate makes of samples: the slots' spec, and the containers of a batch.

    sample                 default_collate([sample])        in the slot   batch
    (array, 7, {"w": .5})  [tensor, tensor, {"w": tensor}]  three fields  the same, over the slot

torch itself collates the first sample, so all it knows of types is asked there: numbers become
int64, float64 and bool, tuples become lists.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.collate import default_collate_fn_map

from ringfeed.errors import SpecError
from ringfeed.frameworks.batch import TensorBuilder
from ringfeed.frameworks.forms import as_objects
from ringfeed.frameworks.torch import TORCH
from ringfeed.spec.array import Array, fields_of
from ringfeed.spec.form_arrays import Bytes, Text
from ringfeed.spec.spec import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.frameworks.base import LoaderInfo

# Bytes that each text has room for, and times as many as the first has: else see `pickled`.
LEAST, LONGER = 1024, 4
_OWN = "torch.utils.data._utils.collate"


class Form(NamedTuple):
    """The form of a DataLoader's batches, by what `default_collate` makes of a sample."""

    tree: Any
    """A sample, with an Array in the place of each leaf."""
    in_tuples: list[int]
    """The numbers of the leaves whose texts come in a tuple, and not in a list."""

    @classmethod
    def of(cls, sample: Any) -> Form:
        """Have torch collate one sample; SpecError for what has no place in a slot."""
        in_tuple: list[bool] = []
        tree = _tree_of(sample, default_collate([sample]), "sample", in_tuple)
        return cls(tree, [number for number, is_in in enumerate(in_tuple) if is_in])

    def batch_of(self, leaves: list[Any]) -> Any:
        """Return a batch of these leaves."""
        for number in self.in_tuples:
            leaves[number] = tuple(leaves[number])
        return _batch_of(self.tree, iter(leaves))


def _tree_of(sample: Any, batch: Any, path: str, in_tuple: list[bool]) -> Any:
    """Return the sample with an Array in the place of each leaf.

    ``batch``: what torch makes of a batch of this sample alone. ``in_tuple``: is extended by
    whether each leaf is texts that come in a tuple.
    """
    kind = type(sample)
    is_container = kind in (tuple, list, dict, OrderedDict) or fields_of(sample) is not None
    if type(batch) is torch.Tensor and (array := _array_of(sample, batch)) is not None:
        in_tuple.append(False)
        return array
    if kind in (str, bytes) and type(batch) in (list, tuple):
        in_tuple.append(type(batch) is tuple)
        size = LONGER * len(sample.encode() if kind is str else sample)
        return (Text if kind is str else Bytes)(max(LEAST, size))
    if is_container and type(batch) is (list if kind is tuple else kind):
        parts = batch.values() if isinstance(batch, dict) else batch
        below = [
            _tree_of(child, part, where, in_tuple)
            for (where, child), part in zip(parts_of(sample, path), parts, strict=True)
        ]
        if isinstance(sample, dict):
            return kind(zip(sample, below, strict=True))
        return getattr(sample, "_make", kind)(below)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    raise SpecError(f"{path} is of type {name}, for which a slot has no place")


def _batch_of(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return the tree with leaves in the place of its Arrays, and lists in that of tuples.

    Torch makes a list of the parts of a plain tuple, too.
    """
    if isinstance(tree, Array):
        return next(leaves)
    if isinstance(tree, dict):
        parts = [_batch_of(part, leaves) for part in tree.values()]
        return type(tree)(zip(tree, parts, strict=True))
    return getattr(tree, "_make", list)([_batch_of(part, leaves) for part in tree])


def _array_of(sample: Any, batch: torch.Tensor) -> Array | None:
    """Return the Array of a leaf, by its batch of one; None for what has no place in a slot."""
    if batch.device.type != "cpu" or batch.requires_grad or batch.layout is not torch.strided:
        return None
    try:
        dtype = batch.numpy().dtype
    except (TypeError, RuntimeError):  # bfloat16, quantized
        return None
    is_other = isinstance(sample, np.ndarray | np.generic) and sample.dtype != dtype
    return None if is_other else Array(tuple(batch.shape[1:]), dtype)


def has_own_collation() -> bool:
    """Whether the user has taught torch's default_collate more types."""
    return any(
        getattr(function, "__module__", _OWN) != _OWN
        for function in default_collate_fn_map.values()
    )


FRAMEWORK = replace(
    TORCH,
    copied_by=(
        f"{TORCH.copied_by}; a DataLoader has prefetch_factor * num_workers + 1 slots, and three "
        "at least"
    ),
    joins={**TORCH.joins, "bytes": lambda values, splits: [*as_objects(values.numpy(), splits)]},
)


def batch_builder(
    info: LoaderInfo, make: Callable[[list[Any]], Any], *, pinned: bool
) -> TensorBuilder:
    """Return what makes batches whose tensors lie over the slots; pinned ones are copies.

    ``make``: returns a batch of its leaves.
    """

    # Pinned memory is torch's own: a copy to a GPU goes on reading it after the tensor is gone.
    def pinned_batch(leaves: list[Any]) -> Any:
        return pin_memory.pin_memory(make(leaves))

    return TensorBuilder(info, FRAMEWORK, pack=pinned_batch if pinned else make)
