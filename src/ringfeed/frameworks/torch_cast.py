"""Casts by torch, where the tensors are: on the GPU after the copy, else on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ringfeed.frameworks.cast import TO_CHW, Chosen, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.frameworks.cast import Casts
    from ringfeed.spec.conversion import Cast


def torch_casts(casts: Casts, place: Callable[[Any], torch.Tensor] | None = None) -> Chosen:
    """What casts these leaves of each batch into new tensors; where ``place`` has put them, if it is given."""
    casters = [_TorchCast(cast) for cast in casts.values()]

    def together(tensors: list[Any]) -> list[torch.Tensor]:
        placed = tensors if place is None else map(place, tensors)
        return [caster(tensor) for caster, tensor in zip(casters, placed, strict=True)]

    return Chosen(list(casts), together)


class _TorchCast:
    """Reads the tensor once and writes the new one, on which the steps work in place."""

    def __init__(self, cast: Cast) -> None:
        dtype: torch.dtype = getattr(torch, cast.dtype)
        self._dtype = dtype
        self._layout = cast.layout
        self._steps = [
            (operate, torch.from_numpy(np.ascontiguousarray(number)).reshape(number.shape).to(dtype))
            for operate, number in steps_of(cast)
        ]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.permute(TO_CHW) if self._layout else tensor
        found = moved.to(self._dtype, copy=True, memory_format=torch.contiguous_format)
        if self._steps and self._steps[0][1].device != found.device:
            self._steps = [(operate, number.to(found.device)) for operate, number in self._steps]
        for operate, number in self._steps:
            found = operate(found, number)
        return found
