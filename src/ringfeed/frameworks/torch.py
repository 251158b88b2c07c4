"""A loader's batches as torch tensors over the slots themselves.

Each tensor keeps its slot until the last tensor over the same memory is gone, also after the loader
was closed. Like the arrays that the loader hands out, they can be written to.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ringfeed.errors import SpecError
from ringfeed.frameworks.base import BatchStream, Epochs
from ringfeed.frameworks.batch import Framework, TensorBuilder
from ringfeed.frameworks.cast import Casts, CastTree, Chosen, caster_of, casts_of
from ringfeed.frameworks.device import DevicePrefetcher
from ringfeed.frameworks.dlpack import type_of
from ringfeed.frameworks.forms import as_text, is_string, refuse_forms
from ringfeed.spec.forms import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.conversion import Cast


PORTABLE = 1
"""The flag of memory that is registered for all GPUs: cudaHostRegisterPortable."""
STRINGS = "SU"
"""The kinds of NumPy's dtypes of strings."""


def to_torch(
    stream: BatchStream, device: torch.device | str | None = None, cast: CastTree = None
) -> Epochs:
    """Return epochs of the loader in tensors, structured as a sample; only a GPU's are copies.

    What is ``cast`` is a new tensor, made where the batch is: on a GPU it is copied there as the
    uint8 that it is, and cast by the stream of the step. It does not keep the slot; leaves that are
    not cast do.

    Leaves whose samples differ in length, over the slot as well:

    - ``form="ragged"``: a nested tensor in the jagged layout; ``.values()`` and ``.offsets()`` are
      its parts.
    - ``form="pad"``: a tensor; with lengths or a mask a `Padded` or `Masked` of tensors.
    - `Bytes`: a list of uint8 tensors, one a sample, as `torchvision.io.decode_jpeg` takes them.
    - `Text`: a list of str.

    Strings of NumPy (dtypes S and U), of which torch has no tensors, stay arrays, ragged ones a
    `Ragged`, and are copies. These, `Bytes` and `Text` stay on the CPU, whatever the device.

    Raises ValueError for a device other than the CPU and a GPU that torch sees, SpecError for a
    leaf of which torch has no tensors, or for ragged ones before torch 2.4.
    """
    where = torch.device("cpu" if device is None else device)
    info = stream.info
    casts = casts_of(info.spec, cast, "to_torch")
    check_dtypes(info.spec.leaves)
    if where.type == "cuda":
        gpu = CudaDevice(where)
        builder = TensorBuilder(replace(info, copy=False), TORCH, cast=torch_casts(casts))
        return Epochs(stream, lambda: DevicePrefetcher(stream, gpu, builder))
    if where.type != "cpu":
        raise ValueError(
            f"to_torch(device={str(where)!r}) is not there yet, expected 'cuda', 'cpu' or None; "
            "move each batch yourself, as in x.to(device)"
        )
    builder = TensorBuilder(info, TORCH, cast=torch_casts(casts))
    return Epochs(stream, lambda: stream.epoch(builder))


def _from_numpy(array: AnyArray) -> Any:
    if array.dtype.kind in STRINGS:
        return array
    if array.dtype.name == "bfloat16":  # which torch does not take from NumPy
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _nested(values: Any, row_splits: torch.Tensor) -> torch.Tensor | Ragged:
    if isinstance(values, np.ndarray):  # strings of NumPy
        return Ragged(values, row_splits.numpy())
    return torch.nested.nested_tensor_from_jagged(values, offsets=row_splits)


def _samples(values: torch.Tensor, row_splits: torch.Tensor) -> list[torch.Tensor]:
    """The bytes of each sample, over the memory of all."""
    return list(values.split(row_splits.diff().tolist()))


TORCH = Framework(
    torch.from_dlpack,
    _from_numpy,
    copied_by="a tensor is copied by .clone()",
    joins={
        "ragged": _nested,
        "bytes": _samples,
        "text": lambda values, row_splits: as_text(values.numpy(), row_splits.numpy()),
    },
    on_host=lambda leaf: is_string(leaf) or leaf.dtype.kind in STRINGS,
)


def check_dtypes(leaves: Sequence[Leaf]) -> None:
    """Refuse leaves of which torch has no tensors."""
    if not hasattr(torch.nested, "nested_tensor_from_jagged"):
        lack = f"torch {torch.__version__} has no tensors: they need 2.4"
        refuse_forms(
            leaves, frozenset({"ragged"}), lack, "update torch, or give form='pad' in spec="
        )
    for leaf in leaves:
        if leaf.dtype.kind in STRINGS:
            continue
        if not isinstance(getattr(torch, leaf.dtype.name, None), torch.dtype):
            raise SpecError(
                f"{leaf.path} has dtype {leaf.dtype}, of which torch {torch.__version__} has no "
                "tensors; convert it in __getitem__"
            )
        type_of(leaf)


# ---- casts, where the tensors are: on the GPU after the copy, else on the CPU ----


def torch_casts(
    casts: Casts, place: Callable[[Any], torch.Tensor] = lambda tensor: tensor
) -> Chosen:
    """Return what casts these leaves of each batch into new tensors, where ``place`` puts them."""

    def caster(cast: Cast) -> Callable[[Any], torch.Tensor]:
        return lambda leaf: _caster(cast, (tensor := place(leaf)).device)(tensor)

    return Chosen({number: caster(cast) for number, cast in casts.items()})


@cache
def _caster(cast: Cast, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """One for each device, where the numbers of the steps are put once."""
    dtype: torch.dtype = getattr(torch, cast.dtype)
    return caster_of(
        cast,
        torch.permute,
        lambda tensor: tensor.to(dtype, copy=True, memory_format=torch.contiguous_format),
        lambda number: torch.from_numpy(number).to(dtype).to(device),
    )


# ---- copies to an NVIDIA or AMD GPU, on a stream of their own ----


class CudaDevice:
    """One GPU, and the stream of its copies.

    Streams, events and memory are torch's own, so that its allocator knows which stream uses what.
    So is the registration of the slots, whose tensors are pinned for torch from then on.
    """

    def __init__(self, device: torch.device) -> None:
        """Take the GPU; ValueError without one."""
        self._device = torch.device(device.type, _number_of(device))
        self._stream = torch.cuda.Stream(self._device)
        self.registrar = (
            lambda address, size: self._call("cudaHostRegister", address, size, PORTABLE),
            lambda address: self._call("cudaHostUnregister", address),
        )

    def _call(self, name: str, *arguments: int) -> None:
        with torch.cuda.device(self._device):  # else a thread of its own would use GPU 0
            torch.cuda.check_error(int(getattr(torch.cuda.cudart(), name)(*arguments)))

    def copy(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event]:
        """Begin to copy; memory that is not registered is read when this returns."""
        event = torch.cuda.Event(blocking=True)  # its waiter leaves the CPU to the workers
        with torch.cuda.stream(self._stream):
            try:
                copies = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
                event.record(self._stream)
            except BaseException:
                self._stream.synchronize()
                raise
        return copies, event

    def is_computing(self) -> bool:
        """Whether this thread's stream is not through with what the program has asked for."""
        return not torch.cuda.current_stream(self._device).query()

    def hand_over(self, copies: list[torch.Tensor], event: torch.cuda.Event) -> None:
        """Make this thread's stream wait for the copies, and the copies outlive its use of them."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for copy in copies:
            copy.record_stream(stream)


def _number_of(device: torch.device) -> int:
    asked = f"to_torch(device={str(device)!r})"
    if not torch.cuda.is_available():
        built = (
            f"is built for CUDA {torch.version.cuda}"
            if torch.version.cuda
            else "is built without CUDA"
        )
        raise ValueError(
            f"{asked} needs a GPU, and torch {torch.__version__}, which {built}, sees none; see "
            "that nvidia-smi shows one and install a torch for it, or leave device out"
        )
    count = torch.cuda.device_count()
    number: int = torch.cuda.current_device() if device.index is None else device.index
    if number >= count:
        raise ValueError(f"{asked}, expected a number below {count}: torch sees {count} GPUs")
    return number
