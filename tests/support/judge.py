"""An oracle, in slow and plain NumPy, of what must come of a sample: its bytes, or a fault and where it is."""

from __future__ import annotations

import itertools
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from ringfeed import Array

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pair(NamedTuple):
    """A structure with names."""

    left: Any
    right: Any


class Couple(NamedTuple):
    """Another with the same names."""

    left: Any
    right: Any


class Fault(Exception):  # noqa: N818 - what a sample has
    """Says where a sample does not fit, and what its error must say: (path, part of the text)."""


def _same_dtype(one: Any, two: Any) -> bool:
    registered = [dtype.type for dtype in (one, two) if dtype.isbuiltin == 2]  # by others: their str is that of V2
    if one.str != two.str or len(registered) == 1 or len(set(registered)) == 2:
        return False
    if one.subdtype is not None or two.subdtype is not None:
        return one.shape == two.shape and _same_dtype(one.base, two.base)
    if one.names is None or two.names is None:
        return one.names is two.names
    return one.names == two.names and all(
        one.fields[name][1] == two.fields[name][1] and _same_dtype(one.fields[name][0], two.fields[name][0])
        for name in one.names
    )


def _exact(number: int, info: Any) -> bool:
    """Whether a float with these limits holds an int exactly, counted in bits."""
    bits = number.bit_length() - ((number & -number).bit_length() - 1) if number else 0
    if info.dtype.kind != "f" and not -(2**63) <= number < 2**63:
        return False  # ml_dtypes takes no larger ones
    most = int(info.max) if info.dtype.kind == "f" else float(info.max)
    return bits <= info.nmant + 1 and abs(number) <= most


def _packed(number: Any, dtype: Any) -> bytes:
    """Return the bytes of a Python number, or raise OverflowError or TypeError where it must not go."""
    big = dtype.str[0] == ">"
    if isinstance(number, bool):
        return {"b": bytes([number])}[dtype.kind]
    if isinstance(number, float):
        return struct.pack((">" if big else "<") + {"f4": "f", "f8": "d"}[dtype.str[1:]], number)
    if dtype.kind in "iu":
        return number.to_bytes(dtype.itemsize, "big" if big else "little", signed=dtype.kind == "i")
    info = ml_dtypes.finfo(dtype) if dtype.isbuiltin == 2 else {"f": np.finfo}[dtype.kind](dtype)
    if not _exact(int(number), info):
        raise OverflowError
    return raw(np.array(int(number), dtype))


class _Bytes:
    """The bytes of an array's elements, padding included, along one more axis."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        shape, strides = (*array.shape, array.dtype.itemsize), (*array.strides, 1)
        address = array.__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": shape,
            "strides": strides,
            "data": address,
        }


def raw(array: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of an array's elements in C order; zeros in padding, where NumPy itself copies nothing."""
    return (np.asarray(_Bytes(array)) * _covered(array.dtype)).tobytes()


def _covered(dtype: Any) -> Any:
    """Return 1 for each byte of an element that means something, 0 for padding."""
    found = np.full(dtype.itemsize, dtype.names is None, np.uint8)
    if dtype.kind in "fc" and np.finfo(dtype).nmant == 63:
        found.reshape(-1, dtype.itemsize // (1 + (dtype.kind == "c")))[:, 10:] = 0  # an x87 number has ten bytes
    for name in dtype.names or ():
        field, offset = dtype.fields[name][:2]
        repeats = math.prod(field.shape)
        found[offset : offset + field.itemsize] |= np.tile(_covered(field.base), repeats)
    return found


def _judged_leaf(leaf: Array, value: Any, path: str) -> bytes:
    dtype, shape = leaf.dtype, leaf.shape
    if _is_number(value) and not shape:
        try:
            return _packed(value, dtype)
        except (KeyError, OverflowError):
            raise Fault(path, f"expected a value for dtype {dtype}; a Python ") from None
    found = _array(value, path)
    if found is None:
        raise Fault(path, f"expected an array of shape {shape} and dtype {dtype}; ")
    return _fitting(found, found.shape, leaf, path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, np.generic)


def _array(value: Any, path: str) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise Fault(path, "is a masked array, expected a plain array; ")
    likes = ("__array__", "__array_interface__")
    if isinstance(value, tuple | list | dict) or not any(hasattr(type(value), name) for name in likes):
        return None
    try:
        return np.asarray(value)
    except Exception as error:  # noqa: BLE001 - whatever it is
        raise Fault(path, f"whose conversion raised {type(error).__name__}: ") from None


def _fitting(found: Any, shape: tuple[int, ...], leaf: Array, path: str) -> bytes:
    if not _same_dtype(found.dtype, leaf.dtype):
        raise Fault(path, f"has dtype {found.dtype}, expected {leaf.dtype}; ")
    if shape != leaf.shape:
        raise Fault(path, f"shape {shape}, expected {leaf.shape}; ")
    return raw(found)


def judged_batch(tree: Any, batch: Any, most: int) -> list[bytes]:
    """Return the same of a whole batch of at most so many rows."""
    found: list[bytes] = []
    before = None
    for leaf, value, path in list(_leaves(tree, batch, "batch")):
        array = None if _is_number(value) else _array(value, path)
        if array is None or not array.ndim:
            raise Fault(path, "expected an array with a leading row axis; ")
        if len(array) > most:
            raise Fault(path, f"has {len(array)} rows, expected at most {most}; ")
        found.append(_fitting(array, array.shape[1:], leaf, path))
        before = len(array) if before is None else before
        if len(array) != before:
            raise Fault(path, f"has {len(array)} rows, expected {before} as in the leaves before it; ")
    return found


def _is_named(value: Any) -> bool:
    return isinstance(value, Pair | Couple)


def _called(tree: Any) -> str:
    if isinstance(tree, Pair):
        return "the NamedTuple Pair(left, right)"
    return "a dict" if isinstance(tree, dict) else f"a {type(tree).__name__} of {len(tree)}"


def judged(tree: Any, value: Any, path: str = "sample") -> list[bytes]:
    """Return the bytes of each leaf in order, or raise the first Fault of a structure, then of a leaf."""
    return [_judged_leaf(*found) for found in list(_leaves(tree, value, path))]


def _leaves(tree: Any, value: Any, path: str) -> Iterator[tuple[Array, Any, str]]:
    if isinstance(tree, Array):
        yield tree, value, path
        return
    kind = next(kind for kind in (tuple, list, dict) if isinstance(tree, kind))
    alike = isinstance(value, kind) and _is_named(value) == _is_named(tree)
    if not alike or isinstance(value, Couple) or (kind is not dict and len(value) != len(tree)):
        raise Fault(path, f", expected {_called(tree)}; return the same structure for every index")
    if kind is dict:
        if set(value) != set(tree):
            raise Fault(path, f", expected the keys {list(tree)}; return the same keys for every index")
        parts = [(tree[key], value[key], f"{path}[{key!r}]") for key in tree]
    else:
        if len(list(itertools.islice(iter(value), len(tree) + 1))) != len(tree):
            raise Fault(path, ", but its __iter__ gives others, expected as many; return a plain list or tuple")
        names = [f".{name}" for name in Pair._fields] if _is_named(tree) else [f"[{n}]" for n in range(len(tree))]
        parts = [(below, child, path + name) for below, child, name in zip(tree, value, names, strict=True)]
    for below, child, where in parts:
        yield from _leaves(below, child, where)
