"""A loader's batches as torch tensors over the slots themselves.

Each tensor keeps its slot until the last tensor over the same memory is gone, also after the loader was closed. Like
the arrays that the loader hands out, they can be written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ringfeed.errors import SpecError
from ringfeed.frameworks.cast import TO_CHW, Chosen, casts_of, steps_of
from ringfeed.frameworks.epochs import Epochs
from ringfeed.frameworks.prefetch import DeviceEpochs
from ringfeed.spec.builder import BatchBuilder
from ringfeed.spec.dlpack import Exports

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.frameworks.base import BatchStream, LoaderInfo
    from ringfeed.frameworks.cast import Casts, CastTree
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.conversion import Cast


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


# ---- casts, where the tensors are: on the GPU after the copy, else on the CPU ----


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


# ---- copies to an NVIDIA or AMD GPU, on a stream of their own ----


class CudaDevice:
    """One GPU, and the stream of its copies.

    Streams, events and memory are torch's own, so that its allocator knows which stream uses what. The slots
    are registered by the driver and not by torch, which has no more than the same call: registered once, they are so
    for every framework, and torch takes them for pinned.
    """

    registrar = None

    def __init__(self, device: torch.device) -> None:
        """Take the GPU; ValueError without one."""
        self._device = torch.device(device.type, _number_of(device))
        self._stream = torch.cuda.Stream(self._device)

    def copy(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], CudaEvent]:
        """Begin to copy; memory that is not registered is read when this returns."""
        event = torch.cuda.Event(blocking=True)  # its waiter leaves the CPU to the workers
        with torch.cuda.stream(self._stream):
            try:
                copies = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
                event.record(self._stream)
            except BaseException:
                self._stream.synchronize()
                raise
        return copies, CudaEvent(event)

    def hand_over(self, copies: list[torch.Tensor], event: CudaEvent) -> None:
        """Have this thread's stream wait for the copy, and the copies outlive what it does with them."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event.event)
        for copy in copies:
            copy.record_stream(stream)


class CudaEvent:
    """The end of a copy."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def passed(self) -> bool:
        """Answer at once."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Return when it has passed."""
        self.event.synchronize()


def _number_of(device: torch.device) -> int:
    asked = f"to_torch(device={str(device)!r})"
    if not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        raise ValueError(
            f"{asked} needs a GPU, and torch {torch.__version__}, which {built}, sees none; see that nvidia-smi shows "
            "one and install a torch for it, or leave device out"
        )
    count = torch.cuda.device_count()
    number: int = torch.cuda.current_device() if device.index is None else device.index
    if number >= count:
        raise ValueError(f"{asked}, expected a number below {count}: torch sees {count} GPUs")
    return number
