"""What torch's default_collate makes of samples, known from one of them: the spec of the slots, and the containers.

    sample                 default_collate([sample])        in the slot       batch
    (array, 7, {"w": .5})  [tensor, tensor, {"w": tensor}]  three fields      the same, in tensors over the slot

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
from ringfeed.spec.form_arrays import Bytes, Text
from ringfeed.spec.spec import Array, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.frameworks.base import LoaderInfo

_CONTAINERS = (tuple, list, dict, OrderedDict)
# Bytes that each text has room for, and times as many as the first has: else see `pickled`.
LEAST, LONGER = 1024, 4
_OWN = "torch.utils.data._utils.collate"


class Form(NamedTuple):
    """The form of a DataLoader's batches, by what `default_collate` makes of a sample."""

    tree: Any
    """A sample, with an Array in the place of each leaf."""
    batch: Any
    """A batch, with the number of each leaf in its place."""
    in_tuples: list[int]
    """The numbers of the texts that come in a tuple, and not in a list."""

    @classmethod
    def of(cls, sample: Any) -> Form:
        """Have torch collate one sample; SpecError for what has no place in a slot."""
        leaves: list[Array] = []
        in_tuples: list[int] = []
        tree, batch = _walked(sample, default_collate([sample]), "sample", leaves, in_tuples)
        return cls(tree, batch, in_tuples)

    def batch_of(self, leaves: list[Any]) -> Any:
        """Return a batch of these leaves."""
        for number in self.in_tuples:
            leaves[number] = tuple(leaves[number])
        return _with(leaves, self.batch)


def _walked(
    sample: Any, batch: Any, path: str, leaves: list[Array], in_tuples: list[int]
) -> tuple[Any, Any]:
    """Return what stands for the sample in `Form.tree`, and for its batch in `Form.batch`."""
    kind = type(sample)
    is_named = isinstance(sample, tuple) and hasattr(sample, "_fields")
    if type(batch) is torch.Tensor and (array := _array_of(sample, batch)) is not None:
        leaves.append(array)
    elif kind in (str, bytes) and type(batch) in (list, tuple):
        size = max(LEAST, LONGER * len(sample.encode() if isinstance(sample, str) else sample))
        if type(batch) is tuple:
            in_tuples.append(len(leaves))
        leaves.append((Text if kind is str else Bytes)(size))
    elif (is_named or kind in _CONTAINERS) and type(batch) is (list if kind is tuple else kind):
        parts = batch.values() if isinstance(batch, dict) else batch
        below = [
            _walked(child, part, where, leaves, in_tuples)
            for (where, child), part in zip(parts_of(sample, path), parts, strict=True)
        ]
        of_sample, of_batch = [one for one, _ in below], [other for _, other in below]
        return _like(sample, of_sample), _like(batch, of_batch)
    else:
        name = (
            kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}"
        )
        message = f"{path} is of type {name}, for which a slot has no place"
        raise SpecError(message)
    return leaves[-1], len(leaves) - 1


def _like(container: Any, parts: list[Any]) -> Any:
    """Return a container of the same kind with other parts."""
    if isinstance(container, dict):
        return type(container)(zip(container, parts, strict=True))
    return container._make(parts) if hasattr(container, "_make") else type(container)(parts)


def _with(leaves: list[Any], batch: Any) -> Any:
    if type(batch) is int:
        return leaves[batch]
    parts = batch.values() if isinstance(batch, dict) else batch
    return _like(batch, [_with(leaves, part) for part in parts])


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


HINT = "; a DataLoader has prefetch_factor * num_workers + 1 slots, and three at least"
FRAMEWORK = replace(
    TORCH,
    joins={**TORCH.joins, "bytes": lambda values, splits: [*as_objects(values.numpy(), splits)]},
)


class BatchTensors(TensorBuilder):
    """Makes batches whose tensors lie over the slots; pinned ones are copies."""

    def __init__(self, info: LoaderInfo, make: Callable[[list[Any]], Any], *, pinned: bool) -> None:
        """``make``: returns a batch of its leaves."""
        super().__init__(info, FRAMEWORK)
        self.copied_by += HINT
        self._make = make
        self._pinned = pinned

    def finish(self, leaves: list[Any]) -> Any:
        """Return the leaves in the structure of a batch."""
        batch = self._make([*self._join(leaves)])
        # Pinned memory is torch's own: a copy to a GPU goes on reading it after the tensor is gone.
        return pin_memory.pin_memory(batch) if self._pinned else batch
