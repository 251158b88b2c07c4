"""Casts by TensorFlow: where its eager ops run, or in a graph.

A plain cast is one op. What has steps or another layout is compiled by XLA, since TensorFlow's own ops would go over
the floats once for each step (20 times slower on a CPU); not where shapes vary, for each of which XLA compiles anew.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import tensorflow as tf

from ringfeed.frameworks.cast import Chosen, caster_of, shape_after
from ringfeed.frameworks.tensorflow.forms import RAGGED
from ringfeed.spec.conversion import Cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.frameworks.cast import Casts


class TensorFlowCasts(Chosen):
    """Casts some of the leaves of each batch; made for the specs of all of them."""

    def __init__(self, casts: Casts, specs: Sequence[tf.TensorSpec]) -> None:
        super().__init__({number: _caster(cast, specs[number]) for number, cast in casts.items()})
        self._casts = casts

    def specs_after(self, specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
        """The form of each leaf when this has cast them."""
        return [
            _spec_after(spec, self._casts[number]) if number in self._casts else spec
            for number, spec in enumerate(specs)
        ]


def _spec_after(spec: tf.TensorSpec, cast: Cast) -> tf.TensorSpec:
    return tf.TensorSpec(shape_after(spec.shape, cast), tf.as_dtype(cast.dtype), name=spec.name)


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
