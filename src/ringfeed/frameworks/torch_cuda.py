"""Copies to an NVIDIA or AMD GPU by torch, on a stream of their own."""

from __future__ import annotations

import torch


class CudaDevice:
    """One GPU, and the stream of its copies.

    Streams, events and memory are torch's own, so that its allocator knows who uses what on which stream. The slots
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
        event = torch.cuda.Event(blocking=True)  # whoever waits for it leaves the CPU to the workers
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
