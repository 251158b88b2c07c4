"""ringfeed as its README shows it: everything at its default."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def settings(
    workload: Workload, workers: int, slots: int, *, backend: str = "process"
) -> dict[str, Any]:
    """What the loader is told."""
    order = {"shuffle": True, "drop_remainder": True} if workload.shuffled else {}
    return {
        "batch_size": workload.batch_size,
        "workers": workers,
        "slots": slots,
        "backend": backend,
        **order,
    }


@contextmanager
def batches(
    workload: Workload, workers: int, slots: int, *, backend: str = "process"
) -> Iterator[Iterable[Any]]:
    """A loader over the workload's dataset; where it shuffles, one epoch after another."""
    import ringfeed  # noqa: PLC0415, its import belongs to the memory it takes

    dataset = workload.dataset if workload.given is None else workload.given
    with ringfeed.Loader(dataset, **settings(workload, workers, slots, backend=backend)) as loader:
        yield chain.from_iterable(repeat(loader)) if workload.shuffled else loader
