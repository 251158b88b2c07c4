"""Takes a sample apart, into a pickle and its bytes, and puts it together again.

    record    bytes of the pickle | pickle | bytes of each leaf

All begins at whole words. Leaves are arrays, tensors of torch and numbers, and come back with their
types; the pickle has their kind, dtype and shape, and all else. What comes before the leaves is the
head: records with one head have their leaves at the same places.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

WORD = 8  # bytes


def record_of(sample: Any) -> bytes:
    """Return the record of a sample; what its classes raise as they are pickled comes out."""
    pickler = _Pickler(stream := io.BytesIO())
    pickler.dump(sample)
    text = stream.getvalue()
    parts = [len(text).to_bytes(WORD, "little"), text, *pickler.leaves]
    return b"".join([piece for part in parts for piece in (part, bytes(-len(part) % WORD))])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that keeps leaves out of its stream; classes are pickled once for all samples."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.leaves: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        """Return what stands for a leaf or a class; None for anything else."""
        if isinstance(obj, type):
            return _pickled(obj)
        kind, array = _array_of(obj)
        if array is None or array.dtype.hasobject:
            return None
        # Bytes, as NumPy exports no buffer of dates or of dtypes that are not its own.
        flat = np.asarray(array, order="C").reshape(-1)
        self.leaves.append(flat.view(np.uint8) if flat.nbytes else b"")
        return _pickled((kind, array.dtype, array.shape))

    def reducer_override(self, obj: Any) -> Any:
        """Keep the zeros at the end of NumPy's bytes and text, which its own pickles lose."""
        if type(obj) in {np.bytes_, np.str_}:
            return type(obj), (obj[:],)
        return super().reducer_override(obj)


_pickled: Any = lru_cache(1024)(cloudpickle.dumps)


@lru_cache(1024)
def _unpickled(pickled: bytes) -> Any:
    found = pickle.loads(pickled)  # noqa: S301 - what a worker has pickled
    if not isinstance(found, type):
        return found
    # A class of a script comes by value from another run: it is the one that is here.
    own = getattr(sys.modules.get(found.__module__), found.__qualname__, None)
    return own if isinstance(own, type) else found


def _array_of(value: Any) -> tuple[str, Any]:
    """Return the kind of a leaf, and an array of it; None: it is neither array nor number."""
    kind = type(value)
    if kind in {np.ndarray, np.memmap}:
        return "array", np.asarray(value)
    if kind in {bool, int, float}:
        return "number", np.array(value)
    if isinstance(value, np.generic) and not isinstance(value, np.flexible):
        return "scalar", np.asarray(value)
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        try:
            return "tensor", value.numpy()
        except (TypeError, RuntimeError):  # on a device, with a gradient, of a dtype of torch alone
            pass
    return "", None


# ---- together again ----


def head_of(memory: Any, at: int) -> Any:
    """Return the head of the record that begins at this byte of a mapping."""
    size = int.from_bytes(memory[at : at + WORD], "little")
    return memory[at : at + WORD + size + -size % WORD]


class Unpickler(pickle.Unpickler):
    """Loads the sample of a record."""

    def __init__(self, head: bytes, memory: Any, at: int, leaf: Callable[..., Any]) -> None:
        """Look at a record; ``leaf`` makes each of kind, memory, place, dtype and shape."""
        super().__init__(io.BytesIO(head[WORD:]))
        self._memory, self._at, self._leaf = memory, at + len(head), leaf

    def persistent_load(self, pid: bytes) -> Any:
        """Return a class, or the next leaf."""
        found = _unpickled(pid)
        if isinstance(found, type):
            return found
        kind, dtype, shape = found
        at, size = self._at, math.prod(shape) * dtype.itemsize
        self._at += size + -size % WORD
        return self._leaf(kind, self._memory, at, dtype, shape)


def view_of(kind: str, memory: Any, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a leaf for a writer of rows: arrays and tensors over the record, which it copies."""
    array = np.ndarray(shape, dtype, memory, at)
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


def column_of(_: str, memory: Any, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return an array whose row i is this leaf of a record that begins at byte i.

    ``at``: as of a record that begins at byte 0.
    """
    rows = len(memory) - at - math.prod(shape) * dtype.itemsize + 1
    return np.ndarray((rows, *shape), dtype, memory, at, (1, *np.empty(shape, dtype).strides))
