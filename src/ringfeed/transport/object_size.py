"""What a dataset takes in a worker once it is unpickled.

Python objects are several times as large as their pickles.

A list of a million numbers has 5 MB in the stream, and 40 MB in each worker. Counted are the
objects that pickle came to see, as the interpreter and its allocator lay them out; what a class of
C code keeps to itself is not.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ringfeed._units import show_bytes
from ringfeed.transport import arrays as _buffers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# In bytes.
GRAIN = 16  # every object takes a multiple of it
NUMBER = 32  # an int or a float
HEADER = 16  # the garbage collector's, before most objects
ARRAY = 160  # an ndarray, its axes, and the head of the bytes it lies in
# An instance's own, beside the dict that the stream gives for them.
ATTRIBUTES = sys.getsizeof({"name": None})
MEMO = 16  # by so many each object enlarges the unpickler's memo, which a worker's heap keeps
POOLED = 512  # what is larger lies in the heap, and leaves a hole there when it grows

LONG = 10_000  # items of a list that is worth a word
COLUMNS = 64  # keys of a dict at most, each of which may have a list
LARGE = 4_000_000  # bytes of it
LOOKED_AT = 64  # items
DEEPEST = 3  # objects in objects

CACHED = range(-5, 257)  # ints that are the same object everywhere
_PLAIN = frozenset({str, bytes, bytearray, tuple, list, frozenset, complex})
# Counted elsewhere, or there anyway.
_FREE = frozenset({int, float, bool, type(None), pickle.PickleBuffer})


def weigh(visited: Sequence[object]) -> int:
    """Return the bytes of these objects, as a worker will have made them anew.

    ``visited`` has one entry for each mention: a string or list is made once, however often it is
    mentioned, and a number each time.
    """
    kinds = Counter(map(type, visited))
    numbers = kinds[float] + kinds[int] - sum(obj in CACHED for obj in visited if type(obj) is int)
    objects = [obj for obj in visited if type(obj) not in _FREE]
    ids = np.fromiter(map(id, objects), np.int64, len(objects))
    once = np.unique(ids, return_index=True)[
        1
    ].tolist()  # a dict of a million objects would take 100 MB for a moment
    return NUMBER * numbers + sum(_size(objects[place]) for place in once)


def _size(obj: object) -> int:
    kind = type(obj)
    if kind in _PLAIN:
        size = sys.getsizeof(obj)
    elif kind is dict or kind is set:
        size = sys.getsizeof(obj)
        size += size // 2 if size > POOLED else 0  # the table that it grew out of
    elif issubclass(kind, type | ModuleType):
        # Never isinstance: a stand-in would import what it stands for.
        return 0
    elif issubclass(kind, np.ndarray):
        size = ARRAY + _in_band(cast("np.ndarray[Any, Any]", obj))
    else:
        size = kind.__basicsize__ + HEADER + (ATTRIBUTES if kind.__dictoffset__ else 0)
    return MEMO + -(-size // GRAIN) * GRAIN


def _in_band(array: np.ndarray[Any, Any]) -> int:
    """Return the bytes that are not shared by all workers."""
    return array.nbytes if array.nbytes < _buffers.LARGE or array.dtype.hasobject else 0


# ---- advice ----


def advice(dataset: object) -> str:
    """Name the largest list in a dataset, and say how workers could share it.

    "" where no list is large.
    """
    found = [(_about(items), labels, items) for labels, items in _lists(dataset, (), DEEPEST)]
    size, labels, items = max(found, key=lambda one: one[0], default=(0, (), ()))
    if size < LARGE:
        return ""
    from ringfeed.transport.unpicklable import users_path  # noqa: PLC0415 - few lists are large

    path = users_path(dataset, "dataset", labels)
    kind = "an object array" if isinstance(items, np.ndarray) else f"a {type(items).__name__}"
    return (
        f"{path}, {kind} of {len(items):,} items, is some {show_bytes(size)} in each worker that "
        f"reads it: as ringfeed.datasets.Frozen({path.removeprefix('dataset.')}) it is one copy "
        "for all"
    )


def _lists(
    obj: object, labels: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], Sequence[object]]]:
    """Yield the long lists in an object, each with the way to it.

    They are among its attributes and the columns of its dicts.

    Arrays of objects are such lists, too: a column of strings in pandas is one.
    """
    is_array = type(obj) is np.ndarray and obj.dtype.hasobject and obj.ndim == 1
    if (is_array or type(obj) in (list, tuple)) and len(cast("Sequence[object]", obj)) >= LONG:
        yield labels, cast("Sequence[object]", obj)
        return
    if not depth or isinstance(obj, type | ModuleType):
        return
    held = (
        {f"[{key!r}]": value for key, value in obj.items()}
        if type(obj) is dict and len(obj) <= COLUMNS
        else {}
    )
    held |= {f".{name}": value for name, value in getattr(obj, "__dict__", {}).items()}
    for name, value in held.items():
        yield from _lists(value, (*labels, name), depth - 1)


def _about(items: Sequence[object]) -> int:
    """Return about how many bytes a list and its items are, by some of them."""
    some = items[:: max(len(items) // LOOKED_AT, 1)]
    return sys.getsizeof(items) + len(items) * sum(_deep(item, DEEPEST) for item in some) // len(
        some
    )


def _deep(obj: object, depth: int) -> int:
    """Return the bytes of an item, of what it holds, too, where it is a structure."""
    if type(obj) is int or type(obj) is float:
        return 0 if obj in CACHED else NUMBER
    held = obj if type(obj) in (list, tuple) else obj.values() if type(obj) is dict else ()
    below = sum(_deep(item, depth - 1) for item in cast("Sequence[object]", held)) if depth else 0
    return 0 if type(obj) in _FREE else _size(obj) + below
