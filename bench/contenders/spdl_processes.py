"""SPDL's pipeline: a source of numbers, a stage in a pool of processes that makes batches, in order, and a sink."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from spdl.pipeline import PipelineBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload

_workload: list[Workload] = []  # of a worker


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """As many batches at a time as there are workers, and the rest of the slots between them and the consumer."""
    del workload
    return {
        "max_workers": workers,
        "concurrency": workers,
        "buffer_size": max(1, slots - workers),
        "start": "fork",
    }


class Pipelines(ExitStack):
    """A pipeline for each epoch, as SPDL has it, over processes that stay.

    The last is stopped in the end.
    """

    def __init__(self, executor: ProcessPoolExecutor, length: int, chosen: dict[str, Any]) -> None:
        super().__init__()
        self._executor, self._length, self._chosen = executor, length, chosen

    def __iter__(self) -> Iterator[Any]:
        self.close()
        builder = PipelineBuilder().add_source(range(self._length))
        order = {"concurrency": self._chosen["concurrency"], "output_order": "input"}
        builder = builder.pipe(_make, executor=self._executor, **order)
        pipeline = builder.add_sink(self._chosen["buffer_size"]).build(num_threads=1)
        self.enter_context(pipeline.auto_stop())
        return iter(pipeline)


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """The pipeline's batches; its pool is there before it."""
    chosen = settings(workload, workers, slots)
    context = multiprocessing.get_context("fork")
    length = len(workload.dataset) // (workload.batch_size or 1)
    executor = ProcessPoolExecutor(workers, context, _workload.append, (workload,))
    with executor, Pipelines(executor, length, chosen) as epochs:
        yield epochs


def _make(number: int) -> Any:
    return _workload[0].batch(number)
