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
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._units import show_bytes
from ringfeed.transport import arrays as _buffers
from ringfeed.transport.pickler import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.transport.references import Parts

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
LARGE = 4_000_000  # bytes of it
LOOKED_AT = 64  # items
MAX_OBJECTS = 1000  # of a dataset, looked at for a list

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
    # A dict of a million objects would take 100 MB for a moment.
    once = np.unique(ids, return_index=True)[1].tolist()
    return NUMBER * numbers + sum(_size(objects[place]) for place in once)


def _size(obj: Any) -> int:
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
        in_band = obj.nbytes < _buffers.LARGE or obj.dtype.hasobject
        size = ARRAY + (obj.nbytes if in_band else 0)  # all workers share the others
    else:
        size = kind.__basicsize__ + HEADER + (ATTRIBUTES if kind.__dictoffset__ else 0)
    return MEMO + -(-size // GRAIN) * GRAIN


# ---- advice ----


def advice(dataset: object, unpickled: int = sys.maxsize) -> str:
    """Name the largest list in a dataset, and say how workers could share it.

    "" where no list is large; ``unpickled``: what the dataset takes, if that is known.
    """
    if unpickled < LARGE:
        return ""
    from ringfeed.transport.references import walk  # noqa: PLC0415 - most datasets are small
    from ringfeed.transport.unpicklable import users_path  # noqa: PLC0415 - likewise

    near = walk(dataset, _near_parts, MAX_OBJECTS)
    found = [(_about(part), steps, part) for steps, part, _ in near if _is_long(part)]
    size, steps, items = max(found, key=lambda one: one[0], default=(0, (), ()))
    if size < LARGE:
        return ""
    path = users_path(dataset, "dataset", steps)
    kind = "an object array" if isinstance(items, np.ndarray) else f"a {type(items).__name__}"
    return (
        f"{path}, {kind} of {len(items):,} items, is some {show_bytes(size)} in each worker that "
        f"reads it: as ringfeed.datasets.Frozen({path.removeprefix('dataset.')}) it is one copy "
        "for all"
    )


def _is_long(obj: Any) -> bool:
    """Whether an object is a long list; an array of objects, as pandas has of strings, is one."""
    is_array = type(obj) is np.ndarray and obj.dtype.hasobject and obj.ndim == 1
    return (is_array or type(obj) in (list, tuple)) and len(obj) >= LONG


def _near_parts(obj: Any) -> Parts:
    """Return what an object holds, but for a long list, a class or a function."""
    from ringfeed.transport.references import held  # noqa: PLC0415 - as above

    return () if _is_long(obj) or issubclass(type(obj), type | FunctionType) else held(obj)


def _about(items: Any) -> int:
    """Return about how many bytes a list and its items are, by some of them."""
    first, *others = items[:: len(items) // LOOKED_AT]
    try:
        # Less the first one, with which come the classes of all.
        size = _weight([first, *others]) - _weight([first])
    except Exception:  # noqa: BLE001 - of items that cannot be pickled; forked workers have them
        return 0
    return sys.getsizeof(items) + len(items) * size // len(others)


def _weight(items: list[object]) -> int:
    return weigh(dump(items, watch=True).visited[1:])  # without the list
