"""Grain's MapDataset, batched, with worker processes: `mp_prefetch`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grain
from absl import flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """As many batches in flight as there are slots.

    No threads in workers, as Grain advises for what lies in memory.
    """
    return {
        "batch_size": workload.batch_size,
        "num_workers": workers,
        "per_worker_buffer_size": max(1, slots // workers),
        "num_threads": 0,
    }


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """The dataset's elements; ready batches go as they are."""
    flags.FLAGS.mark_as_parsed()  # Grain reads its own, and refuses to before a command line was parsed
    chosen = settings(workload, workers, slots)
    dataset = grain.MapDataset.source(workload.dataset)
    if workload.batch_size is not None:
        dataset = dataset.batch(workload.batch_size)
    reading = grain.ReadOptions(num_threads=chosen["num_threads"], prefetch_buffer_size=0)
    sharing = grain.MultiprocessingOptions(workers, chosen["per_worker_buffer_size"])
    yield dataset.to_iter_dataset(reading).mp_prefetch(sharing)
