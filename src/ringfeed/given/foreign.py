"""What TensorFlow and JAX call the shape and dtype of an array, as an `Array`; neither is imported for it.

tf.TensorSpec, jax.ShapeDtypeStruct                     Array
tf.data's NoneTensorSpec, as in Dataset.element_spec    None
a shape that is not known in full, strings              SpecError, which says what to give instead
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringfeed._classes import class_names
from ringfeed.spec.array import Array, error_of

_SPECS = {"tensorflow.TensorSpec", "jax.ShapeDtypeStruct"}
_OTHERS = {"tensorflow.TypeSpec"}


def array_of_foreign(value: Any, where: str, *, has_rows: bool) -> Any:
    """Return a framework's spec of a tensor as an Array, and any other value as it is; ``has_rows``: of a batch."""
    if isinstance(value, Array):
        return value
    names = class_names(value)
    if not names & _SPECS:
        if names & _OTHERS:
            expected, remedy = "a spec of dense tensors", "give a ringfeed.Array for each array that dataset[i] returns"
            raise error_of(where, f"is of type {type(value).__name__}", expected, remedy)
        return value
    shape = _shape(value)
    if has_rows and shape is not None:
        if not shape:
            remedy = "give the spec of a whole batch, whose first axis counts its rows"
            raise error_of(where, f"is a {type(value).__name__} of shape ()", "a leading row axis", remedy)
        shape = shape[1:]
    dtype = np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype))
    kind = type(value).__name__
    known = tuple(axis for axis in shape or () if axis is not None)
    if shape is None or len(known) < len(shape):
        shown = "unknown" if shape is None else str(shape)
        remedy = "give a ringfeed.Array of the largest shape, with variable=True for batches that may be smaller"
        raise error_of(where, f"is a {kind} of shape {shown}", "a shape that is known", remedy)
    if dtype.hasobject:
        remedy = "give a ringfeed.Array of as many bytes as the longest has, as in Array((), 'S64')"
        raise error_of(where, f"is a {kind} of dtype {value.dtype!r}", "a dtype of fixed width", remedy)
    return Array(known, dtype)


def _shape(value: Any) -> tuple[int | None, ...] | None:
    try:
        return tuple(getattr(axis, "value", axis) for axis in value.shape)
    except ValueError:  # TensorFlow's words for a shape of unknown rank
        return None
