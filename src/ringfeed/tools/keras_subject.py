"""A PyDataset as `ringfeed profile` reads it: as Keras does, and over a ring."""

from __future__ import annotations

import pickle
import random
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from ringfeed._units import show_bytes
from ringfeed.datasets.batches import batches_in
from ringfeed.datasets.peekable import fresh
from ringfeed.keras.fallback import OWN, RingAdapter
from ringfeed.keras.feeding import feed
from ringfeed.keras.pydataset import draws_kept
from ringfeed.system.machine import usable_cpus
from ringfeed.tools.profile_report import Stages
from ringfeed.tools.reading import Candidate
from ringfeed.tools.subject import Subject, Timer

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL = "ringfeed.keras.install()   # once, before fit"


class KerasSubject(Subject):
    """A PyDataset, and whether Keras shuffles it."""

    def __init__(self, dataset: Any, *, shuffle: bool = True) -> None:
        """Read a copy of the dataset, if possible; ``shuffle``: as of ``fit``, whose default it is."""
        self.dataset = dataset = fresh(dataset)
        self.shuffle = shuffle
        self._count = batches_in(dataset)
        self._has_processes = dataset.workers > 0 and dataset.use_multiprocessing
        workers = f"workers={dataset.workers}, use_multiprocessing={bool(dataset.use_multiprocessing)}"
        self.name = f"{type(dataset).__name__} of Keras ({workers})"

    def candidates(self) -> list[Candidate]:
        """Return Keras' own way, `install` with the same workers, and `feed` with other ones where that may help."""
        dataset, own, count = self.dataset, self.dataset.workers, usable_cpus()
        found = [
            _Read("keras", partial(OWN, dataset, shuffle=self.shuffle), own).candidate(""),
            _Read("install()", partial(_Adapter, dataset, shuffle=self.shuffle), own).candidate(INSTALL),
        ]
        if not self._has_processes or own < count:
            fed = partial(feed, dataset, workers=count, shuffle=self._feeds_shuffled)
            change = f"model.fit(ringfeed.keras.feed(dataset, workers={count}, shuffle={self._feeds_shuffled}))"
            found.append(_Read(f"feed(workers={count})", fed, count).candidate(change))
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
        numbers = [*range(64 if self._count is None else self._count)]
        if self._feeds_shuffled:
            random.shuffle(numbers)
        for number in numbers:
            read, send = Timer(), Timer()
            batch = read(partial(self.dataset.__getitem__, number))
            if self._has_processes:
                send(lambda batch=batch: pickle.loads(pickle.dumps(batch)))  # type: ignore[misc]  # noqa: S301
            yield Stages(1, read.wall_s, read.cpu_s, 0.0, send.wall_s)


class _Adapter(RingAdapter):
    """What `install` puts in Keras' place, which says why it leaves a dataset to Keras."""

    left = ""

    def _fall_back(self, why: Exception) -> None:
        self.left = str(why).partition("\n")[0] or type(why).__name__
        super()._fall_back(why)


class _Read:
    """Reads a dataset by one of Keras' adapters, in the form that the backend's ``fit`` takes."""

    def __init__(self, label: str, make: partial[Any], workers: int) -> None:
        self._label = label
        self._workers = workers
        self._make = make
        self._adapter: Any = None

    def candidate(self, change: str) -> Candidate:
        """Return it as a candidate."""
        lead = max(self._workers, 1)
        return Candidate(
            self._label, self.begin, self.end, notes=self.notes, fell_back=self._fell_back, lead=lead, change=change
        )

    def _fell_back(self) -> bool:
        return bool(getattr(self._adapter, "left", ""))

    def begin(self) -> Iterator[Any]:
        """Begin a pass."""
        self._adapter = adapter = self._make()
        backend = keras.backend.backend()
        if backend == "tensorflow":
            return iter(adapter.get_tf_dataset())
        if backend == "torch":
            return iter(adapter.get_torch_dataloader())
        return iter(adapter.get_jax_iterator() if backend == "jax" else adapter.get_numpy_iterator())

    def end(self) -> None:
        """End the workers."""
        adapter, self._adapter = self._adapter, None
        if (enqueuer := getattr(adapter, "enqueuer", None)) is not None:
            enqueuer.stop()
        if (ring := getattr(adapter, "dataset_feed", None)) is not None:
            ring.close()

    def notes(self) -> list[str]:
        """Say how the dataset runs, or why it is left to Keras."""
        if left := getattr(self._adapter, "left", ""):
            return [f"is left to Keras: {left}"]
        ring = getattr(self._adapter, "dataset_feed", None)
        return [] if ring is None else [_how(ring)]


def _how(ring: Any) -> str:
    plan = ring.loader.plan
    kinds = ("process", "processes") if ring.has_processes else ("thread", "threads")
    workers = f"{plan.workers} worker {kinds[plan.workers != 1]}" if plan.workers else "no workers"
    return f"runs over ringfeed: {workers}, {plan.slots} slots, {show_bytes(plan.total)} of shared memory"
