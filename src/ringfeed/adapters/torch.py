"""A loader's batches as torch tensors over the slots themselves.

Each tensor keeps its slot until the last tensor over the same memory is gone, also after the loader was closed. Like
the arrays that the loader hands out, they can be written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ringfeed.adapters.ahead import DeviceEpochs
from ringfeed.adapters.epochs import Epochs
from ringfeed.adapters.torch_cuda import CudaDevice
from ringfeed.errors import SpecError
from ringfeed.exports import Exports

if TYPE_CHECKING:
    from ringfeed._ring import Lease
    from ringfeed.loader import Loader


def to_torch(loader: Loader, device: torch.device | str | None = None) -> Epochs:
    """Epochs of the loader in tensors, in the structure of a sample; nothing is copied, but to a GPU.

    Raises ValueError for a device other than the CPU and a GPU that torch sees, SpecError for a leaf of which torch
    has no tensors.
    """
    where = torch.device("cpu" if device is None else device)
    maker = _Tensors(loader)
    if where.type == "cuda":
        return DeviceEpochs(loader, CudaDevice(where), maker.leaves)
    _check_device(where)
    return Epochs(loader, lambda: maker)


class _Tensors:
    copied_by = "a tensor is copied by .clone()"

    def __init__(self, loader: Loader) -> None:
        for leaf in loader.spec.leaves:
            if not isinstance(getattr(torch, leaf.dtype.name, None), torch.dtype):
                raise SpecError(
                    f"{leaf.path} has dtype {leaf.dtype}, of which torch {torch.__version__} has no tensors; "
                    "convert it in __getitem__"
                )
        self._exports = Exports(loader.spec.leaves, loader.plan.layout.offsets)
        self._unflatten = loader.spec.unflatten
        self._copies = loader.copy

    def __call__(self, lease: Lease, rows: int) -> Any:
        tensors = self.leaves(lease, rows)
        return self._unflatten([tensor.clone() for tensor in tensors] if self._copies else tensors)

    def leaves(self, lease: Lease, rows: int) -> list[torch.Tensor]:
        """The tensors over the slot, in the order of the spec."""
        return [torch.from_dlpack(capsule) for capsule in self._exports.capsules(lease, rows)]

    def lets_go_later(self, _waited_s: float) -> bool:
        """No: on the CPU torch has read a tensor when the call returns that was given it."""
        return False


def _check_device(device: torch.device) -> None:
    if device.type != "cpu":
        raise ValueError(
            f"to_torch(device={str(device)!r}) is not there yet, expected 'cuda', 'cpu' or None; move each batch "
            "yourself, as in x.to(device)"
        )
