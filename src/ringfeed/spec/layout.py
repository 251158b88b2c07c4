"""How the leaves of a sample lie in a slot, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringfeed.ring import _ring

if TYPE_CHECKING:
    from ringfeed.spec.array import Leaf
    from ringfeed.spec.spec import Spec

PAGE = 4096
INDEX_SIZE = 8
SHAPE_SIZE = 8  # an axis


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _before(leaf: Leaf, rows: int) -> int:
    """Return the bytes before a field: the batch's shape, or a header and a record a row."""
    if leaf.form is not None:
        return _ring.FIELD_ALIGN + rows * leaf.form.record_size()
    return len(leaf.shape) * SHAPE_SIZE if leaf.variable else 0


def field_size(leaf: Leaf, rows: int) -> int:
    """Return the bytes of a leaf's field."""
    return rows * leaf.nbytes if leaf.form is None else leaf.form.field_size(leaf, rows)


@dataclass(frozen=True)
class Layout:
    """One slot: fields, then a failure record a cell, the batch's indices, and a mark a row.

    ``rows`` is what the fields hold, ``indices`` how many dataset indices make a batch: the same
    number, but for datasets of whole batches, where one index gives many rows. Offsets and sizes
    are in bytes. Where the shape of a leaf varies, that of the batch stands right before its field,
    as 64 bits an axis; of a leaf with a form, the shape and the place of each row. What writes past
    the last row of the last field meets the failure records first, 4 KiB a cell, which are sealed
    one by one.
    """

    offsets: tuple[int, ...]
    rows: int
    indices: int
    cells: int
    indices_at: int
    marks_at: int
    failures_at: int
    slot_size: int

    @classmethod
    def of(cls, spec: Spec, rows: int, indices: int, cells: int) -> Layout:
        """Lay out a slot for ``rows`` rows; every field starts at a multiple of 64 bytes."""
        offsets, end = [], 0
        for leaf in spec.leaves:
            end += _round_up(_before(leaf, rows), _ring.FIELD_ALIGN)
            offsets.append(end)
            end = _round_up(end + field_size(leaf, rows), _ring.FIELD_ALIGN)
        indices_at = end + cells * _ring.FAILURE_SIZE
        marks_at = indices_at + indices * INDEX_SIZE
        slot_size = _round_up(marks_at + indices, PAGE)
        return cls(tuple(offsets), rows, indices, cells, indices_at, marks_at, end, slot_size)
