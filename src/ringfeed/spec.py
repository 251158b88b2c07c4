"""What one sample of a dataset looks like, and whether a value fits.

Containers are structure, all else is a leaf: ``[1, 2, 3]`` is a list of three int64 leaves, not an array.
Every refusal is a SpecError that says where, what came, what was expected and what to do.
"""

from __future__ import annotations

import math
import operator
from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, SupportsIndex, TypeAlias, TypeGuard

import numpy as np

from ringfeed.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

MAX_BYTES = 2**62  # of one leaf, so that a signed 64-bit integer counts them with room to spare
MAX_AXES = 32  # as many as the writer of slots describes
MAX_LEAVES, MAX_DEPTH = 1000, 64
MAX_SHOWN_BITS = 128  # of an int in an error: Python refuses to print ints of thousands of digits
MAX_SHOWN = 220  # characters of each part of an error, so that it is whole when it comes from a worker
USER_DTYPE = 2  # what dtype.isbuiltin is for dtypes that others registered, such as bfloat16
CONTAINERS = (tuple, list, dict)

Node: TypeAlias = tuple[Any, ...]  # see Spec.structure
AnyDtype: TypeAlias = "np.dtype[Any]"
AnyArray: TypeAlias = "np.ndarray[Any, AnyDtype]"
Form: TypeAlias = "tuple[tuple[int, ...], AnyDtype]"  # shape and dtype of one sample of a leaf


class Leaf(NamedTuple):
    """One leaf of a spec: where it stands, its shape and dtype, and the bytes of ONE sample of it."""

    path: str
    shape: tuple[int, ...]
    dtype: AnyDtype
    nbytes: int


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Array:
    """Shape and dtype of one array of a sample, as in ``Array((224, 224, 3), "uint8")``.

    ``dtype`` is anything that ``np.dtype`` takes, byte order included, except None. Refused with SpecError:
    dtypes that hold Python objects or have no width, negative axes, more than 32 axes or 2**62 bytes.
    """

    shape: tuple[int, ...]
    dtype: AnyDtype

    def __init__(self, shape: Sequence[SupportsIndex], dtype: npt.DTypeLike) -> None:
        try:
            axes = tuple(operator.index(axis) for axis in shape)
            found = np.dtype(dtype or object)  # np.dtype(None) would be float64
        except (TypeError, ValueError, SyntaxError):
            got, remedy = f"has shape {shape!r} and dtype {dtype!r}", "write it as ((224, 224, 3), 'uint8')"
            raise _error("Array", got, "a tuple of ints and what np.dtype takes", remedy) from None
        _check_array(axes, found, "Array")
        object.__setattr__(self, "shape", axes)
        object.__setattr__(self, "dtype", found)

    def __repr__(self) -> str:
        name = str(self.dtype)
        return f"Array({self.shape}, {name if self.dtype.names else repr(name)})"


def _error(where: str, got: str, expected: object, remedy: str) -> SpecError:
    parts = where, got, str(expected)
    where, got, expected = [part if len(part) <= MAX_SHOWN else f"{part[:90]} ... {part[-90:]}" for part in parts]
    return SpecError(f"{where} {got}, expected {expected}; {remedy}")


def _check_array(shape: tuple[int, ...], dtype: AnyDtype, where: str) -> None:
    if dtype.hasobject or dtype.subdtype is not None or not dtype.itemsize:
        expected = "one of fixed width, without Python objects and without a shape of its own"
        raise _error(where, f"has dtype {dtype}", expected, "choose one such as 'uint8' or 'S16'")
    if len(shape) > MAX_AXES:
        raise _error(where, f"has {len(shape)} axes", f"at most {MAX_AXES}", "merge some with reshape")
    # Of absolute values, and before a shape is printed, for the reason of MAX_SHOWN_BITS.
    if math.prod(abs(axis) or 1 for axis in shape) * dtype.itemsize > MAX_BYTES:
        raise _error(where, "has more than 2**62 bytes", "a shape that fits in memory", "make it smaller")
    if any(axis < 0 for axis in shape):
        raise _error(where, f"has shape {shape}", "axes of 0 or more", "write every axis out")


# --- Values: from what a dataset returns to ndarrays ---

_KINDS = {  # of Python numbers: the dtype inferred for one, and where it may go
    bool: (np.dtype("bool"), "bool only"),
    int: (np.dtype("int64"), "an integer or float dtype that holds it exactly"),
    float: (np.dtype("float32"), "float32 or float64, if it is in range"),
}


def _is_number(value: object) -> TypeGuard[float]:
    # NumPy scalars such as np.float64 are floats too, but have a dtype of their own and keep it.
    return isinstance(value, (int, float)) and not isinstance(value, np.generic)


def _may_go(value: float, dtype: AnyDtype) -> bool:
    if isinstance(value, bool):
        return dtype.kind == "b"
    if isinstance(value, float):
        return dtype.kind == "f" and dtype.itemsize in {4, 8}
    return dtype.kind in "iuf" or dtype.isbuiltin == USER_DTYPE


def _from_number(value: float, dtype: AnyDtype | None, where: str) -> AnyArray:
    """Return a number as an array of the dtype (None: the one inferred); only a float may be rounded."""
    kind = next(kind for kind in _KINDS if isinstance(value, kind))
    inferred, goes_into = _KINDS[kind]
    dtype = inferred if dtype is None else dtype
    if _may_go(value, dtype):
        # Out of range means one of these errors or another value, as each dtype likes.
        with suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
            found = np.array(value, dtype)
            kept = np.isinf(found) <= math.isinf(value) if kind is float else int(found) == value
            if kept:
                return found
    bits = value.bit_length() if isinstance(value, int) else 0
    got = f"is an int of {bits} bits" if bits > MAX_SHOWN_BITS else f"is the {kind.__name__} {value!r}"
    remedy = "convert it in __getitem__, or give another dtype in spec="
    rule = f"a Python {kind.__name__} goes into {goes_into}"
    raise _error(where, got, f"a value for dtype {dtype}", f"{rule}: {remedy}")


def _from_array(value: object, where: str) -> AnyArray | None:
    """Return an array or array-like as a plain ndarray, sharing memory if it can; None for other types."""
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        raise _error(where, "is a masked array", "a plain array", "return value.filled(...) in its place")
    # Asked of the type, because a PIL image converts its picture when it is asked itself.
    protocols = ("__array__", "__array_interface__", "__array_struct__")
    if isinstance(value, CONTAINERS) or not any(hasattr(type(value), name) for name in protocols):
        return None
    try:
        return np.asarray(value)
    except Exception as error:
        got = f"is {_shown(value)}, whose conversion raised {type(error).__name__}: {error}"
        raise _error(where, got, "an array", "return a NumPy array from __getitem__") from error


def _with_rows(value: object, where: str) -> AnyArray:
    found = None if _is_number(value) else _from_array(value, where)
    if found is None or not found.ndim:
        got = f"is {_shown(value)}" if found is None else "has shape ()"
        remedy = "return whole batches of arrays, or set batch_size for a dataset of single samples"
        raise _error(where, got, "an array with a leading row axis", remedy)
    return found


def _rows_error(rows: int, expected: int, where: str) -> SpecError:
    remedy = "give all leaves of a batch the same number of rows"
    return _error(where, f"has {rows} rows", f"{expected} as in the leaves before it", remedy)


def _matching(found: AnyArray, shape: tuple[int, ...], leaf: Leaf, where: str) -> AnyArray:
    """Return what was found if its dtype and ``shape``, that of one sample, are the leaf's."""
    if found.dtype != leaf.dtype:
        remedy = "convert it in __getitem__, or give this dtype in spec="
        raise _error(where, f"has dtype {found.dtype}", leaf.dtype, remedy)
    if shape != leaf.shape:
        got = f"has {'rows of ' if found.ndim > len(shape) else ''}shape {shape}"
        remedy = "every sample must have the shape of the spec: crop, pad or resize it in __getitem__"
        raise _error(where, got, leaf.shape, remedy)
    return found


def _inferred(value: object, where: str) -> Form:
    found = _from_number(value, None, where) if _is_number(value) else _from_array(value, where)
    if found is None:
        expected = "an array or number, or a tuple, list or dict of them"
        raise _error(where, f"is {_shown(value)}", expected, "return one of these from __getitem__")
    return found.shape, found.dtype


def _given(value: object, where: str) -> Form:
    if not isinstance(value, Array):
        expected = "a ringfeed.Array or a tuple, list or dict of them"
        raise _error(where, f"is {_shown(value)}", expected, "write it as in Array((224, 224, 3), 'uint8')")
    return value.shape, value.dtype


# --- Structure: from nested containers to nodes, and back ---


def _fields(value: object) -> tuple[str, ...] | None:
    """Return the field names of a NamedTuple, None for anything else."""
    fields = getattr(value, "_fields", None) if isinstance(value, tuple) and hasattr(value, "_make") else None
    return fields if isinstance(fields, tuple) and len(fields) == len(value) else None  # type: ignore[arg-type]


def _shown(value: object) -> str:
    """Say what a value is; containers are shown alike exactly if they match, but for the keys of dicts."""
    if (fields := _fields(value)) is not None:
        return f"the NamedTuple {type(value).__name__}({', '.join(map(str, fields))})"
    if isinstance(value, (tuple, list)):
        return f"a {'tuple' if isinstance(value, tuple) else 'list'} of {len(value)}"
    if isinstance(value, dict):
        return "a dict"
    return "None" if value is None else f"of type {type(value).__name__}"


def _parts(value: Any, where: str) -> list[tuple[str, object]]:
    """Return the children of a container, each with where it stands; of an endless __iter__, one too many."""
    if isinstance(value, dict):
        return [(f"{where}[{key!r}]", child) for key, child in value.items()]
    if (fields := _fields(value)) is not None:
        return [(f"{where}.{name}", child) for name, child in zip(fields, value, strict=True)]
    return [(f"{where}[{number}]", child) for number, child in zip(range(len(value) + 1), value, strict=False)]


class _Scan:
    """One walk over a sample, a batch or a tree of Arrays: its structure, and an Array per leaf."""

    def __init__(self, root: str, value: object, look: Callable[[Any, str], Form]) -> None:
        self.root, self.look = root, look
        self.arrays: list[Array] = []
        self.paths: list[str] = []  # without the root
        self.structure = self.walk(value, root, ())
        if not self.arrays:
            raise _error(root, "has no leaves", "at least one array or number", "put something into it")
        self.tree: Any = _rebuilder(self.structure)(self.arrays)

    def walk(self, value: Any, where: str, above: tuple[int, ...]) -> Node:
        leaf = not isinstance(value, CONTAINERS)
        leaves = len(self.arrays) + (1 if leaf else len(value))
        if id(value) in above:
            raise _error(where, "contains itself", "a finite structure", "take the cycle out")
        if len(above) > MAX_DEPTH:
            raise _error(where, "is nested too deep", f"at most {MAX_DEPTH} levels", "flatten it")
        if leaves > MAX_LEAVES:
            remedy = "make one array of a list of numbers with np.asarray"
            raise _error(where, f"brings the leaves to {leaves}", f"at most {MAX_LEAVES}", remedy)
        if leaf:
            return self.leaf(value, where)
        children = [self.walk(child, path, (*above, id(value))) for path, child in _parts(value, where)]
        if isinstance(value, (dict, list)):
            return ("dict", list(value), children) if isinstance(value, dict) else ("list", children)
        return ("tuple", None if _fields(value) is None else type(value), children)

    def leaf(self, value: object, where: str) -> Node:
        shape, dtype = self.look(value, where)
        _check_array(shape, dtype, where)
        self.arrays.append(Array(shape, dtype))
        self.paths.append(where.removeprefix(self.root))
        return ("leaf", len(self.arrays) - 1)


def _gather(model: Any, value: Any, where: str, leaves: list[object]) -> None:
    """Append the leaves of a value to ``leaves``, in the order of the tree of Arrays ``model``."""
    if isinstance(model, Array):
        leaves.append(value)
        return
    if _shown(value) != (expected := _shown(model)):
        raise _error(where, f"is {_shown(value)}", expected, "return the same structure for every index")
    if isinstance(model, dict):
        _check_keys(model, value, where)
        value = {key: value[key] for key in model}
    if len(below := _parts(model, "")) != len(parts := _parts(value, where)):
        raise _error(where, f"is {expected}, but its __iter__ gives others", "as many", "return a plain list or tuple")
    for (_, inner), (path, child) in zip(below, parts, strict=True):
        _gather(inner, child, path, leaves)


def _check_keys(model: dict[Any, object], value: dict[Any, object], where: str) -> None:
    lacks, also = [key for key in model if key not in value], [key for key in value if key not in model]
    if got := " and ".join([f"lacks {lacks}"] * bool(lacks) + [f"has also {also}"] * bool(also)):
        raise _error(where, got, f"the keys {list(model)}", "return the same keys for every index")


def _wrapper(node: Node) -> Callable[[Any], object]:
    """Return the function that makes the node's container of its children."""
    if node[0] == "dict":
        return lambda children: dict(zip(node[1], children, strict=True))
    return list if node[0] == "list" else tuple if node[1] is None else node[1]._make


def _rebuilder(node: Node) -> Callable[[Any], object]:
    """Return the function that makes the node's value of all leaves of the spec."""
    if node[0] == "leaf":
        return operator.itemgetter(node[1])
    wrap, parts = _wrapper(node), [_rebuilder(child) for child in node[-1]]
    return lambda leaves: wrap([part(leaves) for part in parts])


def _renamed(node: Node, to: Callable[[Any], object]) -> Node:
    """Return the node with each NamedTuple class replaced by what ``to`` makes of it."""
    if node[0] == "leaf":
        return node
    label = [to(part) if node[0] == "tuple" and part is not None else part for part in node[1:-1]]
    return (node[0], *label, [_renamed(child, to) for child in node[-1]])


def _restore(structure: Node, arrays: tuple[Array, ...]) -> Spec:
    # Made anew, because a worker cannot import a class of the user's main module.
    named = _renamed(structure, lambda label: namedtuple(*label, rename=True))  # noqa: PYI024
    return Spec(_rebuilder(named)(arrays))


class Spec:
    """The structure of one sample, and shape and dtype of each of its leaves.

    tree        the Arrays in the sample's structure
    leaves      the Leafs, depth first; dicts in the order of their keys
    structure   the same for compilers: ("leaf", number) | ("tuple", class or None, children) |
                ("list", children) | ("dict", keys, children)

    Equal are Specs of equal structure, order of leaves, shapes and dtypes; NamedTuples by name and fields.
    """

    __slots__ = ("_key", "_rebuild", "leaves", "structure", "tree")

    def __init__(self, tree: object) -> None:
        """Take an Array or a nested tuple, list, dict or NamedTuple of Arrays; refuse the rest."""
        scan = _Scan("spec", tree, _given)
        self.tree, self.structure = scan.tree, scan.structure
        self.leaves = tuple(
            Leaf(f"sample{path}", array.shape, array.dtype, math.prod(array.shape) * array.dtype.itemsize)
            for path, array in zip(scan.paths, scan.arrays, strict=True)
        )
        flat = scan.structure[-1] == [("leaf", number) for number in range(len(scan.arrays))]
        self._rebuild = (_wrapper if flat else _rebuilder)(scan.structure)
        self._key = _renamed(scan.structure, lambda cls: (cls.__name__, cls._fields)), tuple(scan.arrays)

    @classmethod
    def infer(cls, sample: object, index: int) -> Spec:
        """Return the spec of one sample, ``dataset[index]``."""
        return cls(_Scan(f"dataset[{index}]: sample", sample, _inferred).tree)

    @classmethod
    def infer_batch(cls, batch: object, index: int) -> tuple[Spec, int]:
        """Return the spec of one sample of a whole batch, ``dataset[index]``, and the batch's rows."""
        rows: list[int] = []

        def look(value: object, where: str) -> Form:
            found = _with_rows(value, where)
            rows.append(len(found))
            if len(found) != rows[0]:
                raise _rows_error(len(found), rows[0], where)
            return found.shape[1:], found.dtype

        return cls(_Scan(f"dataset[{index}]: batch", batch, look).tree), rows[0]

    def flatten(self, sample: object, index: int, root: str = "sample") -> list[object]:
        """Return the leaves of a sample (``root``: or "batch") in order; only the structure is checked."""
        leaves: list[object] = []
        _gather(self.tree, sample, f"dataset[{index}]: {root}", leaves)
        return leaves

    def unflatten(self, leaves: Sequence[object]) -> Any:
        """Return the sample's structure around new leaves, one for each of ``leaves`` (not checked)."""
        return self._rebuild(leaves)

    def array(self, number: int, value: object, index: int) -> AnyArray:
        """Return a value for leaf ``number`` as an array of its very dtype and shape, of any strides."""
        leaf = self.leaves[number]
        where = f"dataset[{index}]: {leaf.path}"
        if not leaf.shape and _is_number(value):
            return _from_number(value, leaf.dtype, where)
        found = _from_array(value, where)
        if found is None:
            expected = f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
            raise _error(where, f"is {_shown(value)}", expected, "make it one in __getitem__")
        return _matching(found, found.shape, leaf, where)

    def batch_array(self, number: int, value: object, index: int, max_rows: int) -> AnyArray:
        """Return the same of a whole batch: with a leading row axis of 0 to ``max_rows`` rows."""
        leaf = self.leaves[number]
        where = f"dataset[{index}]: {leaf.path.replace('sample', 'batch', 1)}"
        found = _with_rows(value, where)
        if len(found) > max_rows:
            remedy = "return smaller batches, or raise max_batch_size"
            raise _error(where, f"has {len(found)} rows", f"at most {max_rows}", remedy)
        return _matching(found, found.shape[1:], leaf, where)

    def batch_rows(self, number: int, rows: int, expected: int, index: int) -> NoReturn:
        """Refuse leaf ``number`` of a whole batch for having other rows than the leaves before it."""
        path = self.leaves[number].path.replace("sample", "batch", 1)
        raise _rows_error(rows, expected, f"dataset[{index}]: {path}")

    def __reduce__(self) -> tuple[Callable[..., Spec], tuple[Node, tuple[Array, ...]]]:
        """Pickle without the NamedTuple classes; classes of the same name and fields come back."""
        return _restore, self._key

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key[1])

    def __repr__(self) -> str:
        return f"Spec({self.tree!r})"
