"""torch: `to_torch("cuda")`, and torch's DataLoader with its own pinned memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from devices.common import PAGEABLE, PINNED, WORKERS, Feed, Scale, dataset_of, loader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
        with loader(scale, pin=contender == PINNED) as made:
            next(iter(made.to_torch(device)))  # which has torch register the slots
            yield Feed(made.to_torch(), made.to_torch(device))
        return
    batches = data_loader(scale, pin_memory=contender.endswith("pin_memory"))
    yield Feed(batches, _moved(batches, device))


def data_loader(scale: Scale, **settings: Any) -> Any:
    """The DataLoader of torch, with workers that stay and two batches ahead each, its default."""
    return torch.utils.data.DataLoader(
        dataset_of(scale),  # type: ignore[arg-type] # a dataset by its methods
        scale.rows,
        num_workers=WORKERS,
        persistent_workers=True,
        **settings,
    )


def _moved(batches: Iterable[Any], device: str) -> Iterator[Any]:
    """As torch's own guide has it: the copy is begun, and what follows on the stream waits for it."""
    for batch in batches:
        yield batch.to(device, non_blocking=True)
