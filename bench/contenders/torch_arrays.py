"""torch's DataLoader handing over arrays: for small batches a pickle is cheaper than shared memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader

from contenders import torch_dataloader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def as_they_are(batch: Any) -> Any:
    """A ready batch untouched, samples stacked field by field: in place of torch's making of tensors."""
    if not isinstance(batch, list):
        return batch
    return (
        tuple(map(np.stack, zip(*batch, strict=True)))
        if isinstance(batch[0], tuple)
        else np.stack(batch)
    )


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """What the loader is told: as with tensors, but further ahead, which costs small batches nothing."""
    chosen = torch_dataloader.settings(workload, workers, slots)
    return {**chosen, "prefetch_factor": 16, "collate_fn": as_they_are.__name__}


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """A loader over the workload's dataset."""
    chosen = settings(workload, workers, slots)
    yield DataLoader(workload.dataset, **{**chosen, "collate_fn": as_they_are})
