"""What happens in a fresh process of a `fit` case: training of a small CNN, and what each of its epochs took.

The photographs, their crops and their order are those of the workload `jpeg`.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from contenders import CONTENDERS
from harness.job import Job
from harness.machine import versions
from harness.proctree import cpu_s_of_machine, usage_of_tree
from workloads.photographs import CLASSES, IMAGE, Photographs
from workloads.workload import Window, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 32  # of a batch
BATCHES = {"input-bound": 48, "compute-bound": 20}  # of an epoch
COMPILING = 2  # epochs that do not count: JAX compiles the step once more in the second
MARGIN = 64  # the models look at the middle of a picture: torch takes longer to turn a whole one than to decode it
FILTERS = {
    "input-bound": ((8, 4, 4),),
    "compute-bound": ((32, 3, 2), (64, 3, 2), (128, 3, 2), (128, 3, 2)),
}


def build_model(size: str) -> Any:
    """A convolutional network, the same weights every time."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input(IMAGE, dtype="uint8"), keras.layers.Cropping2D(MARGIN)]
    layers.append(keras.layers.Rescaling(1 / 127.5, -1))
    for filters, side, stride in FILTERS[size]:
        layers.append(keras.layers.Conv2D(filters, side, stride, padding="same", activation="relu"))
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=keras.backend.backend() == "jax")
    return model


@contextmanager
def _by_ringfeed(workload: Workload, workers: int, slots: int) -> Iterator[Any]:
    with CONTENDERS["ringfeed"].load().batches(workload, workers, slots) as loader:
        yield loader.to_keras()


@contextmanager
def _by_keras_processes(workload: Workload, workers: int, slots: int) -> Iterator[Any]:
    module = CONTENDERS["keras-processes"].load()
    yield module.Batches(workload, **module.settings(workload, workers, slots))


@contextmanager
def _by_keras_threads(workload: Workload, workers: int, slots: int) -> Iterator[Any]:
    module = CONTENDERS["keras-processes"].load()
    yield module.Batches(
        workload, **CONTENDERS["keras-threads"].load().settings(workload, workers, slots)
    )


@contextmanager
def _by_nobody(workload: Workload, workers: int, slots: int) -> Iterator[Any]:
    """The model alone: as many batches as there are slots lie in memory."""
    from harness.bare import Constant  # noqa: PLC0415 - Keras takes no adapters before 3.7

    del workers
    yield Constant([workload.batch(number) for number in range(slots)], workload.window.most)


FEEDS: dict[str, Callable[[Workload, int, int], Any]] = {
    "ringfeed": _by_ringfeed,
    "keras-processes": _by_keras_processes,
    "keras-threads": _by_keras_threads,
    "model": _by_nobody,
}


class End(NamedTuple):
    """The clocks at the end of an epoch: of the wall, of this process and its workers, of the whole machine."""

    at_s: float
    used_s: float
    busy_s: float


class Epochs(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Notes when each epoch ends and what the process tree has used until then; ends the training in time.

    An epoch lasts from the end of the one before to its own, so that what is done between two
    counts.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._ends: list[End] = []
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Wait for the loss, with which the last step is done, then look at the clocks."""
        self.losses.append(float((logs or {})["loss"]))
        if epoch + 1 >= COMPILING:
            self._ends.append(End(time.perf_counter(), usage_of_tree().cpu_s, cpu_s_of_machine()))
            enough = self._ends[-1].at_s - self._ends[0].at_s >= self._seconds
            self.model.stop_training = enough and len(self._ends) > 1

    def figures(self, batches: int) -> dict[str, Any]:
        """Seconds an epoch and a batch, in the words of the results."""
        pairs = list(zip(self._ends, self._ends[1:], strict=False))
        epochs = [
            End(*(new - old for old, new in zip(before, after, strict=True)))
            for before, after in pairs
        ]
        cores = len(os.sched_getaffinity(0))
        lasted_s, used_s, busy_s = (list(column) for column in zip(*epochs, strict=True))
        return {
            "batches": batches,
            "epochs_s": lasted_s,
            "per_batch_s": median(lasted_s) / batches,
            "cpu_s_per_batch": median(used_s) / batches,
            "cores_of_others": max(0.0, sum(busy_s) - sum(used_s)) / sum(lasted_s),
            "cores_idle": max(0.0, cores - sum(busy_s) / sum(lasted_s)),
            "losses": self.losses,
        }


def measure(job: Job) -> dict[str, Any]:
    """Train until enough has been seen; the figures."""
    size = job.workload.rpartition("/")[2]
    window = Window(0, job.batches or BATCHES[size], job.seconds)
    workload = Workload("jpeg", Photographs(ROWS * window.most), ROWS, window)
    model, epochs = build_model(size), Epochs(window.seconds)
    with FEEDS[job.contender](workload, job.workers, job.slots) as feed:
        model.fit(feed, epochs=sys.maxsize, callbacks=[epochs], shuffle=False, verbose=0)
        return {**epochs.figures(window.most), "copied": getattr(feed, "copied", 0)}


def main() -> None:
    """Measure the job of the command line."""
    job = Job.from_argument(sys.argv[1])
    backend = keras.backend.backend()
    figures = measure(job)
    found = versions((("ringfeed", ""), ("keras", ""), (backend, "")))
    job.finish(figures=figures, settings={"batch_size": ROWS, "backend": backend}, versions=found)


if __name__ == "__main__":
    main()
