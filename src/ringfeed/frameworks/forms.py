"""Leaves whose samples differ in length, in a framework's tensors; no framework is imported here.

    flat      leaf 0   values of leaf 1   leaf 2 │ what is beside leaf 1 │ extra leaves
    joined    leaf 0   values and beside  leaf 2 │ extra leaves

Batches are flat until the structure of a sample is put around them, so that all else is done to
plain tensors: copies to a device, casts, and the ways through TensorFlow's graph.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed.errors import SpecError
from ringfeed.spec.forms import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringfeed.ring._ring import Lease
    from ringfeed.spec.array import AnyArray, Leaf

Joins: TypeAlias = "Mapping[str, Callable[[Any, Any], Any]]"
"""What makes one object of values and of what is beside them, by the name of the form."""
STRINGS = frozenset({"bytes", "text"})


def is_string(leaf: Leaf) -> bool:
    """Whether the samples of a leaf are bytes or text."""
    return leaf.form is not None and leaf.form.name in STRINGS


class Joiner:
    """Makes a joined list of a flat one.

    ``joins``: for the forms that are not in it, what `Form.join` makes. ``strings``: whether a leaf
    of bytes or text is one tensor of strings, with nothing beside it.
    """

    def __init__(self, leaves: Sequence[Leaf], joins: Joins, *, strings: bool) -> None:
        self._count = len(leaves)
        formed = {
            number: leaf.form
            for number, leaf in enumerate(leaves)
            if leaf.form is not None and not (strings and is_string(leaf))
        }
        self._joins = {n: joins.get(form.name, form.join) for n, form in formed.items()}
        self.beside = [number for number, form in formed.items() if form.beside is not None]
        """The numbers of the leaves that have something beside them in a flat list."""
        self.owners = [*leaves, *(leaves[number] for number in self.beside)]
        """The leaf that each place of a flat list belongs to."""

    def __call__(self, flat: Sequence[Any]) -> Sequence[Any]:
        """Return one object a leaf, and the extra leaves."""
        end = self._count + len(self.beside)
        besides = dict(zip(self.beside, flat[self._count : end], strict=True))
        joined = [*flat[: self._count], *flat[end:]]
        for number, join in self._joins.items():
            joined[number] = join(flat[number], besides.get(number))
        return joined


def as_objects(values: AnyArray, row_splits: AnyArray) -> AnyArray:
    """Return the bytes of each sample, in an array of objects."""
    everything = values.tobytes()
    found = np.empty(len(row_splits) - 1, object)
    found[:] = [everything[begin:end] for begin, end in pairwise(row_splits.tolist())]
    return found


def as_text(values: AnyArray, row_splits: AnyArray) -> list[str]:
    """Return the text of each sample."""
    return [sample_of("text", values[begin:end]) for begin, end in pairwise(row_splits.tolist())]


def capacity_of(leaf: Leaf, max_rows: int) -> int:
    """Return how many elements of a ragged leaf a slot has room for, along the axis that varies."""
    assert leaf.form is not None
    return max_rows * leaf.shape[0] if leaf.form.total is None else leaf.form.total


def filled_up(values: AnyArray, capacity: int, lease: Lease, offset: int) -> AnyArray:
    """Return the values of a ragged leaf with 0 behind them: as many as its field has room for."""
    memory: Any = lease  # which has the buffer protocol, though the type checker does not see it
    field: AnyArray = np.ndarray((capacity, *values.shape[1:]), values.dtype, memory, offset)
    field[len(values) :] = 0
    return field


def refuse_forms(leaves: Sequence[Leaf], names: frozenset[str], lack: str, remedy: str) -> None:
    """Raise SpecError for a leaf of one of these forms."""
    for leaf in leaves:
        if leaf.form is not None and leaf.form.name in names:
            raise SpecError(f"{leaf.path} is {leaf.form.name}, of which {lack}; {remedy}")
