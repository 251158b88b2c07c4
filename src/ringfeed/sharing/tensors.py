"""The arrays of a shared batch as tensors of torch or JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.frameworks.batch import copy_aligned
from ringfeed.frameworks.cast import casts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.frameworks.cast import CastTree
    from ringfeed.sharing.epoch import BuildLeaves
    from ringfeed.spec.array import AnyArray
    from ringfeed.spec.spec import Spec


def in_torch(spec: Spec, cast: CastTree) -> BuildLeaves:
    """Return what makes tensors over the arrays."""
    from ringfeed.frameworks import torch as framework  # noqa: PLC0415 - imports torch

    framework.check_dtypes(spec.leaves)
    casts, tensor_of = (
        framework.torch_casts(casts_of(spec, cast, "to_torch")),
        framework.TORCH.from_numpy,
    )
    return lambda leaves: spec.unflatten(casts([*map(tensor_of, leaves)]))


def in_jax(spec: Spec, cast: CastTree) -> BuildLeaves:
    """Return what makes arrays of copies."""
    from ringfeed.frameworks import jax as framework  # noqa: PLC0415 - imports JAX

    asked = casts_of(spec, cast, "to_jax", framework.check_width)
    own, casts = framework.conversions(spec.leaves, asked)
    copiers: list[Callable[[AnyArray], AnyArray]] = [
        own.get(number, copy_aligned) for number in range(len(spec.leaves))
    ]
    tensor_of: Callable[[Any], Any] = framework.jax_framework().from_numpy

    def build(leaves: list[Any]) -> Any:
        return spec.unflatten(
            casts([tensor_of(copy(leaf)) for copy, leaf in zip(copiers, leaves, strict=True)])
        )

    return build
