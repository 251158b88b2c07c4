"""Whether an array that a dataset gives is what its leaf takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.spec.array import AnyArray, Leaf


def matching(found: AnyArray, shape: tuple[int, ...], leaf: Leaf, where: str) -> AnyArray:
    """Return what was found if its dtype and ``shape``, that of one sample, are those that the leaf takes."""
    is_right = shape == leaf.given_shape or (leaf.variable and _may_be_smaller(shape, leaf))
    if found.dtype == leaf.given_dtype and is_right:
        return found
    from ringfeed.coercion.refusals import other_array  # noqa: PLC0415 - its room

    raise other_array(found, shape, leaf, where)


def _may_be_smaller(shape: tuple[int, ...], leaf: Leaf) -> bool:
    """Whether a shape is the leaf's but for axes that vary, along which it is smaller."""
    if len(shape) != len(leaf.shape):
        return False
    pairs = enumerate(zip(shape, leaf.shape, strict=True))
    return all(got == most or (got < most and axis in leaf.variable) for axis, (got, most) in pairs)
