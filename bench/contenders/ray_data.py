"""Ray Data: a range of numbers, a map over it by as many actors as there are workers, and `iter_batches`."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ray

from contenders import Epochs
from harness.proctree import descendants

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    import numpy as np

    from workloads.workload import Workload

TASK_BATCHES, TASK_BYTES = 16, 1 << 20  # that an actor makes of one task: a task costs milliseconds
END_S = 10.0
LAST_WORDS_S = (
    0.5  # a thread of its executor that is late, and finds Ray shut down, aborts the process
)


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """Actors that have the dataset once, blocks in order, and as many batches fetched ahead as there are slots."""
    rows = workload.batch_size or 1
    return {
        "actors": workers,
        "rows": rows,
        "batches_per_task": max(TASK_BATCHES, TASK_BYTES // workload.batch_bytes()),
        "target_max_block_size": max(TASK_BYTES, workload.batch_bytes()),
        "prefetch_batches": slots,
        "preserve_order": True,
    }


class Fill:
    """An actor: numbers of batches become their fields."""

    def __init__(self, there: tuple[Any]) -> None:
        self._workload: Workload = ray.get(
            there[0]
        )  # arrays lie in the object store, once for all actors

    def __call__(self, numbers: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """A column for each field, batch after batch; ready ones are rows of their own."""
        for number in numbers["id"]:
            whole = self._workload.batch(int(number))
            fields = whole if isinstance(whole, tuple) else (whole,)
            ready = self._workload.batch_size is None
            yield {
                f"{place}": field[None] if ready else field for place, field in enumerate(fields)
            }


def _taken(dataset: Any, chosen: dict[str, Any], *, ready: bool) -> Generator[Any, None, None]:
    """An epoch as the other contenders have it: fields in order, ready batches without an axis more."""
    ahead = chosen["prefetch_batches"]
    with closing(
        iter(dataset.iter_batches(batch_size=chosen["rows"], prefetch_batches=ahead))
    ) as walk:
        for columns in walk:
            fields = tuple(column[0] if ready else column for column in columns.values())
            yield fields if len(fields) > 1 else fields[0]


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """A cluster of one machine, and the dataset's batches."""
    chosen = settings(workload, workers, slots)
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    with TemporaryDirectory(prefix="ray") as folder, ExitStack() as begun:
        ray.init(num_cpus=workers + 1, _temp_dir=folder, **quiet)
        try:
            context = ray.data.DataContext.get_current()
            context.execution_options.preserve_order = chosen["preserve_order"]
            context.target_max_block_size = chosen[
                "target_max_block_size"
            ]  # large batches come one by one
            context.enable_progress_bars = False
            begin = partial(
                _taken, _dataset(workload, chosen), chosen, ready=workload.batch_size is None
            )
            yield Epochs(lambda: begun.enter_context(closing(begin())))
        finally:
            begun.close()  # one that asks Ray for anything later would start it again
            time.sleep(LAST_WORDS_S)
            ray.shutdown()
            _wait_for_the_end()


def _dataset(workload: Workload, chosen: dict[str, Any]) -> Any:
    count, size = len(workload.dataset) // chosen["rows"], chosen["batches_per_task"]
    numbers = ray.data.range(count, override_num_blocks=max(1, count // size))
    there = ((ray.put(workload),),)
    actors = ray.data.ActorPoolStrategy(size=chosen["actors"])
    return numbers.map_batches(Fill, fn_constructor_args=there, batch_size=size, compute=actors)


def _wait_for_the_end() -> None:
    """Until Ray's processes have gone: `shutdown` comes back before that."""
    end = time.monotonic() + END_S
    while descendants(os.getpid()) and time.monotonic() < end:
        time.sleep(0.05)
