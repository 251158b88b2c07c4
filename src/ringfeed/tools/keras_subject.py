"""A PyDataset as `ringfeed profile` reads it: as Keras does, and over a ring."""

from __future__ import annotations

import pickle
import random
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from ringfeed.datasets.indexed import batches_in
from ringfeed.datasets.peekable import fresh
from ringfeed.keras.fallback import OWN, RingAdapter, how_fed
from ringfeed.keras.feeding import feed
from ringfeed.keras.pydataset import draws_kept
from ringfeed.system.machine import usable_cpus
from ringfeed.tools.loaders import Stages
from ringfeed.tools.profile import Timer
from ringfeed.tools.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INSTALL = "ringfeed.keras.install()   # once, before fit"
BACKENDS = {
    "tensorflow": "get_tf_dataset",
    "torch": "get_torch_dataloader",
    "jax": "get_jax_iterator",
}
MOST_STAGED = 64  # batches, of a dataset without a length


class KerasSubject:
    """A PyDataset, and whether Keras shuffles it, as `loaders` reads it."""

    reader = "dataset[i]"

    def __init__(self, dataset: Any, *, shuffle: bool = True) -> None:
        """Read a copy of the dataset, if it can be copied; ``shuffle``: as of ``fit``."""
        self.dataset = dataset = fresh(dataset)
        self.shuffle = shuffle
        self._count = batches_in(dataset)
        self._has_processes = dataset.workers > 0 and dataset.use_multiprocessing
        workers = (
            f"workers={dataset.workers}, use_multiprocessing={bool(dataset.use_multiprocessing)}"
        )
        self.name = f"{type(dataset).__name__} of Keras ({workers})"

    def readings(self) -> list[Reading]:
        """Return Keras' own way, `install` with the same workers, and `feed` where it may help."""
        dataset, own, count = self.dataset, self.dataset.workers, usable_cpus()
        settings: dict[str, Any] = {
            "workers": count,
            "shuffle": self.shuffle and self._count is not None,
        }
        said = ", ".join(f"{name}={value}" for name, value in settings.items())
        ways: list[tuple[str, Callable[[], Any], int, str]] = [
            ("keras", partial(OWN, dataset, shuffle=self.shuffle), own, ""),
            ("install()", partial(RingAdapter, dataset, shuffle=self.shuffle), own, INSTALL),
        ]
        if not self._has_processes or own < count:
            change = f"model.fit(ringfeed.keras.feed(dataset, {said}))"
            ways.append(
                (f"feed(workers={count})", partial(feed, dataset, **settings), count, change)
            )
        return [
            Reading(label, change=change, lead=max(workers, 1), opened=partial(_opened, make))
            for label, make, workers, change in ways
        ]

    def untouched(self) -> AbstractContextManager[None]:
        """Keep NumPy's and Python's random numbers."""
        return draws_kept(self.dataset)

    def stages(self) -> Iterator[Stages]:
        """Make batches here; where Keras has processes, pickle them as its queue does."""
        numbers = [*range(MOST_STAGED if self._count is None else self._count)]
        if self.shuffle and self._count is not None:
            random.shuffle(numbers)
        for number in numbers:
            read, send = Timer(), Timer()
            batch = read(self.dataset.__getitem__, number)
            if self._has_processes:
                send(_through_a_queue, batch)
            yield Stages(1, read.wall_s, read.cpu_s + read.queued_s, 0.0, send.wall_s)


def _through_a_queue(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch))  # noqa: S301 - of this process


@contextmanager
def _opened(make: Callable[[], Any], reading: Reading) -> Iterator[Iterator[Any]]:
    """Begin a pass in the form that the backend's ``fit`` takes.

    At its end, note how the ring ran, or why the dataset is left to Keras.
    """
    adapter = make()
    way = BACKENDS.get(keras.backend.backend(), "get_numpy_iterator")
    try:
        yield iter(getattr(adapter, way)())
        ring = getattr(adapter, "dataset_feed", None)
        if left := getattr(adapter, "left", ""):
            reading.fell_back, reading.notes = True, (left,)
        elif ring is not None:
            reading.notes = ("".join(how_fed(ring)),)
    finally:
        if (enqueuer := getattr(adapter, "enqueuer", None)) is not None:
            enqueuer.stop()
        if (ring := getattr(adapter, "dataset_feed", None)) is not None:
            ring.close()
