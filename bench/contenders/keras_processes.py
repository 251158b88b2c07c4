"""Keras' OrderedEnqueuer as `fit` drives it for a PyDataset with `use_multiprocessing=True`."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer

from contenders import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload

USE_PROCESSES = True


class Batches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """The workload as Keras wants it: whole batches by number."""

    def __init__(self, workload: Workload, **settings: Any) -> None:
        super().__init__(**settings)
        self._workload = workload

    def __len__(self) -> int:
        """Batches in the epoch."""
        return len(self._workload.dataset) // (self._workload.batch_size or 1)

    def __getitem__(self, number: int) -> Any:
        """One batch, each sample copied once into a new array."""
        return self._workload.batch(number)


def settings(
    workload: Workload, workers: int, slots: int, *, processes: bool = USE_PROCESSES
) -> dict[str, Any]:
    """Keras' own queue length, as `fit` leaves it; a shorter one saves memory and no time."""
    del workload, slots
    return {"workers": workers, "use_multiprocessing": processes, "max_queue_size": 10}


@contextmanager
def batches(
    workload: Workload, workers: int, slots: int, *, processes: bool = USE_PROCESSES
) -> Iterator[Iterable[Any]]:
    """The enqueuer's batches.

    It starts its pool when they are first asked for, as in `on_epoch_begin`.
    """
    chosen = settings(workload, workers, slots, processes=processes)
    enqueuer = OrderedEnqueuer(Batches(workload, **chosen), **chosen)
    try:
        yield Epochs(lambda: _epoch(enqueuer))
    finally:
        # Without draining: the epoch has not ended, and its rest would be computed and thrown away.
        enqueuer.stop(drain_queue_and_join=False)


def _epoch(enqueuer: OrderedEnqueuer) -> Iterator[Any]:
    """An epoch as `fit` has it: a new pool in `on_epoch_begin`, and its end in `on_epoch_end`."""
    enqueuer.start()
    yield from islice(enqueuer.get(), len(enqueuer.py_dataset))
    enqueuer.stop()
