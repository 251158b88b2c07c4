"""ringfeed as its README shows it: spawned workers, everything else at its default."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads import Workload


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """What the loader is told."""
    return {"batch_size": workload.batch_size, "workers": workers, "slots": slots, "start_method": "spawn"}


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """A loader over the workload's dataset."""
    import ringfeed  # noqa: PLC0415, its import belongs to the memory it takes

    with ringfeed.Loader(workload.dataset, **settings(workload, workers, slots)) as loader:
        yield loader
