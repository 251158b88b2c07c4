"""An oracle, in slow and plain NumPy, of what must come of a sample: its bytes, or a fault and where it is."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
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
    registered = [
        dtype.type for dtype in (one, two) if dtype.isbuiltin == 2
    ]  # by others: their str is that of V2
    if one.str != two.str or len(registered) == 1 or len(set(registered)) == 2:
        return False
    if one.subdtype is not None or two.subdtype is not None:
        return one.shape == two.shape and _same_dtype(one.base, two.base)
    if one.names is None or two.names is None:
        return one.names is two.names
    return one.names == two.names and all(
        one.fields[name][1] == two.fields[name][1]
        and _same_dtype(one.fields[name][0], two.fields[name][0])
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
    """Return the bytes of a Python number, or raise OverflowError or KeyError where it must not go."""
    big = dtype.str[0] == ">"
    if isinstance(number, complex):
        part = {"c8": "f", "c16": "d"}[dtype.str[1:]]
        return struct.pack((">" if big else "<") + 2 * part, number.real, number.imag)
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
    """Return the bytes of an array's elements in C order.

    Zeros in padding, where NumPy itself copies nothing.
    """
    return (np.asarray(_Bytes(array)) * _covered(array.dtype)).tobytes()


def _covered(dtype: Any) -> Any:
    """Return 1 for each byte of an element that means something, 0 for padding."""
    found = np.full(dtype.itemsize, dtype.names is None, np.uint8)
    if dtype.kind in "fc" and np.finfo(dtype).nmant == 63:
        found.reshape(-1, dtype.itemsize // (1 + (dtype.kind == "c")))[:, 10:] = (
            0  # an x87 number has ten bytes
        )
    for name in dtype.names or ():
        field, offset = dtype.fields[name][:2]
        repeats = math.prod(field.shape)
        found[offset : offset + field.itemsize] |= np.tile(_covered(field.base), repeats)
    return found


def _text(value: str | bytes, dtype: Any, path: str) -> bytes:
    """Return the bytes of a string in the width of an S or U dtype."""
    if dtype.kind == "S":
        room, unit = dtype.itemsize, 1
        try:
            data = value if isinstance(value, bytes) else value.encode()
        except UnicodeEncodeError:
            raise Fault(path, ", expected text; repair it") from None
    elif isinstance(value, bytes):
        raise Fault(path, f"is of type bytes, expected a str for dtype {dtype}; ")
    else:
        room, unit = dtype.itemsize // 4, 4
        data = value.encode("utf-32-be" if dtype.str[0] == ">" else "utf-32-le", "surrogatepass")
    if len(data) > dtype.itemsize:
        raise Fault(
            path,
            (
                f"has {len(data) // unit} {'bytes' if unit == 1 else 'characters'}, expected at "
                f"most {room}"
            ),
        )
    if data and not any(data[-unit:]):
        raise Fault(path, "ends with a NUL, expected text")
    return data.ljust(dtype.itemsize, b"\0")


def _number(value: Any, dtype: Any, path: str) -> bytes:
    """Return the bytes of a Python number in a dtype."""
    try:
        return _packed(value, dtype)
    except (KeyError, OverflowError):
        raise Fault(path, f"expected a value for dtype {dtype}; a Python ") from None


def _made(parts: list[bytes], dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of elements of these bytes."""
    return np.ndarray(shape, dtype, b"".join(parts))


def _judged_leaf(leaf: Array, value: Any, path: str) -> bytes:
    dtype, shape = leaf.dtype, leaf.shape
    if _is_number(value) and not shape:
        return _number(value, dtype, path)
    if isinstance(value, str | bytes) and not shape and dtype.kind in "SU":
        return _text(value, dtype, path)
    found = (
        _listed(value, leaf, path)
        if isinstance(value, list | tuple) and shape
        else _array(value, path)
    )
    if found is None:
        raise Fault(path, f"expected an array of shape {shape} and dtype {dtype}; ")
    return _fitting(found, found.shape, leaf, path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex) and not isinstance(value, np.generic)


def _listed(value: Any, leaf: Array, path: str) -> Any:
    """Return the array of a list, whose items go where each may go alone."""
    try:
        found = np.asarray(value)
    except Exception as error:  # noqa: BLE001 - whatever it is
        raise Fault(path, f", of which numpy.asarray() raised {type(error).__name__}: ") from None
    items = _items(value, path, found.ndim)
    if all(_is_number(item) for _, item in items):
        return _made(
            [_number(item, leaf.dtype, where) for where, item in items], leaf.dtype, found.shape
        )
    if leaf.dtype.kind in "SU" and all(isinstance(item, str | bytes) for _, item in items):
        return _made(
            [_text(item, leaf.dtype, where) for where, item in items], leaf.dtype, found.shape
        )
    goes = _goes(found.dtype, leaf)
    for where, item in items:
        array = None if _is_number(item) else _array(item, where)
        if goes and _is_number(item):
            _number(item, leaf.dtype, where)
        if goes and array is not None and not _goes(array.dtype, leaf):
            raise Fault(where, f"has dtype {array.dtype}, expected {leaf.dtype}; ")
    return found


def _items(value: Any, path: str, depth: int) -> list[tuple[str, Any]]:
    """Return what lies so deep in lists, with its path."""
    if not depth or not isinstance(value, list | tuple):
        return [(path, value)]
    items: list[tuple[str, Any]] = []
    for number in range((list if isinstance(value, list) else tuple).__len__(value)):
        items += _items(value[number], f"{path}[{number}]", depth - 1)
    return items


def _goes(dtype: Any, leaf: Array) -> bool:
    """Whether arrays of a dtype may go into a leaf: of its own or, of strings, of any width."""
    return _same_dtype(dtype, leaf.dtype) or (dtype.kind in "SU" and leaf.dtype.kind in "SU")


def _in_width(array: Any, dtype: Any, path: str) -> Any:
    """Return an array of strings in the width, the byte order and the kind of a dtype."""
    indices = list(np.ndindex(array.shape))
    found = [raw(array[(*index, ...)]) for index in indices]
    texts: list[Any] = [data.rstrip(b"\0") for data in found]
    if array.dtype.kind == "U":
        order: Any = "big" if array.dtype.str[0] == ">" else "little"
        wide = [
            [int.from_bytes(data[at : at + 4], order) for at in range(0, len(data), 4)]
            for data in found
        ]
        if any(code > 0x10FFFF for codes in wide for code in codes):
            raise Fault(path, "but holds numbers that are no characters, expected text")
        texts = ["".join(map(chr, codes)).rstrip("\0") for codes in wide]
    places = [path + "".join(f"[{number}]" for number in index) for index in indices]
    parts = [_text(text, dtype, place) for text, place in zip(texts, places, strict=True)]
    return _made(parts, dtype, array.shape)


def _array(value: Any, path: str) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise Fault(path, "is a masked array, expected a plain array; ")
    likes = ("__array__", "__array_interface__")
    if isinstance(value, tuple | list | dict) or not any(
        hasattr(type(value), name) for name in likes
    ):
        return None
    try:
        return np.asarray(value)
    except Exception as error:  # noqa: BLE001 - whatever it is
        raise Fault(path, f"whose conversion raised {type(error).__name__}: ") from None


def _fitting(found: Any, shape: tuple[int, ...], leaf: Array, path: str) -> bytes:
    if not _same_dtype(found.dtype, leaf.dtype) and _goes(found.dtype, leaf):
        found = _in_width(found, leaf.dtype, path)
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
        is_list = isinstance(value, list | tuple)
        array = (
            _listed(value, leaf, path)
            if is_list
            else None
            if _is_number(value)
            else _array(value, path)
        )
        if array is None or not array.ndim:
            raise Fault(path, "expected an array with a leading row axis; ")
        if len(array) > most:
            raise Fault(path, f"has {len(array)} rows, expected at most {most}; ")
        found.append(_fitting(array, array.shape[1:], leaf, path))
        before = len(array) if before is None else before
        if len(array) != before:
            raise Fault(
                path, f"has {len(array)} rows, expected {before} as in the leaves before it; "
            )
    return found


def _is_named(value: Any) -> bool:
    return isinstance(value, Pair | Couple)


def _called(tree: Any) -> str:
    if isinstance(tree, Pair):
        return "the NamedTuple Pair(left, right)"
    return "a dict" if isinstance(tree, dict) else f"a {type(tree).__name__} of {len(tree)}"


def _plain(value: Any) -> Any:
    """Return the dict that a mapping or a dataclass stands for."""
    if isinstance(value, Mapping):
        return {key: value[key] for key in value}
    fields = getattr(type(value), "__dataclass_fields__", None)
    return value if fields is None else {name: getattr(value, name) for name in fields}


def judged(tree: Any, value: Any, path: str = "sample") -> list[bytes]:
    """Return the bytes of each leaf in order, or raise the first Fault of a structure, then of a leaf."""
    return [_judged_leaf(*found) for found in list(_leaves(tree, value, path))]


def _leaves(tree: Any, value: Any, path: str) -> Iterator[tuple[Array, Any, str]]:
    if isinstance(tree, Array):
        yield tree, value, path
        return
    if tree is None:
        if value is not None:
            raise Fault(
                path,
                (
                    ", expected None as the spec has it there; return None for every index, or "
                    "for none"
                ),
            )
        return
    kind = next(kind for kind in (tuple, list, dict) if isinstance(tree, kind))
    value = _plain(value)
    alike = isinstance(value, kind) and _is_named(value) == _is_named(tree)
    if not alike or isinstance(value, Couple) or (kind is not dict and len(value) != len(tree)):
        raise Fault(path, f", expected {_called(tree)}; ")
    if kind is dict:
        if set(value) != set(tree):
            raise Fault(
                path, f", expected the keys {list(tree)}; return the same keys for every index"
            )
        parts = [(tree[key], value[key], f"{path}[{key!r}]") for key in tree]
    else:
        if len(list(itertools.islice(iter(value), len(tree) + 1))) != len(tree):
            raise Fault(
                path,
                ", but its __iter__ gives others, expected as many; return a plain list or tuple",
            )
        names = (
            [f".{name}" for name in Pair._fields]
            if _is_named(tree)
            else [f"[{n}]" for n in range(len(tree))]
        )
        parts = [
            (below, child, path + name)
            for below, child, name in zip(tree, value, names, strict=True)
        ]
    for below, child, where in parts:
        yield from _leaves(below, child, where)
