"""No loader at all: the consumer makes each batch itself, in a new array."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from contenders import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """One process, nothing read ahead, whatever was asked."""
    del workload, workers, slots
    return {"workers": 0}


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """The batches, each made when it is asked for."""
    del workers, slots
    samples = workload.batch_size or 1
    yield Epochs(lambda: map(workload.batch, range(len(workload.dataset) // samples)))
