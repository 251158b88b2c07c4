"""Casts by JAX, on the device of the arrays, in one compiled function."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import jax

from ringfeed.errors import SpecError
from ringfeed.frameworks.cast import NUMBERS, TO_CHW, Chosen, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.frameworks.cast import Casts
    from ringfeed.spec.array import Leaf
    from ringfeed.spec.conversion import Cast


def jax_casts(casts: Casts) -> Chosen:
    """What casts these leaves of each batch; JAX lets go of what it read when the new arrays are there."""
    return Chosen(list(casts), _compiled(tuple(casts.values())))


@cache
def _compiled(casts: tuple[Cast, ...]) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """One function for all who want the same, so that it is compiled once."""

    def ringfeed_cast(arrays: list[jax.Array]) -> list[jax.Array]:
        return [_cast(cast, array) for cast, array in zip(casts, arrays, strict=True)]

    found: Callable[[list[jax.Array]], list[jax.Array]] = jax.jit(ringfeed_cast)
    return found


def _cast(cast: Cast, array: jax.Array) -> jax.Array:
    dtype = jax.numpy.dtype(cast.dtype)
    found = (array.transpose(TO_CHW) if cast.layout else array).astype(dtype)
    for operate, number in steps_of(cast):
        found = operate(found, number.astype(dtype))
    return found


def narrowed(leaves: Sequence[Leaf]) -> frozenset[int]:
    """The numbers of the leaves of which JAX would make narrower arrays than they are."""
    return frozenset(
        number
        for number, leaf in enumerate(leaves)
        if leaf.dtype.kind in NUMBERS and jax.dtypes.canonicalize_dtype(leaf.dtype.name) != leaf.dtype.name
    )


def varying(leaves: Sequence[Leaf]) -> frozenset[int]:
    """The numbers of the leaves for whose every shape JAX would compile a cast, and never forget it."""
    return frozenset(number for number, leaf in enumerate(leaves) if leaf.variable)


def check_width(casts: Casts, leaves: Sequence[Leaf], method: str) -> None:
    """Refuse float64 where JAX has it switched off: it would give float32."""
    wide = [number for number, cast in casts.items() if jax.dtypes.canonicalize_dtype(cast.dtype) != cast.dtype]
    for number in wide:
        raise SpecError(
            f"{method}(cast=...): {leaves[number].path} is cast to {casts[number].dtype!r}, expected a dtype that JAX "
            "has; set jax_enable_x64, or name 'float32'"
        )
