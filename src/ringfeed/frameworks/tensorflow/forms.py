"""Leaves as TensorFlow has them: ragged, padded and of strings, and cast."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import tensorflow as tf

from ringfeed.frameworks.cast import Casts, Chosen, caster_of, shape_after
from ringfeed.frameworks.forms import Joiner, is_string
from ringfeed.spec.conversion import Cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.frameworks.base import LoaderInfo
    from ringfeed.spec.array import Leaf

RAGGED = "ragged"
"""The name of the values of a ragged leaf among the specs: they are as many as the batch has."""
SPLITS = "row_splits"


JOINS = {"ragged": partial(tf.RaggedTensor.from_row_splits, validate=False)}


def values_spec(leaf: Leaf, rows: int | None, dtype: tf.DType) -> tf.TensorSpec:
    """The form of the values of a leaf."""
    form = leaf.form
    if form is None:
        shape = (
            None if axis in leaf.variable else length for axis, length in enumerate(leaf.shape)
        )
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
    return tuple(
        longest if axis in leaf.form.axes else length for axis, length in enumerate(leaf.shape)
    )


def beside_specs(info: LoaderInfo) -> list[tf.TensorSpec]:
    """The forms of what comes beside values."""
    leaves = info.spec.leaves
    return [
        _beside_spec(leaves[number], info.fixed_rows)
        for number in Joiner(leaves, {}, strings=True).beside
    ]


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
    """The shape of a blank batch; the row splits of a ragged tensor without rows are one number."""
    return [n if n is not None else int(spec.name == SPLITS) for n in spec.shape]


# ---- casts ----


class TensorFlowCasts(Chosen):
    """Casts some of the leaves of each batch; made for the specs of all of them.

    A plain cast is one op. What has steps or another layout is compiled by XLA, since TensorFlow's
    own ops would go over the floats once for each step (20 times slower on a CPU); not where shapes
    vary, for each of which XLA compiles anew.
    """

    def __init__(self, casts: Casts, specs: Sequence[tf.TensorSpec]) -> None:
        super().__init__({number: _caster(cast, specs[number]) for number, cast in casts.items()})
        self._casts = casts

    def specs_after(self, specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
        """The form of each leaf when this has cast them."""
        return [
            tf.TensorSpec(shape_after(spec.shape, cast), tf.as_dtype(cast.dtype), name=spec.name)
            if (cast := self._casts.get(number))
            else spec
            for number, spec in enumerate(specs)
        ]


def _caster(cast: Cast, spec: tf.TensorSpec) -> Callable[[tf.Tensor], tf.Tensor]:
    if cast == Cast(cast.dtype):
        dtype = tf.as_dtype(cast.dtype)
        return lambda tensor: tf.raw_ops.Cast(x=tensor, DstT=dtype)
    return _compiled(cast, spec)


@cache
def _compiled(cast: Cast, spec: tf.TensorSpec) -> Callable[[tf.Tensor], tf.Tensor]:
    """One function for all equal casts: TensorFlow never forgets what XLA has compiled."""
    dtype = tf.as_dtype(cast.dtype)
    same_shapes = spec.name != RAGGED and spec.shape[1:].is_fully_defined()
    found: Callable[[tf.Tensor], tf.Tensor] = tf.function(
        caster_of(
            cast,
            tf.transpose,
            lambda tensor: tf.cast(tensor, dtype),
            lambda number: number.astype(dtype.as_numpy_dtype),
        ),
        input_signature=[spec],
        autograph=False,
        jit_compile=same_shapes or None,
    )
    return found
