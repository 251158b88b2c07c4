"""A loader's batches as torch tensors over the slots themselves.

Each tensor keeps its slot until the last tensor over the same memory is gone, also after the loader was closed. Like
the arrays that the loader hands out, they can be written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ringfeed.errors import SpecError
from ringfeed.frameworks.cast import casts_of
from ringfeed.frameworks.epochs import Epochs
from ringfeed.frameworks.prefetch import DeviceEpochs
from ringfeed.frameworks.torch_cast import torch_casts
from ringfeed.frameworks.torch_cuda import CudaDevice
from ringfeed.spec.builder import BatchBuilder
from ringfeed.spec.dlpack import Exports

if TYPE_CHECKING:
    from ringfeed.frameworks.base import BatchStream, LoaderInfo
    from ringfeed.frameworks.cast import Casts, CastTree
    from ringfeed.ring._ring import Lease


def to_torch(stream: BatchStream, device: torch.device | str | None = None, cast: CastTree = None) -> Epochs:
    """Epochs of the loader in tensors, in the structure of a sample; nothing is copied, but to a GPU.

    What is ``cast`` is a new tensor, made where the batch is: on a GPU it is copied there as the uint8 that it is, and
    cast by the stream of the step. It does not keep the slot; leaves that are not cast do.

    Raises ValueError for a device other than the CPU and a GPU that torch sees, SpecError for a leaf of which torch
    has no tensors.
    """
    where = torch.device("cpu" if device is None else device)
    info = stream.info
    casts = casts_of(info.spec, cast, "to_torch")
    builder = _Tensors(info, casts)
    if where.type == "cuda":
        return DeviceEpochs(stream, CudaDevice(where), builder.leaves, torch_casts(casts))
    _check_device(where)
    return Epochs(stream, lambda: builder)


class _Tensors(BatchBuilder):
    copied_by = "a tensor is copied by .clone()"

    def __init__(self, info: LoaderInfo, casts: Casts | None = None) -> None:
        casts = casts or {}
        for leaf in info.spec.leaves:
            if not isinstance(getattr(torch, leaf.dtype.name, None), torch.dtype):
                raise SpecError(
                    f"{leaf.path} has dtype {leaf.dtype}, of which torch {torch.__version__} has no tensors; "
                    "convert it in __getitem__"
                )
        self._exports = Exports(info.spec.leaves, info.offsets)
        self._unflatten = info.spec.unflatten
        self._cast = torch_casts(casts)
        self._uncast = [number for number in range(len(info.spec.leaves)) if number not in casts]
        self._cloned = self._uncast if info.copy else []

    def __call__(self, lease: Lease, rows: int) -> Any:
        return self._tensors(lease, rows, self._cloned)

    def private(self, lease: Lease, rows: int) -> Any:
        return self._tensors(lease, rows, self._uncast)

    def _tensors(self, lease: Lease, rows: int, cloned: list[int]) -> Any:
        tensors = self._cast(self.leaves(lease, rows))
        for number in cloned:
            tensors[number] = tensors[number].clone()
        return self._unflatten(tensors)

    def leaves(self, lease: Lease, rows: int) -> list[torch.Tensor]:
        """The tensors over the slot, in the order of the spec."""
        return [torch.from_dlpack(capsule) for capsule in self._exports.capsules(lease, rows)]


def _check_device(device: torch.device) -> None:
    if device.type != "cpu":
        raise ValueError(
            f"to_torch(device={str(device)!r}) is not there yet, expected 'cuda', 'cpu' or None; move each batch "
            "yourself, as in x.to(device)"
        )
