"""Takes a sample apart, into its template and its bytes, and puts it together again.

    record    bytes of the template, count of lengths | template | lengths | bytes of each leaf
    template  None | ("tuple" or "list", children...) | ("dict", keys, children...) |
              ("named", class, children...) | a leaf: (kind, dtype, number of axes)

All begins at whole words. What comes before the leaves is the head: records with one head have
their leaves at the same places. Leaves are arrays, tensors of torch and numbers, and come back with
their types; anything else is pickled.
"""

from __future__ import annotations

import math
import pickle
import struct
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from ringfeed.spec.array import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

WORD = 8  # bytes
_SIZES = "<II"  # how a head begins


def record_of(sample: Any) -> bytes:
    """Return the record of a sample; what its classes raise as they are pickled comes out."""
    lengths: list[int] = []
    leaves: list[Any] = []
    template = _encoded(_take(sample, lengths, leaves))
    sizes = struct.pack(_SIZES, len(template), len(lengths))
    parts = [sizes, template, np.array(lengths, "<i8").tobytes(), *leaves]
    return b"".join([piece for part in parts for piece in (part, bytes(-len(part) % WORD))])


@lru_cache(maxsize=64)
def _encoded(template: Any) -> bytes:
    """Return a template as bytes: equal ones as the same bytes, but for classes of scripts."""
    return cloudpickle.dumps(template)


_decoded = lru_cache(maxsize=64)(pickle.loads)


def _take(value: Any, lengths: list[int], leaves: list[Any]) -> Any:
    """Return the template of a value, after adding its lengths and its leaves."""
    kind = type(value)
    if value is None:
        return None
    if kind is dict:
        children = [_take(child, lengths, leaves) for child in value.values()]
        return ("dict", tuple(value), *children)
    is_named = fields_of(value) is not None
    if is_named or kind in {tuple, list}:
        children = [_take(child, lengths, leaves) for child in value]
        return ("named", kind, *children) if is_named else (kind.__name__, *children)
    name, array = _array_of(value)
    if array is None or array.dtype.hasobject:
        name, array = "pickle", np.frombuffer(cloudpickle.dumps(value), np.uint8)
    lengths += array.shape
    # Bytes, as NumPy exports no buffer of dates or of dtypes that are not its own.
    flat = np.asarray(array, order="C").reshape(-1)
    leaves.append(flat.view(np.uint8) if flat.nbytes else b"")
    text = array.dtype.str
    return (name, text if np.dtype(text) == array.dtype else array.dtype, array.ndim)


def _array_of(value: Any) -> tuple[str, Any]:
    """Return the kind of a leaf, and an array of it; None: it is neither array nor number."""
    kind = type(value)
    if kind in {np.ndarray, np.memmap}:
        return "array", np.asarray(value)
    if kind in {bool, int, float}:
        return "number", np.array(value)
    if isinstance(value, np.generic):
        return "scalar", np.asarray(value)
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        try:
            return "tensor", value.numpy()
        except (TypeError, RuntimeError):  # on a device, with a gradient, of a dtype of torch alone
            pass
    return "", None


# ---- together again ----


class Record:
    """A record in some memory."""

    def __init__(self, memory: Any, at: int) -> None:
        """Read the head of what begins at this byte."""
        size, count = struct.unpack_from(_SIZES, memory, at)
        template = bytes(memory[at + WORD : at + WORD + size])
        lengths_at = at + WORD + size + -size % WORD
        self.memory = memory
        self._at = lengths_at + WORD * count
        self.head = bytes(memory[at : self._at])
        self._template: Any = _decoded(template)
        self._lengths = iter(struct.unpack_from(f"<{count}q", memory, lengths_at))

    def sample(self, leaf: Callable[..., Any]) -> Any:
        """Return the sample, once; ``leaf`` makes each of kind, memory, place, dtype and shape."""
        return self._built(self._template, leaf)

    def _built(self, template: Any, leaf: Callable[..., Any]) -> Any:
        if template is None:
            return None
        kind, *rest = template
        if kind in {"tuple", "list", "named", "dict"}:
            first = kind in {"named", "dict"}
            children = [self._built(child, leaf) for child in rest[first:]]
            if kind == "dict":
                return dict(zip(rest[0], children, strict=True))
            if kind == "named":
                return tuple.__new__(rest[0], children)
            return tuple(children) if kind == "tuple" else children
        dtype, axes = np.dtype(rest[0]), rest[1]
        shape = tuple([next(self._lengths) for _ in range(axes)])
        place, size = self._at, math.prod(shape) * dtype.itemsize
        self._at += size + -size % WORD
        return leaf(kind, self.memory, place, dtype, shape)


def view_of(kind: str, memory: Any, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a leaf for a writer of rows: arrays and tensors over the record, which it copies."""
    array = np.ndarray(shape, dtype, memory, at)
    if kind == "pickle":
        return pickle.loads(array.data)  # noqa: S301 - what a worker has pickled
    if kind == "number":
        return array.item()
    return array[()] if kind == "scalar" else array


def copy_of(kind: str, *place: Any) -> Any:
    """Return a leaf for the user's code, which may write to it."""
    leaf = view_of(kind, *place)
    if kind == "array":
        return leaf.copy()
    if kind != "tensor":
        return leaf
    import torch  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415 - if needed

    return torch.from_numpy(leaf.copy())


def column_of(kind: str, memory: Any, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return an array whose row i is this leaf of a record that begins at byte i; None of a pickle.

    ``at``: as of a record that begins at byte 0.
    """
    if kind == "pickle":
        return None
    rows = len(memory) - at - math.prod(shape) * dtype.itemsize + 1
    return np.ndarray((rows, *shape), dtype, memory, at, (1, *np.empty(shape, dtype).strides))
