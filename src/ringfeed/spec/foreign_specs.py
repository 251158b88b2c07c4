"""What TensorFlow and JAX call the shape and dtype of an array, as an `Array`; neither is imported for it.

tf.TensorSpec, jax.ShapeDtypeStruct                     Array
tf.data's NoneTensorSpec, as in Dataset.element_spec    None
a shape that is not known in full, strings              SpecError, which says what to give instead
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed._classes import class_names
from ringfeed.spec.array import Array

_SPECS = {"tensorflow.TensorSpec", "jax.ShapeDtypeStruct"}
_RAGGED, _OTHERS = "tensorflow.RaggedTensorSpec", {"tensorflow.TypeSpec"}
_LONGEST = 300


def array_of_foreign(value: Any, where: str, *, has_rows: bool) -> Any:
    """Return a framework's spec of a tensor as an Array, and any other value as it is; ``has_rows``: of a batch."""
    if isinstance(value, Array):
        return value
    names = class_names(value)
    if not names & _SPECS:
        if names & _OTHERS:
            remedy = "give a ringfeed.Array for each array that dataset[i] returns"
            if _RAGGED in names:
                remedy = _with_form(_without_rows(value, where, has_rows=has_rows), _dtype(value))
            raise error_of(
                where, f"is of type {type(value).__name__}", "a spec of dense tensors", remedy
            )
        return value
    shape, dtype = _without_rows(value, where, has_rows=has_rows), _dtype(value)
    kind = type(value).__name__
    known = tuple(axis for axis in shape or () if axis is not None)
    if dtype.hasobject:
        remedy = (
            "give ringfeed.Text(64) for str, or ringfeed.Bytes(64) for bytes, with the most bytes "
            "of one sample"
        )
        raise error_of(
            where, f"is a {kind} of dtype {value.dtype!r}", "a dtype of fixed width", remedy
        )
    if shape is None or len(known) < len(shape):
        shown = "unknown" if shape is None else str(shape)
        raise error_of(
            where,
            f"is a {kind} of shape {shown}",
            "a shape that is known",
            _with_form(shape, dtype),
        )
    return Array(known, dtype)


def _with_form(shape: tuple[int | None, ...] | None, dtype: Any) -> str:
    """Say what to give in the place of a spec whose samples differ in shape."""
    if not shape or None not in shape or dtype.hasobject:
        return "give a ringfeed.Array of the shape of a sample, with form= where samples differ"
    form = "pad" if None in shape[1:] else "ragged"
    largest = tuple(_LONGEST if axis is None else axis for axis in shape)
    array = f"ringfeed.Array({shape}, {dtype.name!r}, max_shape={largest}, form={form!r})"
    return f"give {array}, with the largest sample in the place of {_LONGEST}"


def _dtype(value: Any) -> Any:
    return np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype))


def _without_rows(value: Any, where: str, *, has_rows: bool) -> tuple[int | None, ...] | None:
    """Return the shape of a sample: without the first axis of a batch."""
    shape = _shape(value)
    if not has_rows or shape is None:
        return shape
    if not shape:
        remedy = "give the spec of a whole batch, whose first axis counts its rows"
        raise error_of(
            where, f"is a {type(value).__name__} of shape ()", "a leading row axis", remedy
        )
    return shape[1:]


def _shape(value: Any) -> tuple[int | None, ...] | None:
    try:
        return tuple(getattr(axis, "value", axis) for axis in value.shape)
    except ValueError:  # TensorFlow's words for a shape of unknown rank
        return None
