"""faster-fifo: a queue in shared memory for each worker process, every batch a pickle in it.

One queue a worker keeps the batches in order and bounds what is read ahead, as torch's DataLoader
does; the consumer takes what has come with one `get_many`.
"""

from __future__ import annotations

import multiprocessing
import queue
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from faster_fifo import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload

PICKLE_BYTES = 4096  # around the arrays of a batch, and more than enough
LEAST_BYTES = 1_000_000  # the size of its own example: small batches gain by more room


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """Each queue has room for its worker's part of the slots, pickled."""
    part = max(1, slots // workers) * (workload.batch_bytes() + PICKLE_BYTES)
    return {"processes": workers, "max_size_bytes": max(LEAST_BYTES, part), "backend": "fork"}


class Epochs:
    """The batches of the queues in turn.

    The workers make one epoch after another, without being asked.
    """

    def __init__(self, queues: list[Queue], length: int) -> None:
        self._queues, self._length = queues, length
        self._turn = count()
        self._taken: list[Iterator[Any]] = [iter(()) for _ in queues]

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._length):
            number = next(self._turn) % len(self._queues)
            batch = next(self._taken[number], None)
            if batch is None:
                self._taken[number] = iter(_got(self._queues[number]))
                batch = next(self._taken[number])
            yield batch


def _got(source: Queue) -> Any:
    """What has come, or is the first to come: the queue gives up by itself after so many seconds."""
    while True:
        try:
            return source.get_many(timeout=10.0)
        except queue.Empty:
            continue


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """An epoch from as many processes and queues as there are workers."""
    room = settings(workload, workers, slots)["max_size_bytes"]
    length = len(workload.dataset) // (workload.batch_size or 1)
    context = multiprocessing.get_context("fork")
    queues = [Queue(max_size_bytes=room) for _ in range(workers)]
    processes = [
        context.Process(target=_work, args=(workload, (number, workers, length), mine), daemon=True)
        for number, mine in enumerate(queues)
    ]
    for process in processes:
        process.start()
    try:
        yield Epochs(queues, length)
    finally:
        for process in processes:
            process.kill()  # it may wait for room, holding the queue's lock
            process.join()


def _work(workload: Workload, place: tuple[int, int, int], sink: Queue) -> None:
    """Every n-th batch of one epoch after another."""
    number, workers, length = place
    for batch in count(number, workers):
        sink.put(workload.batch(batch % length), timeout=1e6)
