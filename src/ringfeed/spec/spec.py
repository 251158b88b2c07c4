"""What a sample of a dataset looks like: the structure around its leaves, and each leaf.

Containers are structure, all else is a leaf: ``[1, 2, 3]`` is a list of three int64 leaves, not an
array. None in a container stays None in every batch, and is no leaf.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

from ringfeed._checks import error_of
from ringfeed._classes import class_names
from ringfeed.spec.array import (
    CONTAINERS,
    AnyArray,
    AnyDtype,
    Array,
    Leaf,
    fields_of,
    has_array,
    shown,
)

__all__ = ["AnyArray", "AnyDtype", "Array", "Leaf", "Spec"]

MAX_LEAVES, MAX_DEPTH = 1000, 64
Node: TypeAlias = tuple[Any, ...]  # see Spec.structure


def plain(value: Any) -> Any:
    """Return a dict of a Mapping's items or a dataclass's fields; any other value as it is."""
    if isinstance(value, Mapping):
        return value if isinstance(value, dict) else dict(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type | Array) or has_array(value):
        return value
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def parts_of(value: Any, where: str) -> list[tuple[str, object]]:
    """Return the children of a container, each with its place.

    Of an endless __iter__ there is one too many.
    """
    if isinstance(value, dict):
        return [(f"{where}[{key!r}]", child) for key, child in value.items()]
    if (fields := fields_of(value)) is not None:
        return [(f"{where}.{name}", child) for name, child in zip(fields, value, strict=True)]
    numbers = range(len(value) + 1)
    return [(f"{where}[{number}]", child) for number, child in zip(numbers, value, strict=False)]


# ---- nodes of `Spec.structure` ----


def _wrapper(node: Node) -> Callable[[Any], object]:
    """Return the function that makes the node's container of its children."""
    if node[0] == "dict":
        return lambda children: dict(zip(node[1], children, strict=True))
    return list if node[0] == "list" else tuple if node[1] is None else node[1]._make


def _rebuilder(node: Node) -> Callable[[Any], object]:
    """Return the function that makes the node's value of all leaves of the spec."""
    if node[0] == "leaf":
        return operator.itemgetter(node[1])
    if node[0] == "none":
        return lambda _: None
    wrap, parts = _wrapper(node), [_rebuilder(child) for child in node[-1]]
    return lambda leaves: wrap([part(leaves) for part in parts])


def _renamed(node: Node, to: Callable[[Any], object]) -> Node:
    """Return the node with each NamedTuple class replaced by what ``to`` makes of it."""
    if node[0] in {"leaf", "none"}:
        return node
    label = [to(part) if node[0] == "tuple" and part is not None else part for part in node[1:-1]]
    return (node[0], *label, [_renamed(child, to) for child in node[-1]])


def _given(value: object, where: str, *, has_rows: bool) -> Array:
    """Return the Array that a user gives for a leaf; a framework's spec of a tensor is one, too."""
    if not isinstance(value, Array):
        from ringfeed.spec.columns import array_of_foreign  # noqa: PLC0415 - on demand

        value = array_of_foreign(value, where, has_rows=has_rows)
    if not isinstance(value, Array):
        raise error_of(
            where,
            f"is {shown(value)}",
            "a ringfeed.Array or a tuple, list or dict of them",
            "write it as in Array((224, 224, 3), 'uint8')",
        )
    return value


class _Scan:
    """One walk over a sample, a batch or a tree of Arrays: its structure, and an Array per leaf."""

    def __init__(self, root: str, value: object, look: Callable[[Any, str], Array]) -> None:
        self.root, self.look = root, look
        self.arrays: list[Array] = []
        self.paths: list[str] = []  # without the root
        self.lists: list[tuple[Any, str]] = []  # of leaves alone, and where each stands
        self.structure = self.walk(value, root, ())
        if not self.arrays:
            raise error_of(
                root, "has no leaves", "at least one array or number", "put something into it"
            )
        self.tree: Any = _rebuilder(self.structure)(self.arrays)

    def walk(self, value: Any, where: str, above: tuple[int, ...]) -> Node:
        value = plain(value)
        # tf.data has an object of its own for None.
        if above and (value is None or "tensorflow.NoneTensorSpec" in class_names(value)):
            return ("none",)
        is_leaf = not isinstance(value, CONTAINERS)
        leaves = len(self.arrays) + (1 if is_leaf else len(value))
        if id(value) in above:
            raise error_of(where, "contains itself", "a finite structure", "take the cycle out")
        if len(above) > MAX_DEPTH:
            raise error_of(where, "is nested too deep", f"at most {MAX_DEPTH} levels", "flatten it")
        if leaves > MAX_LEAVES:
            raise error_of(
                where,
                f"brings the leaves to {leaves}",
                f"at most {MAX_LEAVES}",
                "make one array of a list of numbers with np.asarray",
            )
        if is_leaf:
            self.arrays.append(self.look(value, where))
            self.paths.append(where.removeprefix(self.root))
            return ("leaf", len(self.arrays) - 1)
        inner = (*above, id(value))
        children = [self.walk(child, path, inner) for path, child in parts_of(value, where)]
        if isinstance(value, dict):
            return ("dict", list(value), children)
        names = fields_of(value)
        if names is None and all(child[0] == "leaf" for child in children):
            self.lists.append((value, where))
        if isinstance(value, list):
            return ("list", children)
        return ("tuple", None if names is None else type(value), children)


def _restore(structure: Node, arrays: tuple[Array, ...]) -> Spec:
    # Made anew, because a worker cannot import a class of the user's main module.
    named = _renamed(structure, lambda label: namedtuple(*label, rename=True))  # noqa: PYI024
    return Spec(_rebuilder(named)(arrays))


def _leaf(path: str, array: Array) -> Leaf:
    nbytes = math.prod(array.shape) * array.dtype.itemsize
    array_says = array.variable, array.cast, array.casts, array.form
    return Leaf(f"sample{path}", array.shape, array.dtype, nbytes, *array_says)


class Spec:
    """The structure of one sample, and shape and dtype of each of its leaves.

    tree        the Arrays in the sample's structure
    leaves      the Leafs, depth first; dicts in the order of their keys
    structure   the same for compilers: ("leaf", number) | ("tuple", class or None, children) |
                ("list", children) | ("dict", keys, children) | ("none",)
    unflatten   makes a sample's structure of new leaves, one for each of ``leaves`` (not checked)

    Equal are Specs of equal structure, order of leaves, shapes and dtypes; NamedTuples by name and
    fields.
    """

    __slots__ = ("_key", "leaves", "structure", "tree", "unflatten")

    unflatten: Callable[[Sequence[object]], Any]

    def __init__(self, tree: object, *, has_rows: bool = False) -> None:
        """Take an Array or a nested tuple, list, dict or NamedTuple of Arrays; refuse the rest.

        Specs of tensors of TensorFlow and JAX are Arrays, too; ``has_rows``: less their first axis,
        a batch's rows.
        """
        scan = _Scan("spec", tree, partial(_given, has_rows=has_rows))
        self.tree, self.structure = scan.tree, scan.structure
        self.leaves = tuple(map(_leaf, scan.paths, scan.arrays))
        flat = scan.structure[-1] == [("leaf", number) for number in range(len(scan.arrays))]
        self.unflatten = (_wrapper if flat else _rebuilder)(scan.structure)
        named = _renamed(scan.structure, lambda cls: (cls.__name__, cls._fields))
        self._key = named, tuple(scan.arrays)

    @classmethod
    def infer(cls, sample: object, index: int, *, strings: bool = False) -> Spec:
        """Return the spec of one sample, ``dataset[index]``.

        For text and bytes the error says which spec to write; with ``strings`` that spec is
        returned.
        """
        from ringfeed.spec.values import (  # noqa: PLC0415 - no worker infers
            inferred,
            warn_of_numbers,
        )

        scan = _Scan(f"dataset[{index}]: sample", sample, inferred)
        if not strings and any(array.form is not None for array in scan.arrays):
            from ringfeed.spec.form_arrays import refuse_proposed  # noqa: PLC0415 - on demand

            refuse_proposed(scan.tree, scan.root, zip(scan.paths, scan.arrays, strict=True))
        warn_of_numbers(scan.lists)
        return cls(scan.tree)

    @classmethod
    def infer_batch(cls, batch: object, index: int) -> tuple[Spec, int]:
        """Return the spec of a sample of the batch ``dataset[index]``, and the batch's rows."""
        from ringfeed.spec.values import (  # noqa: PLC0415 - no worker infers
            inferred_array,
            refuse_rows,
            with_rows,
        )

        rows: list[int] = []

        def look(value: object, where: str) -> Array:
            found = with_rows(value, where)
            rows.append(len(found))
            if len(found) != rows[0]:
                refuse_rows(len(found), rows[0], where)
            return inferred_array(found, found.shape[1:], where)

        return cls(_Scan(f"dataset[{index}]: batch", batch, look).tree), rows[0]

    def flatten(self, sample: object, index: int, root: str = "sample") -> list[object]:
        """Return the leaves of a sample in order; only the structure is checked.

        ``root``: "sample" or "batch".
        """
        leaves: list[object] = []
        _gather(self.tree, sample, f"dataset[{index}]: {root}", leaves)
        return leaves

    def same_structure(self, other: Spec) -> bool:
        """Whether samples of the other are alike but for the shapes and dtypes of their leaves."""
        return bool(self._key[0] == other._key[0])

    # ---- values that are not certainly those of a leaf: converted, or refused ----

    def array(self, number: int, value: object, index: int) -> AnyArray:
        """Return a value for leaf ``number`` as an array of its dtype and shape, of any strides.

        Of a leaf with a form: of a shape that its field has room for.
        """
        from ringfeed.spec.fitting import fitted  # noqa: PLC0415 - most loaders never need it

        leaf = self.leaves[number]
        leaf = leaf._replace(variable=()) if leaf.variable else leaf
        return fitted(value, leaf, self._where(number, index))

    def batch_of_one(self, number: int, value: object, index: int) -> AnyArray:
        """Return a sample that may be smaller than its leaf as a batch of one row."""
        from ringfeed.spec.fitting import fitted  # noqa: PLC0415 - as above

        return fitted(value, self.leaves[number], self._where(number, index))[None]

    def batch_array(self, number: int, value: object, index: int, max_rows: int) -> AnyArray:
        """Return a leaf of a whole batch, of 0 to ``max_rows`` rows; smaller where it may be."""
        from ringfeed.spec.fitting import fitted_batch  # noqa: PLC0415 - as above

        return fitted_batch(
            value, self.leaves[number], max_rows, self._where(number, index, "batch")
        )

    def samples(self, number: int, value: object, index: int, max_rows: int) -> list[AnyArray]:
        """Return the samples of a leaf with a form in a whole batch; they fit together."""
        from ringfeed.spec.fitting import fitted_samples  # noqa: PLC0415 - as above

        sample, batch = self._where(number, index), self._where(number, index, "batch")
        return fitted_samples(value, self.leaves[number], max_rows, sample, batch)

    def batch_rows(self, number: int, rows: int, expected: int, index: int) -> NoReturn:
        """Refuse leaf ``number`` of a batch that has other rows than the leaves before it."""
        from ringfeed.spec.values import refuse_rows  # noqa: PLC0415 - as above

        refuse_rows(rows, expected, self._where(number, index, "batch"))

    def no_room(self, number: int, length: int, index: int) -> NoReturn:
        """Refuse a sample that is longer than what is left of its batch."""
        from ringfeed.spec.fitting import refuse_total  # noqa: PLC0415 - as above

        refuse_total(self.leaves[number], length, self._where(number, index))

    def _where(self, number: int, index: int, root: str = "sample") -> str:
        return f"dataset[{index}]: {self.leaves[number].path.replace('sample', root, 1)}"

    def __reduce__(self) -> tuple[Callable[..., Spec], tuple[Node, tuple[Array, ...]]]:
        """Pickle without the NamedTuple classes; classes of the same name and fields come back."""
        return _restore, self._key

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key[1])

    def __repr__(self) -> str:
        return f"Spec({self.tree!r})"


def _gather(model: Any, value: Any, where: str, leaves: list[object]) -> None:
    """Append the leaves of a value to ``leaves``, in the order of the tree of Arrays ``model``."""
    if isinstance(model, Array):
        leaves.append(value)
        return
    value = plain(value)
    if shown(value) != shown(model):
        from ringfeed.spec.refusals import other_structure  # noqa: PLC0415 - on demand

        raise other_structure(value, model, where)
    if model is None:
        return
    if isinstance(model, dict):
        lacks = [f"lacks {keys}"] if (keys := [key for key in model if key not in value]) else []
        also = [f"has also {more}"] if (more := [key for key in value if key not in model]) else []
        if lacks or also:
            raise error_of(
                where,
                " and ".join(lacks + also),
                f"the keys {list(model)}",
                "return the same keys for every index",
            )
        value = {key: value[key] for key in model}
    if len(below := parts_of(model, "")) != len(parts := parts_of(value, where)):
        raise error_of(
            where,
            f"is {shown(model)}, but its __iter__ gives others",
            "as many",
            "return a plain list or tuple",
        )
    for (_, inner), (path, child) in zip(below, parts, strict=True):
        _gather(inner, child, path, leaves)
