"""A large list without its objects: packed once into arrays, which travel to all workers as one copy.

Frozen(items) ──▶ a column of the items' kind
                    _Numbers   bools, ints, floats, NumPy's scalars     an array of them
                    _Texts     str, bytes, and what only pickle takes   bytes, and where each begins
                    _Arrays    ndarrays of one dtype                    one after the other, and where each begins
                    _Runs      lists or tuples of one kind of item      a column of these, and where each begins
                    _Rows      tuples, lists or dicts of one structure  a column for each place in it
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from ringfeed._units import show_bytes
from ringfeed.datasets.frozen_pickles import dump_all, loader_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)
DEEPEST = 8  # structures in structures; what lies deeper is pickled
_PLAIN_KEYS = frozenset({str, bytes, int, bool})  # of which equal ones of one type are the same
_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


class Frozen(Sequence[T_co]):
    """A list whose items take no memory of their own, neither here nor in workers: read-only, in a few shared arrays.

        class Pictures:
            def __init__(self, paths, labels):
                self.paths, self.labels = ringfeed.datasets.Frozen(paths), np.asarray(labels)

            def __getitem__(self, i):
                return read(self.paths[i]), self.labels[i]

    A list of a million strings has a million objects, and each process that reads it has them all: to read an object
    writes its reference count, and a forked process then gets a copy of the page. What is frozen lies in the sealed
    memory that all workers map, and an item is made when it is read, in about a microsecond for a short string.

    items: a list or another iterable of bools, ints, floats, str, bytes, NumPy's scalars and arrays, and lists, tuples
        and dicts of these; all others are pickled one by one. Items come back equal and of the same type, and arrays
        read-only unless they are pickled: those of several dtypes or shapes. Best are items of one type and structure.

    ``frozen[i]`` and ``len(frozen)`` are those of the list, ``frozen[a:b]`` is a list. TypeError for what is no such
    iterable, or holds what cannot be pickled.
    """

    __slots__ = ("_column",)

    def __init__(self, items: Iterable[T_co]) -> None:
        """Pack the items; they are not kept."""
        if isinstance(items, _Column):  # this is one that was pickled
            self._column: _Column = items
            return
        _check(items)
        self._column = _pack(items if isinstance(items, list | tuple) else [*items])

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | list[T_co]:
        """Return an item, made anew; a list of items for a slice."""
        if isinstance(index, slice):
            return [self._column.at(place) for place in range(*index.indices(len(self)))]
        place, length = operator.index(index), len(self)
        if not -length <= place < length:
            message = f"index {index} of a Frozen of {length:,} items"
            raise IndexError(message)
        item: T_co = self._column.at(place + length if place < 0 else place)
        return item

    def __iter__(self) -> Iterator[T_co]:
        """Make one item after another; an IndexError of an item's own class does not end it."""
        for place in range(len(self)):
            yield self._column.at(place)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self._column.nbytes

    def __repr__(self) -> str:
        """Return what it is, in a line."""
        return f"<Frozen of {len(self):,} items: {show_bytes(self.nbytes)}>"

    def __reduce__(self) -> Any:
        """Travel as its arrays."""
        return Frozen, (self._column,)


def _check(items: object) -> None:
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__iter__"):
        message = f"items is of type {type(items).__name__}, expected a list or another iterable of items"
        raise TypeError(message)
    if isinstance(items, np.ndarray) and not items.dtype.hasobject:
        message = "items is an array, which workers share as it is; leave it so"
        raise TypeError(message)


# ---- columns ----


class _Column:
    """Items of one kind. It is pickled as the parts that it was made of."""

    __slots__ = ("_length", "_parts")

    def __init__(self, length: int, *parts: Any) -> None:
        self._length = length
        self._parts = parts

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> Any:
        return type(self), self._parts

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(int(part.nbytes) for part in self._parts if isinstance(part, np.ndarray | _Column))

    def at(self, place: int) -> Any:
        """Return the item at a place, from 0 on."""
        raise NotImplementedError


class _Numbers(_Column):
    __slots__ = ("_items",)

    def __init__(self, array: NDArray[Any], kind: str) -> None:
        """``kind``: "plain" for Python's own numbers, "numpy"."""
        super().__init__(len(array), array, kind)
        self._items: Any = array.data if kind == "plain" else array

    def at(self, place: int) -> Any:
        return self._items[place]


_READERS: dict[str, Callable[[memoryview], Any]] = {
    "str": lambda view: str(view, "utf-8", "surrogatepass"),
    "bytes": bytes,
}


class _Texts(_Column):
    __slots__ = ("_edges", "_read", "_view")

    def __init__(
        self, data: NDArray[np.uint8], edges: NDArray[np.int64], kind: str, beside: tuple[Any, ...] = ()
    ) -> None:
        """``kind``: "str", "bytes", "pickle"; ``beside``: what the pickles refer to."""
        super().__init__(len(edges) - 1, data, edges, kind, beside)
        self._view, self._edges = data.data, edges.data
        self._read = loader_of(beside) if kind == "pickle" else _READERS[kind]

    def at(self, place: int) -> Any:
        return self._read(self._view[self._edges[place] : self._edges[place + 1]])


class _Arrays(_Column):
    __slots__ = ("_data", "_edges")

    def __init__(self, data: NDArray[Any], edges: NDArray[np.int64]) -> None:
        super().__init__(len(edges) - 1, data, edges)
        self._data, self._edges = data.view(), edges.data
        self._data.flags.writeable = False

    def at(self, place: int) -> Any:
        return self._data[self._edges[place] : self._edges[place + 1]]


class _Runs(_Column):
    __slots__ = ("_edges", "_items", "_kind")

    def __init__(self, items: _Column, edges: NDArray[np.int64], kind: type) -> None:
        super().__init__(len(edges) - 1, items, edges, kind)
        self._items, self._edges, self._kind = items, edges.data, kind

    def at(self, place: int) -> Any:
        return self._kind(map(self._items.at, range(self._edges[place], self._edges[place + 1])))


class _Rows(_Column):
    __slots__ = ("_columns", "_keys", "_kind")

    def __init__(self, kind: type, keys: tuple[Any, ...] | None, *columns: _Column) -> None:
        super().__init__(len(columns[0]), kind, keys, *columns)
        self._kind, self._keys, self._columns = kind, keys, columns

    def at(self, place: int) -> Any:
        row = [column.at(place) for column in self._columns]
        return self._kind(row if self._keys is None else zip(self._keys, row, strict=True))


# ---- packing ----


def _pack(items: Sequence[Any], depth: int = 0) -> _Column:
    kinds = set(map(type, items))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _DTYPES:
        return _plain_numbers(items, _DTYPES[kind])
    if kind is str or kind is bytes:
        return _texts(items, kind)
    if kind is np.ndarray:
        return _arrays(items)
    if kind is not None and issubclass(kind, np.number | np.bool_) and kind is not np.timedelta64:  # each has a unit
        return _Numbers(np.array(items, kind), "numpy")
    if depth < DEEPEST and kind in (list, tuple, dict):
        return _structures(items, kind, depth + 1)
    return _pickled(items)


def _plain_numbers(items: Sequence[Any], dtype: Any) -> _Column:
    try:
        return _Numbers(np.array(items, dtype), "plain")
    except OverflowError:  # of an int
        return _pickled(items)


def _texts(items: Sequence[Any], kind: type) -> _Column:
    encoded = [item.encode("utf-8", "surrogatepass") for item in items] if kind is str else items
    return _joined(encoded, kind.__name__)


def _joined(encoded: Sequence[bytes], kind: str, beside: tuple[Any, ...] = ()) -> _Column:
    data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)  # of nothing there is no buffer
    return _Texts(data, _edges(map(len, encoded)), kind, beside)


def _edges(lengths: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(accumulate(lengths, initial=0), np.int64)


def _arrays(items: Sequence[Any]) -> _Column:
    first = items[0]
    is_one_kind = all(item.dtype == first.dtype and item.shape[1:] == first.shape[1:] and item.ndim for item in items)
    if not is_one_kind or first.dtype.hasobject:
        return _pickled(items)
    edges = _edges(map(len, items))
    data = np.empty((edges[-1], *first.shape[1:]), first.dtype)  # else its byte order and padding are lost
    return _Arrays(np.concatenate(items, out=data), edges)


def _structures(items: Sequence[Any], kind: type, depth: int) -> _Column:
    """Pack lists, tuples or dicts: by their places where they are alike, else one after the other."""
    if kind is dict:
        keys = tuple(items[0])
        if not keys or not all(_has_keys(item, keys) for item in items):
            return _pickled(items)
        return _Rows(dict, keys, *(_pack([item[key] for item in items], depth) for key in keys))
    lengths = [*map(len, items)]
    if len(set(map(type, chain.from_iterable(items)))) == 1:
        return _Runs(_pack([*chain.from_iterable(items)], depth), _edges(lengths), kind)
    if len(set(lengths)) == 1 and lengths[0]:
        return _Rows(kind, None, *(_pack(column, depth) for column in zip(*items, strict=True)))
    return _pickled(items)


def _has_keys(item: dict[Any, Any], keys: tuple[Any, ...]) -> bool:
    """Whether a dict has just these keys in this order: 1 and True are equal, and not the same."""
    return tuple(item) == keys and all(map(_is_same, item, keys))


def _is_same(key: Any, other: Any) -> bool:
    return key is other or (type(key) is type(other) and type(key) in _PLAIN_KEYS)


def _pickled(items: Sequence[Any]) -> _Column:
    pickles, beside = dump_all(items)
    return _joined(pickles, "pickle", beside)
