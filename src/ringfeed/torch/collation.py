"""What torch's default_collate makes of samples, known from one of them: the spec of the slots, and the containers.

    sample                 default_collate([sample])        in the slot       batch
    (array, 7, {"w": .5})  [tensor, tensor, {"w": tensor}]  three fields      the same, in tensors over the slot

torch itself collates the first sample, so all it knows of types is asked there: numbers become int64, float64 and bool,
tuples become lists.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.collate import default_collate_fn_map

from ringfeed.errors import ShipError, SpecError
from ringfeed.frameworks.batch import TensorBuilder
from ringfeed.frameworks.forms import as_objects
from ringfeed.frameworks.torch import TORCH
from ringfeed.spec.spec import Array
from ringfeed.spec.strings import Bytes, Text
from ringfeed.torch.pickled import Apart, memory_of, read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.frameworks.base import LoaderInfo
    from ringfeed.torch.ring import Pickling

_DICTS = (dict, OrderedDict)
_STRINGS = (str, bytes)
LEAST, LONGER = 1024, 4  # bytes that each text has room for, and times as many as the first has: else see `pickled`
_OWN = "torch.utils.data._utils.collate"


class Form:
    """The form of a DataLoader's batches: of what `default_collate` makes of its samples."""

    def __init__(self, sample: Any, batch: Any) -> None:
        """Compare a sample with the batch of it alone; SpecError for what has no place in a slot."""
        self._count = 0
        self.rebuild: Callable[[Sequence[Any]], Any]
        self.tree, self.rebuild = self._walk(sample, batch, "sample")
        """The spec of a sample, as a tree of Arrays; what makes a batch of its leaves."""

    @classmethod
    def of(cls, sample: Any) -> Form:
        """Have torch collate one sample; raises what that raises."""
        return cls(sample, default_collate([sample]))

    def _walk(self, sample: Any, batch: Any, path: str) -> tuple[Any, Callable[[Sequence[Any]], Any]]:
        if type(batch) is torch.Tensor:
            return self._leaf(sample, batch, path)
        kind = type(sample)
        if kind in _STRINGS and type(batch) in (list, tuple):
            return self._text(sample, type(batch))
        if isinstance(sample, tuple) and hasattr(sample, "_fields") and type(batch) is kind:
            trees, parts = self._all(sample, batch, [f"{path}.{name}" for name in sample._fields])
            return kind(*trees), lambda leaves: kind(*[part(leaves) for part in parts])
        if kind in (tuple, list) and type(batch) is list:
            trees, parts = self._all(sample, batch, [f"{path}[{number}]" for number in range(len(sample))])
            return kind(trees), lambda leaves: [part(leaves) for part in parts]
        if kind in _DICTS and type(batch) is kind:
            keys = [*sample]
            trees, parts = self._all(sample.values(), batch.values(), [f"{path}[{key!r}]" for key in keys])
            return (
                dict(zip(keys, trees, strict=True)),
                lambda leaves: kind(zip(keys, [part(leaves) for part in parts], strict=True)),
            )
        raise _refused(path, sample)

    def _all(self, samples: Any, batches: Any, paths: list[str]) -> tuple[list[Any], list[Callable[..., Any]]]:
        found = [self._walk(*one) for one in zip(samples, batches, paths, strict=True)]
        return [tree for tree, _ in found], [part for _, part in found]

    def _leaf(self, sample: Any, batch: torch.Tensor, path: str) -> tuple[Array, Callable[[Sequence[Any]], Any]]:
        if batch.device.type != "cpu" or batch.requires_grad or batch.layout is not torch.strided:
            raise _refused(path, sample)
        try:
            dtype = batch.numpy().dtype
        except (TypeError, RuntimeError):  # bfloat16, quantized
            raise _refused(path, sample) from None
        if isinstance(sample, np.ndarray | np.generic) and sample.dtype != dtype:
            raise _refused(path, sample)
        number = self._count
        self._count += 1
        return Array(tuple(batch.shape[1:]), dtype), lambda leaves: leaves[number]

    def _text(self, sample: str | bytes, kind: type) -> tuple[Array, Callable[[Sequence[Any]], Any]]:
        number = self._count
        self._count += 1
        size = max(LEAST, LONGER * len(sample.encode() if isinstance(sample, str) else sample))
        leaf = (Text if isinstance(sample, str) else Bytes)(size)
        return leaf, lambda leaves: kind(leaves[number])


def has_own_collation() -> bool:
    """Whether the user has taught torch's default_collate more types."""
    return any(getattr(function, "__module__", _OWN) != _OWN for function in default_collate_fn_map.values())


def _refused(path: str, sample: Any) -> SpecError:
    kind = type(sample)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return SpecError(f"{path} is of type {name}, for which a slot has no place")


HINT = "; a DataLoader has prefetch_factor * num_workers + 1 slots"
FRAMEWORK = replace(TORCH, joins={**TORCH.joins, "bytes": lambda values, splits: [*as_objects(values.numpy(), splits)]})


class BatchTensors(TensorBuilder):
    """Makes batches of tensors over the slots, in the containers of torch's; pinned ones are copies."""

    def __init__(self, info: LoaderInfo, form: Form, *, pinned: bool) -> None:
        super().__init__(info, FRAMEWORK)
        self.copied_by += HINT
        self._rebuild = form.rebuild
        self._pinned = pinned

    def finish(self, leaves: list[Any]) -> Any:
        """Return the leaves in the structure of a batch."""
        joined = self._join(leaves)
        if self._pinned:  # torch's own memory: a copy to a GPU goes on reading it after the tensor is gone
            joined = [leaf.pin_memory() if isinstance(leaf, torch.Tensor) else leaf for leaf in joined]
        return self._rebuild(joined)


class BatchObjects(TensorBuilder):
    """Makes batches of any structure, of their bytes: see `pickled`."""

    def __init__(self, info: LoaderInfo, pickling: Pickling, *, converts: bool, pinned: bool) -> None:
        """``converts``: arrays to tensors, as torch does where it has nothing to collate."""
        super().__init__(info, TORCH)
        self._pickling = pickling
        self.copied_by += HINT
        self._converts = converts
        self._pinned = pinned

    def finish(self, leaves: list[Any]) -> Any:
        """Return a batch, whose tensors are parts of the slot."""
        try:
            batch = read(leaves[0].reshape(-1))
            if type(batch) is Apart:
                flat = memory_of(batch)
                self._pickling.size = max(self._pickling.size or 0, len(flat))
                batch = read(flat)
        except Exception as error:
            message = (
                f"a batch cannot be made again in the training process: {error}; return objects of classes that a "
                f"module or the script defines"
            )
            raise ShipError(message) from error
        batch = default_convert(batch) if self._converts else batch
        return pin_memory.pin_memory(batch) if self._pinned else batch
