"""What one sample of a dataset looks like: the structure around its leaves, and what each of them is.

Containers are structure, all else is a leaf: ``[1, 2, 3]`` is a list of three int64 leaves, not an
array. None in a container stays None in every batch, and is no leaf.
"""

from __future__ import annotations

import math
from collections import namedtuple
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ringfeed._checks import error_of
from ringfeed._classes import class_names
from ringfeed.spec.array import (
    CONTAINERS,
    AnyArray,
    AnyDtype,
    Array,
    Leaf,
    check_array,
    fields_of,
    matching,
    shown,
)
from ringfeed.spec.nodes import Node, gather, parts_of, rebuilder, renamed, wrapper
from ringfeed.spec.values import (
    SKIPS_NONE,
    as_given,
    from_array,
    from_number,
    is_many_numbers,
    is_number,
    plain,
    way_out,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["AnyArray", "AnyDtype", "Array", "Leaf", "Spec"]

MAX_LEAVES, MAX_DEPTH = 1000, 64
OF_SAMPLES = (
    "return whole batches of arrays, or set batch_size= or batch_sampler= for a dataset of single "
    "samples"
)
_NONE = "tensorflow.NoneTensorSpec"


def _array_of(found: AnyArray, shape: tuple[int, ...], where: str) -> Array:
    if found.dtype.hasobject:
        from ringfeed.spec.refusals import of_objects  # noqa: PLC0415 - only where it is needed

        raise error_of(
            where, f"has dtype {found.dtype}", "one without Python objects", of_objects(found)
        )
    check_array(shape, found.dtype, where)
    return Array(shape, found.dtype)


def _inferred(value: object, where: str) -> Array:
    if isinstance(value, (str, bytes, bytearray, memoryview)) and not isinstance(value, np.generic):
        from ringfeed.spec.strings import proposed  # noqa: PLC0415 - only where it is needed

        return proposed(value)
    found = from_number(value, None, where) if is_number(value) else from_array(value, where)
    if found is None:
        expected = "an array or number, or a tuple, list or dict of them"
        remedy = "return one of these from __getitem__"
        if value is None:
            remedy += f"; {SKIPS_NONE}"
        raise error_of(where, f"is {shown(value)}", expected, way_out(value) or remedy)
    return _array_of(found, found.shape, where)


def _with_rows(value: object, where: str, found: AnyArray | None = None) -> AnyArray:
    """Return a leaf of a whole batch as an array, or refuse it; ``found``: what it is known to be."""
    if found is None and not is_number(value):
        found = from_array(value, where)
    if found is None or not found.ndim:
        got = f"is {shown(value)}" if found is None else "has shape ()"
        raise error_of(where, got, "an array with a leading row axis", way_out(value) or OF_SAMPLES)
    return found


def _from_list(value: object, leaf: Leaf, max_rows: int, where: str) -> AnyArray | None:
    """Return a list of rows as one array; None for anything else."""
    if not isinstance(value, list | tuple):
        return None
    from ringfeed.spec.coerced_arrays import from_list  # noqa: PLC0415 - only where it is needed

    return from_list(value, leaf, (max_rows, *leaf.given_shape), where)


def _refuse_rows(rows: int, expected: int, where: str) -> NoReturn:
    """Refuse a leaf that has not as many rows as those before it."""
    remedy = "give all leaves of a batch the same number of rows"
    raise error_of(where, f"has {rows} rows", f"{expected} as in the leaves before it", remedy)


def _given(value: object, where: str, *, has_rows: bool = False) -> Array:
    if not isinstance(value, Array):
        from ringfeed.spec.foreign_specs import array_of_foreign  # noqa: PLC0415 - only where it is needed

        value = array_of_foreign(value, where, has_rows=has_rows)
    if not isinstance(value, Array):
        expected = "a ringfeed.Array or a tuple, list or dict of them"
        raise error_of(
            where, f"is {shown(value)}", expected, "write it as in Array((224, 224, 3), 'uint8')"
        )
    return value


# --- Structure: from nested containers to nodes, and back ---


def _is_none(value: object) -> bool:
    """Whether a value stands for None in a sample or a spec: tf.data has an object of its own."""
    return value is None or (
        type(value).__name__ == "NoneTensorSpec" and _NONE in class_names(value)
    )


class _Scan:
    """One walk over a sample, a batch or a tree of Arrays: its structure, and an Array per leaf."""

    def __init__(self, root: str, value: object, look: Callable[[Any, str], Array]) -> None:
        self.root, self.look = root, look
        self.many: tuple[Any, str] | None = (
            None  # the first list of many numbers, and where it stands
        )
        self.arrays: list[Array] = []
        self.paths: list[str] = []  # without the root
        self.structure = self.walk(value, root, ())
        if not self.arrays:
            raise error_of(
                root, "has no leaves", "at least one array or number", "put something into it"
            )
        self.tree: Any = rebuilder(self.structure)(self.arrays)

    def walk(self, value: Any, where: str, above: tuple[int, ...]) -> Node:
        value = plain(value)
        if above and _is_none(value):
            return ("none",)
        leaf = not isinstance(value, CONTAINERS)
        leaves = len(self.arrays) + (1 if leaf else len(value))
        if id(value) in above:
            raise error_of(where, "contains itself", "a finite structure", "take the cycle out")
        if len(above) > MAX_DEPTH:
            raise error_of(where, "is nested too deep", f"at most {MAX_DEPTH} levels", "flatten it")
        if leaves > MAX_LEAVES:
            remedy = "make one array of a list of numbers with np.asarray"
            raise error_of(where, f"brings the leaves to {leaves}", f"at most {MAX_LEAVES}", remedy)
        if leaf:
            return self.leaf(value, where)
        if self.many is None and is_many_numbers(value):
            self.many = value, where
        children = [
            self.walk(child, path, (*above, id(value))) for path, child in parts_of(value, where)
        ]
        if isinstance(value, (dict, list)):
            return (
                ("dict", list(value), children) if isinstance(value, dict) else ("list", children)
            )
        return ("tuple", None if fields_of(value) is None else type(value), children)

    def leaf(self, value: object, where: str) -> Node:
        self.arrays.append(self.look(value, where))
        self.paths.append(where.removeprefix(self.root))
        return ("leaf", len(self.arrays) - 1)


def _restore(structure: Node, arrays: tuple[Array, ...]) -> Spec:
    # Made anew, because a worker cannot import a class of the user's main module.
    named = renamed(structure, lambda label: namedtuple(*label, rename=True))  # noqa: PYI024
    return Spec(rebuilder(named)(arrays))


def _leaf(path: str, array: Array) -> Leaf:
    nbytes = math.prod(array.shape) * array.dtype.itemsize
    return Leaf(
        path, array.shape, array.dtype, nbytes, array.variable, array.cast, array.casts, array.form
    )


class Spec:
    """The structure of one sample, and shape and dtype of each of its leaves.

    tree        the Arrays in the sample's structure
    leaves      the Leafs, depth first; dicts in the order of their keys
    structure   the same for compilers: ("leaf", number) | ("tuple", class or None, children) |
                ("list", children) | ("dict", keys, children) | ("none",)

    Equal are Specs of equal structure, order of leaves, shapes and dtypes; NamedTuples by name and
    fields.
    """

    __slots__ = ("_key", "_rebuild", "leaves", "structure", "tree")

    def __init__(self, tree: object, *, has_rows: bool = False) -> None:
        """Take an Array or a nested tuple, list, dict or NamedTuple of Arrays; refuse the rest.

        Specs of tensors of TensorFlow and JAX are Arrays, too; ``has_rows``: less their first axis,
        a batch's rows.
        """
        scan = _Scan("spec", tree, partial(_given, has_rows=has_rows))
        self.tree, self.structure = scan.tree, scan.structure
        self.leaves = tuple(
            _leaf(f"sample{path}", array)
            for path, array in zip(scan.paths, scan.arrays, strict=True)
        )
        flat = scan.structure[-1] == [("leaf", number) for number in range(len(scan.arrays))]
        self._rebuild = (wrapper if flat else rebuilder)(scan.structure)
        self._key = (
            renamed(scan.structure, lambda cls: (cls.__name__, cls._fields)),
            tuple(scan.arrays),
        )

    @classmethod
    def infer(cls, sample: object, index: int, *, strings: bool = False) -> Spec:
        """Return the spec of one sample, ``dataset[index]``.

        For text and bytes the error says which spec to write; with ``strings`` that spec is
        returned.
        """
        scan = _Scan(f"dataset[{index}]: sample", sample, _inferred)
        if not strings and any(array.form is not None for array in scan.arrays):
            from ringfeed.spec.strings import refuse_proposed  # noqa: PLC0415 - as above

            refuse_proposed(scan.tree, scan.root, zip(scan.paths, scan.arrays, strict=True))
        if scan.many is not None:
            from ringfeed.spec.refusals import warn_of_numbers  # noqa: PLC0415 - only where it is needed

            warn_of_numbers(*scan.many)
        return cls(scan.tree)

    @classmethod
    def infer_batch(cls, batch: object, index: int) -> tuple[Spec, int]:
        """Return the spec of one sample of a whole batch, ``dataset[index]``, and the batch's rows."""
        rows: list[int] = []

        def look(value: object, where: str) -> Array:
            found = _with_rows(value, where)
            rows.append(len(found))
            if len(found) != rows[0]:
                _refuse_rows(len(found), rows[0], where)
            return _array_of(found, found.shape[1:], where)

        return cls(_Scan(f"dataset[{index}]: batch", batch, look).tree), rows[0]

    def flatten(self, sample: object, index: int, root: str = "sample") -> list[object]:
        """Return the leaves of a sample (``root``: or "batch") in order; only the structure is checked."""
        leaves: list[object] = []
        gather(self.tree, sample, f"dataset[{index}]: {root}", leaves)
        return leaves

    def unflatten(self, leaves: Sequence[object]) -> Any:
        """Return the sample's structure around new leaves, one for each of ``leaves`` (not checked)."""
        return self._rebuild(leaves)

    def array(self, number: int, value: object, index: int) -> AnyArray:
        """Return a value for leaf ``number`` as an array of its very dtype and shape, of any strides."""
        leaf = self.leaves[number]
        where = f"dataset[{index}]: {leaf.path}"
        found = as_given(value, leaf, where)
        return matching(
            found, found.shape, leaf._replace(variable=()) if leaf.variable else leaf, where
        )

    def batch_of_one(self, number: int, value: object, index: int) -> AnyArray:
        """Return a sample that may be smaller than its leaf as a batch of one row."""
        leaf = self.leaves[number]
        where = f"dataset[{index}]: {leaf.path}"
        found = as_given(value, leaf, where)
        return matching(found, found.shape, leaf, where)[np.newaxis]

    def batch_array(self, number: int, value: object, index: int, max_rows: int) -> AnyArray:
        """Return the same of a whole batch: with a row axis of 0 to ``max_rows``, and smaller where it may be."""
        leaf = self.leaves[number]
        where = f"dataset[{index}]: {leaf.path.replace('sample', 'batch', 1)}"
        found = _with_rows(value, where, _from_list(value, leaf, max_rows, where))
        if len(found) > max_rows:
            remedy = "return smaller batches, or raise max_batch_size"
            raise error_of(where, f"has {len(found)} rows", f"at most {max_rows}", remedy)
        found = as_given(found, leaf, where)
        return matching(found, found.shape[1:], leaf, where)

    def batch_rows(self, number: int, rows: int, expected: int, index: int) -> NoReturn:
        """Refuse leaf ``number`` of a whole batch for having other rows than the leaves before it."""
        path = self.leaves[number].path.replace("sample", "batch", 1)
        _refuse_rows(rows, expected, f"dataset[{index}]: {path}")

    def __reduce__(self) -> tuple[Callable[..., Spec], tuple[Node, tuple[Array, ...]]]:
        """Pickle without the NamedTuple classes; classes of the same name and fields come back."""
        return _restore, self._key

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key[1])

    def __repr__(self) -> str:
        return f"Spec({self.tree!r})"
