"""A PyDataset as `ringfeed profile` reads it: as Keras does, and over a ring."""

from __future__ import annotations

import pickle
import random
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from ringfeed.datasets.batches import batches_in
from ringfeed.datasets.peekable import fresh
from ringfeed.keras.fallback import OWN, RingAdapter, how_fed
from ringfeed.keras.feeding import feed
from ringfeed.keras.pydataset import draws_kept
from ringfeed.system.machine import usable_cpus
from ringfeed.tools.loaders import Subject
from ringfeed.tools.profile import Timer
from ringfeed.tools.profile_report import Stages
from ringfeed.tools.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INSTALL = "ringfeed.keras.install()   # once, before fit"
MOST_STAGED = 64  # batches, of a dataset without a length


class KerasSubject(Subject):
    """A PyDataset, and whether Keras shuffles it."""

    def __init__(self, dataset: Any, *, shuffle: bool = True) -> None:
        """Read a copy of the dataset, if possible; ``shuffle``: as of ``fit``, whose default it is."""
        self.dataset = dataset = fresh(dataset)
        self.shuffle = shuffle
        self._count = batches_in(dataset)
        self._has_processes = dataset.workers > 0 and dataset.use_multiprocessing
        workers = (
            f"workers={dataset.workers}, use_multiprocessing={bool(dataset.use_multiprocessing)}"
        )
        self.name = f"{type(dataset).__name__} of Keras ({workers})"

    def readings(self) -> list[Reading]:
        """Return Keras' own way, `install` with the same workers, and `feed` with other ones where that may help."""
        dataset, own, count = self.dataset, self.dataset.workers, usable_cpus()
        found: list[Reading] = [
            _Read("keras", partial(OWN, dataset, shuffle=self.shuffle), own),
            _Read("install()", partial(_Adapter, dataset, shuffle=self.shuffle), own, INSTALL),
        ]
        if not self._has_processes or own < count:
            settings = f"workers={count}, shuffle={self._feeds_shuffled}"
            fed = partial(feed, dataset, workers=count, shuffle=self._feeds_shuffled)
            change = f"model.fit(ringfeed.keras.feed(dataset, {settings}))"
            found.append(_Read(f"feed(workers={count})", fed, count, change))
        return found

    @property
    def _feeds_shuffled(self) -> bool:
        return self.shuffle and self._count is not None

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Keep NumPy's and Python's random numbers."""
        with draws_kept(self.dataset):
            yield

    def stages(self) -> Iterator[Stages]:
        """Make batches in this process, and where Keras has processes, pickle them as its queue does."""
        numbers = [*range(MOST_STAGED if self._count is None else self._count)]
        if self._feeds_shuffled:
            random.shuffle(numbers)
        for number in numbers:
            read, send = Timer(), Timer()
            batch = read(self.dataset.__getitem__, number)
            if self._has_processes:
                send(_through_a_queue, batch)
            yield Stages(1, read.wall_s, read.cpu_s + read.queued_s, 0.0, send.wall_s)


def _through_a_queue(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch))  # noqa: S301 - of this process


class _Adapter(RingAdapter):
    """What `install` puts in Keras' place, which says why it leaves a dataset to Keras."""

    left = ""

    def _fall_back(self, why: Exception) -> None:
        self.left = str(why).partition("\n")[0] or type(why).__name__
        super()._fall_back(why)


class _Read(Reading):
    """Reads a dataset by one of Keras' adapters, in the form that the backend's ``fit`` takes."""

    def __init__(self, label: str, make: Callable[[], Any], workers: int, change: str = "") -> None:
        super().__init__(label, change=change, lead=max(workers, 1))
        self._make: Any = make
        self._adapter: Any = None

    def begin(self) -> Iterator[Any]:
        """Begin a pass."""
        self._adapter = adapter = self._make()
        backend = keras.backend.backend()
        if backend == "tensorflow":
            return iter(adapter.get_tf_dataset())
        if backend == "torch":
            return iter(adapter.get_torch_dataloader())
        return iter(
            adapter.get_jax_iterator() if backend == "jax" else adapter.get_numpy_iterator()
        )

    def end(self) -> None:
        """End the workers."""
        adapter = self._adapter
        self._adapter = self._make = None  # the report outlives them
        if (enqueuer := getattr(adapter, "enqueuer", None)) is not None:
            enqueuer.stop()
        if (ring := getattr(adapter, "dataset_feed", None)) is not None:
            ring.close()

    def ask(self) -> None:
        """Note how the dataset runs, or why it is left to Keras."""
        left, ring = (
            getattr(self._adapter, "left", ""),
            getattr(self._adapter, "dataset_feed", None),
        )
        self.fell_back = bool(left)
        if left:
            self.notes = (f"is left to Keras: {left}",)
        elif ring is not None:
            self.notes = ("".join(how_fed(ring)),)
