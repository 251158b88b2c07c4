"""torch: `to_torch("cuda")`, and torch's DataLoader with its own pinned memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from devices.common import PAGEABLE, PINNED, SLOTS, WORKERS, Feed, Pictures, Scale, loader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTENDERS = (PINNED, PAGEABLE, "DataLoader, pin_memory", "DataLoader")


def why_not() -> str:
    """Why nothing can be measured; empty where it can."""
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


class Gpu:
    """The current device of CUDA."""

    def __init__(self, device: str = "cuda", scale: Scale | None = None) -> None:
        self.device = device
        self.name = torch.cuda.get_device_name() if device == "cuda" else device
        width = (scale or Scale()).width
        self.numbers = torch.rand((width, width), device=device)

    def put(self, batch: Any) -> Any:
        """From pinned memory the copy runs by itself; `wait` ends both kinds."""
        copied = batch.to(self.device, non_blocking=True, copy=True)
        self.wait()
        return copied

    def multiply(self, rounds: int, batch: Any) -> None:
        """On the current stream."""
        for _ in range(rounds):
            torch.mm(self.numbers, self.numbers)
        if batch is not None:
            batch.sum()

    def wait(self) -> None:
        """For all streams."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@contextmanager
def feed(contender: str, scale: Scale, device: str = "cuda") -> Iterator[Feed]:
    """The batches of a contender."""
    if contender in {PINNED, PAGEABLE}:
        with (
            loader(scale, pin=contender == PINNED) as host,
            loader(scale, pin=contender == PINNED) as fed,
        ):
            yield Feed(host.to_torch(), fed.to_torch(device))
        return
    settings: dict[str, Any] = {
        "num_workers": WORKERS,
        "persistent_workers": True,
        "prefetch_factor": SLOTS // WORKERS,
    }
    batches = torch.utils.data.DataLoader(
        Pictures(scale), scale.rows, pin_memory=contender.endswith("pin_memory"), **settings
    )
    yield Feed(batches, _moved(batches, device))


def _moved(batches: Iterable[Any], device: str) -> Iterator[Any]:
    """As torch's own guide has it: the copy is begun, and what follows on the stream waits for it."""
    for batch in batches:
        yield batch.to(device, non_blocking=True)
