"""torch's DataLoader with persistent workers and as many batches in flight as there are slots."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """What the loader is told.

    Workers are forked and tensors travel in shared memory, torch's defaults.
    """
    return {
        "batch_size": workload.batch_size,
        "num_workers": workers,
        "prefetch_factor": max(2, slots // workers),
        "persistent_workers": True,
    }


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """A loader over the workload's dataset."""
    yield DataLoader(workload.dataset, **settings(workload, workers, slots))
