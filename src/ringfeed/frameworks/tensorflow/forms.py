"""Leaves whose samples differ in length, as TensorFlow has them: ragged tensors, strings, padded tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ringfeed.frameworks.forms import Joiner, is_string

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.frameworks.base import LoaderInfo
    from ringfeed.spec.array import Leaf

RAGGED = "ragged"
"""The name of the values of a ragged leaf among the specs: they are as many as the batch has."""
SPLITS = "row_splits"


def _ragged(values: Any, row_splits: Any) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)


JOINS = {"ragged": _ragged}


def joiner(leaves: Sequence[Leaf]) -> Joiner:
    """What makes one tensor a leaf of the values and of what is beside them."""
    return Joiner(leaves, JOINS, strings=True)


def values_spec(leaf: Leaf, rows: int | None, dtype: tf.DType) -> tf.TensorSpec:
    """The form of the values of a leaf."""
    form = leaf.form
    if form is None:
        shape = (None if axis in leaf.variable else length for axis, length in enumerate(leaf.shape))
        return tf.TensorSpec((rows, *shape), dtype)
    if is_string(leaf):
        return tf.TensorSpec((rows,), tf.string)
    if not form.is_padded:
        return tf.TensorSpec((None, *leaf.shape[1:]), dtype, name=RAGGED)
    return tf.TensorSpec((rows, *_padded_shape(leaf)), dtype)


def _padded_shape(leaf: Leaf) -> tuple[int | None, ...]:
    """The shape of a row, None where batches differ."""
    assert leaf.form is not None
    longest = leaf.form.pad_to[0] if len(leaf.form.pad_to) == 1 else None
    return tuple(longest if axis in leaf.form.axes else length for axis, length in enumerate(leaf.shape))


def beside_specs(info: LoaderInfo) -> list[tf.TensorSpec]:
    """The forms of what comes beside values."""
    return [_beside_spec(info.spec.leaves[number], info.fixed_rows) for number in joiner(info.spec.leaves).beside]


def _beside_spec(leaf: Leaf, rows: int | None) -> tf.TensorSpec:
    form = leaf.form
    assert form is not None
    if form.beside == SPLITS:
        return tf.TensorSpec((None if rows is None else rows + 1,), tf.int64, name=SPLITS)
    if form.beside == "lengths":
        return tf.TensorSpec((rows, len(form.axes)) if len(form.axes) > 1 else (rows,), tf.int64)
    shape = _padded_shape(leaf)
    return tf.TensorSpec((rows, *(shape[axis] for axis in form.axes)), tf.bool)


def blank_shape(spec: tf.TensorSpec) -> list[int]:
    """The shape of what stands for no batch at all; a ragged tensor of no rows begins at 0 all the same."""
    return [n if n is not None else int(spec.name == SPLITS) for n in spec.shape]
