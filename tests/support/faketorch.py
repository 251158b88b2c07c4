"""torch.cuda without a GPU: streams that copy late, events that pass when waited for, and a strict runtime."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import fakecuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

POISON = 85


class Stream:
    """Does what it is given when an event that comes later is waited for."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.jobs: list[Any] = []

    def run(self, count: int) -> None:
        """Do the first of the jobs, up to a number counted from the beginning."""
        for position in range(count):
            job, self.jobs[position] = self.jobs[position], None
            if job is not None:
                job()

    def query(self) -> bool:
        """Whether all is done."""
        return all(job is None for job in self.jobs)

    def wait_event(self, event: Event) -> None:
        """Wait for the event: at once, since nothing is late here."""
        event.synchronize()

    def synchronize(self) -> None:
        """Do all."""
        self.run(len(self.jobs))


class Event:
    """A place in a stream."""

    def __init__(self, **options: Any) -> None:
        assert options == {"blocking": True}
        self.place: tuple[Stream, int] | None = None

    def record(self, stream: Stream) -> None:
        """Be here."""
        self.place = stream, len(stream.jobs)

    def query(self) -> bool:
        """Nothing passes by itself."""
        assert self.place is not None
        stream, count = self.place
        return all(job is None for job in stream.jobs[:count])

    def synchronize(self) -> None:
        """Have it pass."""
        assert self.place is not None
        stream, count = self.place
        stream.run(count)


class Fake:
    """What torch.cuda and tensors do of it."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.current = self.default = Stream()
        self.recorded: list[tuple[int, Stream]] = []  # (address, stream)
        self.fail_at = 0  # the number of the copy
        self.cuda = fakecuda.FakeCuda()

    def stream(self, device: Any) -> Stream:
        """Make a stream, of a GPU that has a number."""
        assert device == torch.device("cuda", 1)
        self.streams.append(Stream(device))
        return self.streams[-1]

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Make a stream the current one."""
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def on(self, device: Any) -> Iterator[None]:
        """Make the GPU with a number the current one."""
        assert device == torch.device("cuda", 1)
        yield

    def to(self, tensor: Any, device: Any, *, non_blocking: bool) -> Any:
        """Copy by the current stream, which reads late and keeps nothing alive, as a GPU does."""
        assert (device, non_blocking) == (torch.device("cuda", 1), True)
        assert self.current in self.streams
        self.fail_at -= 1
        if self.fail_at == 0:
            raise RuntimeError("CUDA out of memory")
        copy = torch.full_like(tensor, POISON)
        address, into = tensor.data_ptr(), copy.numpy()
        self.current.jobs.append(lambda: np.copyto(into, _at(address, into)))
        return copy


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA error ({code})")


def _at(address: int, like: Any) -> Any:
    """Return an array over memory that nothing holds."""
    raw = (ctypes.c_uint8 * like.nbytes).from_address(address)
    return np.frombuffer(raw, like.dtype).reshape(like.shape)


def install(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Have torch find two GPUs, the second of them current."""
    found = Fake()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found.cuda)
    monkeypatch.setattr(torch.cuda, "check_error", _check)
    monkeypatch.setattr(torch.cuda, "device", found.on)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", found.stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", found.use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: found.current)
    real = torch.Tensor.to

    def to(tensor: Any, device: Any, **how: Any) -> Any:
        return real(tensor, device, **how) if device == "cpu" else found.to(tensor, device, **how)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: found.recorded.append((tensor.data_ptr(), stream)),
    )
    return found
