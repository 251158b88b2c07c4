"""A large list without its objects: it is packed into arrays, and all workers share one copy.

Frozen(items) ──▶ a column of the items' kind
    "plain", "numpy"            bools, ints, floats; NumPy's scalars     an array of them
    "str", "bytes", "pickle"    each item is a run of bytes              all bytes, and their edges
    "array"                     ndarrays of one dtype                    joined, and their edges

No worker can import the main file of the user's program. So what a pickled item has of it, classes
and functions, lies beside the pickles, which refer to it by number, and travels as all else does
that a dataset has of that file.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from functools import partial
from itertools import accumulate
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)
_MAIN = ("__main__", "__mp_main__")
_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


class Frozen(Sequence[T_co]):
    """A read-only list in a few shared arrays, without Python objects.

        class Pictures:
            def __init__(self, paths, labels):
                self.paths, self.labels = ringfeed.datasets.Frozen(paths), np.asarray(labels)

            def __getitem__(self, i):
                return read(self.paths[i]), self.labels[i]

    A list of a million strings has a million objects, and each process that reads them gets its own
    copy, also after a fork, since reading an object writes its reference count. All workers share
    the arrays of a Frozen; an item is made when it is read, in about a microsecond for a short
    string.

    items: a list or another iterable of any items. Items of one type take the least memory: bools,
        ints, floats, str, bytes, NumPy's scalars, and arrays of one dtype that differ only in their
        first axis; such arrays come back read-only. All others, such as tuples and dicts, are
        pickled one by one. Items come back equal and of the same type.

    ``frozen[i]`` and ``len(frozen)`` are those of the list, ``frozen[a:b]`` is a list. TypeError
    if ``items`` is no such iterable, or an item cannot be pickled.
    """

    __slots__ = ("_at", "_column")

    def __init__(self, items: Iterable[T_co]) -> None:
        """Pack the items; they are not kept."""
        if isinstance(items, _Column):  # this is one that was pickled
            self._column: _Column = items
        else:
            _check(items)
            self._column = _pack(items if isinstance(items, list | tuple) else [*items])
        self._at = _reader(self._column)

    def __len__(self) -> int:
        return self._column.length

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | list[T_co]:
        """Return an item, made anew; a list of items for a slice."""
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        place, length = operator.index(index), len(self)
        if not -length <= place < length:
            raise IndexError(f"index {index} of a Frozen of {length:,} items")
        item: T_co = self._at(place + length if place < 0 else place)
        return item

    def __iter__(self) -> Iterator[T_co]:
        """Make one item after another; an IndexError of an item's own class does not end it."""
        for place in range(len(self)):
            yield self._at(place)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        edges = self._column.edges
        return self._column.data.nbytes + (0 if edges is None else edges.nbytes)

    def __repr__(self) -> str:
        """Return what it is, in a line."""
        return f"<Frozen of {len(self):,} items: {show_bytes(self.nbytes)}>"

    def __reduce__(self) -> Any:
        """Travel as its arrays."""
        return Frozen, (self._column,)


def _check(items: object) -> None:
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__iter__"):
        raise TypeError(
            f"items is of type {type(items).__name__}, expected a list or another iterable of items"
        )
    if isinstance(items, np.ndarray) and not items.dtype.hasobject:
        raise TypeError("items is an array, which workers share as it is; leave it so")


# ---- columns ----


class _Column(NamedTuple):
    """Items of one kind in arrays: all in ``data``, and where each begins in ``edges``."""

    kind: str
    data: NDArray[Any]
    edges: NDArray[np.int64] | None = None  # None: each item is one element
    beside: tuple[Any, ...] = ()  # what pickles refer to by number

    @property
    def length(self) -> int:
        return len(self.data) if self.edges is None else len(self.edges) - 1


_READS: dict[str, Callable[[memoryview], Any]] = {
    "str": lambda view: str(view, "utf-8", "surrogatepass"),
    "bytes": bytes,
    "pickle": pickle.loads,
}


def _reader(column: _Column) -> Callable[[int], Any]:
    """Return what makes the item at a place, from 0 on."""
    kind, data, edges, beside = column
    if edges is None:
        return (data.data if kind == "plain" else data).__getitem__
    at = edges.data
    if kind == "array":
        rows = data.view()
        rows.flags.writeable = False
        return lambda place: rows[at[place] : at[place + 1]]
    view, read = data.data, partial(_load, beside) if beside else _READS[kind]
    return lambda place: read(view[at[place] : at[place + 1]])


# ---- packing ----


def _pack(items: Sequence[Any]) -> _Column:
    kinds = set(map(type, items))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _DTYPES:
        with suppress(OverflowError):  # of an int: it is pickled
            return _Column("plain", np.array(items, _DTYPES[kind]))
    if kind is str:
        return _joined([item.encode("utf-8", "surrogatepass") for item in items], "str")
    if kind is bytes:
        return _joined(items, "bytes")
    if kind is np.ndarray and _are_alike(items):
        edges = _edges(items)
        # Made first: concatenate() alone would lose the byte order and the padding of the dtype.
        data = np.empty((edges[-1], *items[0].shape[1:]), items[0].dtype)
        return _Column("array", np.concatenate(items, out=data), edges)
    # Each timedelta64 has a unit of its own.
    if kind and kind is not np.timedelta64 and issubclass(kind, np.number | np.bool_):
        return _Column("numpy", np.array(items, kind))
    return _pickled(items)


def _are_alike(arrays: Sequence[NDArray[Any]]) -> bool:
    """Whether arrays differ in their first axis alone, and hold no objects."""
    kinds = {(array.dtype, array.shape[1:], array.ndim) for array in arrays}
    return len(kinds) == 1 and arrays[0].ndim > 0 and not arrays[0].dtype.hasobject


def _joined(encoded: Sequence[bytes], kind: str, beside: tuple[Any, ...] = ()) -> _Column:
    data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)  # of nothing there is no buffer
    return _Column(kind, data, _edges(encoded), beside)


def _edges(parts: Iterable[Sized]) -> NDArray[np.int64]:
    return np.fromiter(accumulate(map(len, parts), initial=0), np.int64)


# ---- what only pickle takes ----


def _pickled(items: Sequence[Any]) -> _Column:
    """Pickle each item for itself; TypeError for one that pickle refuses."""
    numbers: dict[Any, int] = {}
    pickles = [_dumped(place, item, numbers) for place, item in enumerate(items)]
    return _joined(pickles, "pickle", tuple(numbers))


def _number_of(numbers: dict[Any, int], obj: Any) -> int | None:
    """Return the number of what is of the main file; None: pickle refers to it itself."""
    is_named = issubclass(type(obj), type) or type(obj) is FunctionType
    if not is_named or getattr(obj, "__module__", None) not in _MAIN:
        return None
    return numbers.setdefault(obj, len(numbers))


class _Pickler(pickle.Pickler):
    """One that can be told of persistent ids: Python 3.13.0 refuses that for pickle's own."""


class _Unpickler(pickle.Unpickler):
    """See `_Pickler`."""


def _dumped(place: int, item: object, numbers: dict[Any, int]) -> bytes:
    file = io.BytesIO()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = partial(_number_of, numbers)  # type: ignore[method-assign]
    try:
        pickler.dump(item)
    except Exception as error:
        raise TypeError(
            f"items[{place}] is of type {type(item).__name__}, which cannot be pickled ({error}); "
            "expected str, bytes, numbers, arrays, structures of them, or what pickle takes"
        ) from error
    return file.getvalue()


def _load(beside: Sequence[Any], view: memoryview) -> Any:
    unpickler = _Unpickler(io.BytesIO(view))
    unpickler.persistent_load = beside.__getitem__  # type: ignore[method-assign]
    return unpickler.load()
