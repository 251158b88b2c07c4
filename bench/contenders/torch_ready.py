"""torch's DataLoader with batch_size=None: workers make whole batches, and torch collates nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from contenders import torch_dataloader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


class Batches:
    """The workload as whole batches by number."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __len__(self) -> int:
        """Batches in the epoch."""
        return len(self._workload.dataset) // (self._workload.batch_size or 1)

    def __getitem__(self, number: int) -> Any:
        """One batch, each sample copied once into a new array."""
        return self._workload.batch(number)


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """What the loader is told: as with samples, but for their number."""
    return {**torch_dataloader.settings(workload, workers, slots), "batch_size": None}


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """A loader over the workload's batches."""
    yield DataLoader(Batches(workload), **settings(workload, workers, slots))
