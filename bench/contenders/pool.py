"""multiprocessing.Pool.imap over the numbers of the batches, with no more of them on their way than there are slots.

By itself imap hands out all its tasks at once, and results that were not taken yet would fill the
memory; the iterable of tasks waits here for the consumer, as its documentation leaves to the user.
"""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from contenders import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload

_workload: list[Workload] = []  # of a worker


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """How the pool is set up: forked, so that the dataset is sent to no process."""
    del workload
    return {"processes": workers, "chunksize": 1, "in_flight": slots, "backend": "fork"}


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """The results of imap, each making room for another task."""
    room, ended = threading.Semaphore(slots), threading.Event()
    count = len(workload.dataset) // (workload.batch_size or 1)
    with multiprocessing.get_context("fork").Pool(workers, _workload.append, (workload,)) as pool:
        try:
            yield Epochs(
                lambda: _taken(pool.imap(_make, _tasks(count, room, ended), chunksize=1), room)
            )
        finally:
            ended.set()
            room.release()  # the pool waits for its thread, which may wait for room


def _tasks(count: int, room: threading.Semaphore, ended: threading.Event) -> Iterator[int]:
    for number in range(count):
        room.acquire()
        if ended.is_set():
            return
        yield number


def _taken(results: Iterator[Any], room: threading.Semaphore) -> Iterator[Any]:
    for batch in results:
        room.release()
        yield batch


def _make(number: int) -> Any:
    return _workload[0].batch(number)
