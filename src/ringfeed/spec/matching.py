"""Whether an array that a dataset gives is what its leaf takes; every refusal says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed._checks import error_of
from ringfeed.spec.array import may_cast

if TYPE_CHECKING:
    from ringfeed.spec.array import AnyArray, Leaf


def matching(found: AnyArray, shape: tuple[int, ...], leaf: Leaf, where: str) -> AnyArray:
    """Return what was found if its dtype and ``shape``, that of one sample, are those that the leaf takes."""
    if found.dtype != leaf.given_dtype:
        raise error_of(where, f"has dtype {found.dtype}", expected_of(leaf, str(leaf.dtype)), for_dtype(found, leaf))
    if shape != leaf.given_shape and (fault := _fault(shape, leaf)):
        whole = found.ndim > len(shape)
        expected, remedy = fault
        if leaf.cast is None and not leaf.variable and len(shape) == len(leaf.shape):
            remedy += _BY_SPEC[whole]
        raise error_of(where, f"has {'rows of ' if whole else ''}shape {shape}", expected, remedy)
    return found


_BY_SPEC = {  # whether it is of a whole batch
    False: "; or have samples of many shapes by spec= with variable=, form='pad' or form='ragged'",
    True: "; or have batches of many shapes by spec= with variable= and max_batch_size=",
}


def for_dtype(found: AnyArray, leaf: Leaf) -> str:
    """Say what to do about an array of another dtype than the leaf's."""
    if leaf.cast is not None:
        return "return uint8 from __getitem__, or leave scale=, offset=, mean=, std= and layout= out of spec="
    if leaf.casts:
        return f"cast=True makes no {leaf.dtype} of {found.dtype}: convert it in __getitem__"
    if may_cast(found.dtype, leaf.dtype):
        return "convert it in __getitem__, give this dtype in spec=, or have it converted by cast=True of its Array"
    return "convert it in __getitem__, or give this dtype in spec="


def expected_of(leaf: Leaf, otherwise: str) -> str:
    """Say what the dataset is to give for a leaf that converts it."""
    return otherwise if leaf.cast is None else f"uint8 of shape {leaf.given_shape}, which is converted to float32"


def _fault(shape: tuple[int, ...], leaf: Leaf) -> tuple[str, str] | None:
    """Return what was expected of a shape that is not the leaf's, and what to do; None if it may be smaller so."""
    if not leaf.variable:
        remedy = "every sample must have the shape of the spec: crop, pad or resize it in __getitem__"
        if shape == leaf.shape:
            remedy = "return (height, width, channels), which layout='CHW' turns round, or leave layout= out of spec="
        return expected_of(leaf, str(leaf.shape)), remedy
    all_vary = len(leaf.variable) == len(leaf.shape)
    expected = f"{leaf.shape} or less" + ("" if all_vary else f" along the axes {leaf.variable}")
    if len(shape) != len(leaf.shape):
        return expected, "every batch must have the axes of the spec: reshape it in __getitem__"
    pairs = list(zip(shape, leaf.shape, strict=True))
    if any(got != most for axis, (got, most) in enumerate(pairs) if axis not in leaf.variable):
        return expected, "crop, pad or resize it in __getitem__, or name the axis in variable= of spec="
    if any(got > most for got, most in pairs):
        return expected, "crop it in __getitem__, or give a larger shape in spec="
    return None
