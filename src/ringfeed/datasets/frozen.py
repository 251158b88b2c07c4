"""A large list without its objects: packed once into arrays, which travel to all workers as one copy.

Frozen(items) ──▶ a column of the items' kind
                    "plain", "numpy"            bools, ints, floats; NumPy's scalars     an array of them
                    "str", "bytes", "pickle"    what is one run of bytes                 bytes, and where each begins
                    "array"                     ndarrays of one dtype                    one after the other, likewise
                    list, tuple                 lists or tuples of one kind of item      a column of these, likewise
                    "rows"                      tuples, lists, dicts of one structure    a column for each place in it

No worker can import the main file of the user's program. So what a pickled item has of it, classes
and functions, lies beside the pickles, which refer to it by number, and travels as all else does
that a dataset has of that file.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)
DEEPEST = 8  # structures in structures; what lies deeper is pickled
_PLAIN_KEYS = frozenset({str, bytes, int, bool})  # of which equal ones of one type are the same
_MAIN = ("__main__", "__mp_main__")
_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


class Frozen(Sequence[T_co]):
    """A list whose items take no memory of their own, neither here nor in workers: read-only, in a few shared arrays.

        class Pictures:
            def __init__(self, paths, labels):
                self.paths, self.labels = ringfeed.datasets.Frozen(paths), np.asarray(labels)

            def __getitem__(self, i):
                return read(self.paths[i]), self.labels[i]

    A list of a million strings has a million objects, and each process that reads it has them all:
    to read an object writes its reference count, and a forked process then gets a copy of the page.
    What is frozen lies in the sealed memory that all workers map, and an item is made when it is
    read, in about a microsecond for a short string.

    items: a list or another iterable of bools, ints, floats, str, bytes, NumPy's scalars and
        arrays, and lists, tuples and dicts of these; all others are pickled one by one. Items come
        back equal and of the same type, and arrays read-only unless they are pickled: those of
        several dtypes or shapes. Best are items of one type and structure.

    ``frozen[i]`` and ``len(frozen)`` are those of the list, ``frozen[a:b]`` is a list. TypeError
    for what is no such iterable, or holds what cannot be pickled.
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
        return _nbytes(self._column)

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
    """Items of one kind, as the arrays and the columns that they are made of."""

    kind: Any
    length: int
    parts: tuple[Any, ...]


_READS: dict[str, Callable[[memoryview], Any]] = {
    "str": lambda view: str(view, "utf-8", "surrogatepass"),
    "bytes": bytes,
    "pickle": pickle.loads,
}


def _reader(column: _Column) -> Callable[[int], Any]:
    """Return what makes the item at a place, from 0 on."""
    kind, _, (first, *parts) = column
    if kind == "plain":
        return first.data.__getitem__  # type: ignore[no-any-return]
    if kind == "numpy":
        return first.__getitem__  # type: ignore[no-any-return]
    if kind == "rows":
        return _row_reader(first, *parts)
    edges = parts[0].data
    if kind == "array":
        data = first.view()
        data.flags.writeable = False
        return lambda place: data[edges[place] : edges[place + 1]]
    if isinstance(kind, type):
        at = _reader(first)
        return lambda place: kind(map(at, range(edges[place], edges[place + 1])))
    view, read = first.data, partial(_load, parts[1]) if len(parts) > 1 else _READS[kind]
    return lambda place: read(view[edges[place] : edges[place + 1]])


def _row_reader(
    kind: type, keys: tuple[Any, ...] | None, *columns: _Column
) -> Callable[[int], Any]:
    ats = [*map(_reader, columns)]

    def row(place: int) -> Any:
        made = [at(place) for at in ats]
        return kind(made if keys is None else zip(keys, made, strict=True))

    return row


def _nbytes(part: Any) -> int:
    if isinstance(part, _Column):
        return sum(map(_nbytes, part.parts))
    return int(part.nbytes) if isinstance(part, np.ndarray) else 0


# ---- packing ----


def _pack(items: Sequence[Any], depth: int = 0) -> _Column:
    kinds = set(map(type, items))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _DTYPES:
        with suppress(OverflowError):  # of an int: it is pickled
            return _Column("plain", len(items), (np.array(items, _DTYPES[kind]),))
    if kind is str or kind is bytes:
        encoded = (
            [item.encode("utf-8", "surrogatepass") for item in items] if kind is str else items
        )
        return _joined(encoded, kind.__name__)
    if kind is np.ndarray:
        return _arrays(items)
    if (
        kind is not None and issubclass(kind, np.number | np.bool_) and kind is not np.timedelta64
    ):  # each has a unit
        return _Column("numpy", len(items), (np.array(items, kind),))
    if depth < DEEPEST and kind in (list, tuple, dict):
        return _structures(items, kind, depth + 1)
    return _pickled(items)


def _joined(encoded: Sequence[bytes], kind: str, *beside: Any) -> _Column:
    data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)  # of nothing there is no buffer
    return _Column(kind, len(encoded), (data, _edges(map(len, encoded)), *beside))


def _edges(lengths: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(accumulate(lengths, initial=0), np.int64)


def _arrays(items: Sequence[Any]) -> _Column:
    first = items[0]
    is_one_kind = all(
        item.dtype == first.dtype and item.shape[1:] == first.shape[1:] and item.ndim
        for item in items
    )
    if not is_one_kind or first.dtype.hasobject:
        return _pickled(items)
    edges = _edges(map(len, items))
    data = np.empty(
        (edges[-1], *first.shape[1:]), first.dtype
    )  # else its byte order and padding are lost
    return _Column("array", len(items), (np.concatenate(items, out=data), edges))


def _structures(items: Sequence[Any], kind: type, depth: int) -> _Column:
    """Pack lists, tuples or dicts: by their places where they are alike, else one after the other."""
    if kind is dict:
        keys = tuple(items[0])
        if not keys or not all(_has_keys(item, keys) for item in items):
            return _pickled(items)
        columns = (_pack([item[key] for item in items], depth) for key in keys)
        return _Column("rows", len(items), (dict, keys, *columns))
    lengths = [*map(len, items)]
    if len(set(map(type, chain.from_iterable(items)))) == 1:
        return _Column(
            kind, len(items), (_pack([*chain.from_iterable(items)], depth), _edges(lengths))
        )
    if len(set(lengths)) == 1 and lengths[0]:
        columns = (_pack(column, depth) for column in zip(*items, strict=True))
        return _Column("rows", len(items), (kind, None, *columns))
    return _pickled(items)


def _has_keys(item: dict[Any, Any], keys: tuple[Any, ...]) -> bool:
    """Whether a dict has just these keys in this order: 1 and True are equal, and not the same."""
    return tuple(item) == keys and all(map(_is_same, item, keys))


def _is_same(key: Any, other: Any) -> bool:
    return key is other or (type(key) is type(other) and type(key) in _PLAIN_KEYS)


# ---- what only pickle takes ----


def _pickled(items: Sequence[Any]) -> _Column:
    """Pickle each item for itself; TypeError for one that pickle refuses."""
    numbers: dict[Any, int] = {}
    pickles = [_dumped(place, item, numbers) for place, item in enumerate(items)]
    return _joined(pickles, "pickle", *([tuple(numbers)] if numbers else []))


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: dict[Any, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of what is of the main file; None: pickle refers to it itself."""
        is_named = issubclass(type(obj), type) or type(obj) is FunctionType
        if not is_named or getattr(obj, "__module__", None) not in _MAIN:
            return None
        return self._numbers.setdefault(obj, len(self._numbers))


class _Unpickler(pickle.Unpickler):
    def __init__(self, view: memoryview, beside: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(view))
        self._beside = beside

    def persistent_load(self, pid: Any) -> Any:
        return self._beside[pid]


def _dumped(place: int, item: object, numbers: dict[Any, int]) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, numbers).dump(item)
    except Exception as error:
        raise TypeError(
            f"items[{place}] is of type {type(item).__name__}, which cannot be pickled ({error}); "
            "expected str, bytes, numbers, arrays, structures of them, or what pickle takes"
        ) from error
    return file.getvalue()


def _load(beside: Sequence[Any], view: memoryview) -> Any:
    return _Unpickler(view, beside).load()
