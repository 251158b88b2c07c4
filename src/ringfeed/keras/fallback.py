"""What `install` puts in the place of Keras' own reading: the ring, as long as it can serve.

    a PyDataset ──> RingAdapter ── as long as the ring can serve ──> the loader's batches
                         │
                         └── from the first batch that it cannot ──> Keras' own way, of its base

Nothing may fail here that does not fail in Keras. So whatever the ring refuses or raises, at the
start or amid a pass, is put down in one line, and Keras makes that batch and all that follow. A
dataset that raises does so again.
"""

from __future__ import annotations

import logging
import random
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed._callers import frame_above
from ringfeed._process import Finalizer
from ringfeed._units import show_bytes
from ringfeed.datasets.passes import PassOrder, batch_size_of
from ringfeed.engine.hooks import Counts
from ringfeed.errors import RingfeedError, SpecError
from ringfeed.frameworks.keras.adapter import LoaderAdapter, Reiterable
from ringfeed.frameworks.keras.call import Call, runs_eagerly
from ringfeed.keras.objects import leaves_of
from ringfeed.keras.pydataset import DatasetFeed, check_dataset, draws_kept
from ringfeed.ring._ring import MAX_WORKERS
from ringfeed.spec.spec import Spec
from ringfeed.system.machine import HAS_PROCESSES
from ringfeed.transport.copied import of_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


LOG = logging.getLogger("ringfeed.keras")
OWN = PyDatasetAdapter
PLAIN = (np.ndarray, np.generic, int, float)
installed_memory: dict[str, Any] = {}
"""The slots or the memory of each dataset's loader, as the newest `install` asks for them."""


class RingAdapter(PyDatasetAdapter):  # type: ignore[misc]  # keras has no types
    """A PyDataset filled by the workers that it asks for: threads, or processes where it says so.

    It is Keras' own adapter, and asks that for the order, the part of a distribution and the
    length. With the same seeds of ``random`` and ``numpy.random`` the dataset draws the numbers
    that it draws in Keras.
    """

    def __init__(
        self,
        x: Any,
        class_weight: Any = None,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - Keras' own
    ) -> None:
        """Look at the dataset as Keras does, and plan its ring; nothing runs yet."""
        super().__init__(x, class_weight, shuffle)
        # As long as the ring serves, Keras' own hooks must not start Keras' workers.
        self._own_enqueuer: Any = self.enqueuer
        self.enqueuer: Any = None
        self._pass_epoch = 0  # in which the newest pass began
        self.drawn: dict[str, Any] = {}
        """The random state that the newest order was drawn from."""
        self._redraws = False  # whether the next pass is that one once more
        self._rest: Iterator[int] | None = None
        self.left = ""
        """Why the dataset is left to Keras, if it is."""
        self._feed: DatasetFeed | None = None  # its hooks are counted after the ring gave up, too
        self._ring: LoaderAdapter | None = None
        try:
            seen = _look(x)
            if keras.backend.backend() == "tensorflow":
                with suppress(Exception):  # Keras says so itself, if it is asked for such a dataset
                    batches = [*map(self._standardize_batch, seen)]
                    self._output_signature = data_adapter_utils.get_tensor_spec(batches)
            self._feed = _feed_of(self, seen)
            self._ring = LoaderAdapter(self._feed.stream, class_weight)
        except Exception as error:  # noqa: BLE001 - whatever it is, Keras may be able to do it
            self._fall_back(error)
        else:
            say_fed(self._feed)
            self._feed.hooks.counts = _known_of(x).counts
            # TensorFlow keeps what it has made a graph of, the loader with it.
            Finalizer(self._feed.close).watch(self)

    def _fall_back(self, why: Exception) -> None:
        """Go on as Keras' own adapter."""
        self.left = say_left(self.py_dataset, why)
        self._ring, self.enqueuer = None, self._own_enqueuer
        if self._feed is not None:
            self._feed.close()

    # ---- what `BackupAndRestore` asks ----

    @property
    def dataset_feed(self) -> DatasetFeed | None:
        """The feed, as long as the ring serves."""
        return self._ring and self._feed

    @property
    def call(self) -> Call | None:
        """Where Keras is in the passes; None where it reads them itself."""
        return self._ring and self._ring.call

    @property
    def epoch_numbers(self) -> list[int] | None:
        """Keras' number of the epoch when this pass began, and now.

        None before Keras 3.16, which numbers none.
        """
        return [self._pass_epoch, self._epoch] if hasattr(self, "_epoch") else None

    def restore_epochs(self, numbers: list[int], *, is_amid: bool) -> None:
        """Go on with Keras' numbers of epochs.

        With ``is_amid`` the next pass is the one that began in the first of them.
        """
        if hasattr(self, "_epoch"):
            self._pass_epoch, self._epoch = numbers
            self._redraws = is_amid

    # ---- one pass, in the forms of each backend ----

    def get_tf_dataset(self) -> Any:
        """Return a dataset that Keras walks in Python."""
        if self._ring is None:
            return super().get_tf_dataset()
        from ringfeed.frameworks.keras.tensorflow import WalkedDataset  # noqa: PLC0415

        inner = self._ring.get_tf_dataset()
        own = super().get_tf_dataset
        return WalkedDataset(inner, lambda: self._walk(lambda _ring: inner.begin(), own))

    def get_numpy_iterator(self) -> Iterator[Any]:
        """One pass in NumPy arrays of their own."""
        return self._walk(LoaderAdapter.get_numpy_iterator, super().get_numpy_iterator)

    def get_jax_iterator(self) -> Iterator[Any]:
        """One pass in JAX's arrays over the slots for compiled steps, else in NumPy arrays."""
        asking = frame_above(1)
        over_ring = LoaderAdapter.get_numpy_iterator
        if isinstance(asking.f_locals.get("self"), EpochIterator) and not runs_eagerly(asking):
            over_ring = LoaderAdapter.get_jax_iterator
        return self._walk(over_ring, super().get_jax_iterator)

    def get_torch_dataloader(self) -> Any:
        """Passes in tensors on Keras' device."""
        own = super().get_torch_dataloader
        return Reiterable(lambda: self._walk(LoaderAdapter.get_torch_dataloader, own))

    def _walk(
        self, over_ring: Callable[[LoaderAdapter], Any], own: Callable[[], Any]
    ) -> Iterator[Any]:
        """One pass, over the ring as long as it goes, and then as Keras' ``own``."""
        ring, feed = self._ring, self._feed
        if ring is None or feed is None:
            return iter(own())

        def go_on(error: RingfeedError) -> Iterable[Any]:
            if self._ring is None:  # another pass has found it out before
                raise error
            self._rest = feed.rest(ring.call.done)
            self._fall_back(error)
            return iter(own())

        return with_fallback(iter(over_ring(ring)), go_on)

    def _get_iterator(self) -> Iterator[Any]:
        """Return what Keras' own way reads.

        Where the ring gave up amid a pass, the rest of that pass comes first.
        """
        rest, self._rest = self._rest, None
        if rest is None:
            return iter(super()._get_iterator())
        batches = map(self.py_dataset.__getitem__, rest)
        keeps_none = self.enqueuer is None
        wanted = (batch for batch in batches if keeps_none or batch is not None)
        return map(self._standardize_batch, wanted)

    def pass_numbers(self) -> Sequence[int]:
        """Return the numbers of the next pass: what Keras' own generators would ask for."""
        if not self._redraws:
            self._pass_epoch = vars(self).get("_epoch", 0)
        self._redraws, self.drawn = False, {"python": random.getstate()}
        numbered = object.__new__(OWN)
        vars(numbered).update(
            vars(self), py_dataset=_Numbers(self.py_dataset), class_weight=None, enqueuer=None
        )
        numbered._epoch = self._pass_epoch
        numbers = (number for (number,) in numbered._get_iterator())
        if self.py_dataset.num_batches is not None:
            return [*numbers]
        first = next(numbers)
        return range(first, sys.maxsize, next(numbers) - first)

    # ---- the hooks, where Keras calls them ----

    def on_epoch_begin(self) -> None:
        """Run the dataset's hook, as Keras does."""
        super().on_epoch_begin()
        if self._feed is not None:
            # Keras forks processes now.
            self._feed.count("on_epoch_begin", reloads=self._feed.has_processes)

    def on_epoch_end(self) -> None:
        """Run the dataset's hook, as Keras does."""
        super().on_epoch_end()
        if self._feed is not None:
            self._feed.count("on_epoch_end")


class _Numbers:
    """Stands for a dataset where Keras is asked for an order: each batch is its number."""

    def __init__(self, dataset: Any) -> None:
        self.num_batches = dataset.num_batches

    def __getitem__(self, index: int) -> tuple[int]:
        return (index,)


def _look(dataset: Any) -> list[Any]:
    """Return the batches that Keras looks at before it trains, or one where it looks at none."""
    check_dataset(dataset)
    return of_copy(dataset, _first_of) if _has_processes(dataset) else _first_of(dataset)


def _first_of(dataset: Any) -> list[Any]:
    if keras.backend.backend() != "tensorflow":
        return look_unseen(dataset)
    count = dataset.num_batches
    most = data_adapter_utils.NUM_BATCHES_FOR_TENSOR_SPEC
    return [dataset[number] for number in range(most if count is None else min(most, count))]


def _has_processes(dataset: Any) -> bool:
    return bool(HAS_PROCESSES and dataset.workers > 0 and dataset.use_multiprocessing)


def _feed_of(adapter: RingAdapter, seen: list[Any]) -> DatasetFeed:
    """Return a feed with the workers that Keras would have."""
    dataset = adapter.py_dataset
    workers = dataset.workers
    processes = _has_processes(dataset)
    if keras.backend.backend() == "tensorflow":
        workers = max(workers, 1)  # Keras reads in a thread of TensorFlow's, in any case
    elif not processes and workers == 1:
        # Keras makes such batches itself, between two steps. So does a loader without workers, and
        # what else draws random numbers or changes the dataset has its turn as in Keras.
        workers = 0
    mine: Any = weakref.ref(adapter)  # which ends the feed when it is dropped
    return feed_as_keras(
        dataset,
        seen,
        PassOrder(lambda: mine().num_batches, lambda _count, _epoch: mine().pass_numbers()),
        shuffle=adapter.shuffle,
        workers=workers,
        processes=processes,
        copy=False,
    )


# ---- what Keras is served, of Keras 3 and of Keras 2 ----


def with_fallback(
    batches: Iterable[Any], go_on: Callable[[RingfeedError], Iterable[Any]]
) -> Iterator[Any]:
    """Give batches; at an error of the ring, those that ``go_on`` finds for the rest."""
    rest: Iterable[Any] = ()
    try:
        yield from batches
    except RingfeedError as error:
        rest = go_on(error)
    yield from rest


def look_unseen(dataset: Any) -> list[Any]:
    """Return batch 0, and take no random number from anywhere."""
    with draws_kept(dataset):
        return [dataset[0]]


def feed_as_keras(  # noqa: PLR0913 - what Keras was told
    dataset: Any,
    seen: list[Any],
    order: PassOrder | None,
    *,
    shuffle: bool,
    workers: int,
    processes: bool,
    copy: bool,
) -> DatasetFeed:
    """Feed batches such as were ``seen``, as patiently as Keras, in the order that Keras draws.

    Tensors among them, which may live anywhere, are refused, and other objects that NumPy would
    make arrays of.
    """
    for leaf in leaves_of(seen):
        if not isinstance(leaf, PLAIN):
            raise SpecError(
                f"batches hold a {type(leaf).__module__}.{type(leaf).__qualname__}, and not arrays "
                "alone"
            )
    spec, rows = _form_of(seen)
    return DatasetFeed(
        dataset,
        order,
        shuffle=shuffle,
        workers=min(workers, MAX_WORKERS),
        backend="process" if processes else "thread",
        spec=spec,
        max_batch_size=max(rows, batch_size_of(dataset)),
        timeout_s=None,
        copy=copy,
        **installed_memory,
    )


def _form_of(batches: list[Any]) -> tuple[Spec, int]:
    """Return the spec that the first few batches all have, and the most rows that one has."""
    spec, rows = Spec.infer_batch(batches[0], 0)
    for number, batch in enumerate(batches[1:], start=1):
        other, more = Spec.infer_batch(batch, number)
        if other != spec:
            raise SpecError(
                f"batch {number} is {other!r}, and batch 0 is {spec!r}; give all batches one form"
            )
        rows = max(rows, more)
    return spec, rows


# ---- what is known of a dataset, and said ----


class Known(NamedTuple):
    """How often the hooks of a dataset have run, in all calls of Keras; what was said of it."""

    counts: Counts
    said: set[str]


_known: dict[int, Known] = {}


def _known_of(dataset: Any) -> Known:
    if id(dataset) not in _known:
        _known[id(dataset)] = Known(Counts(), set())
        weakref.finalize(dataset, _known.pop, id(dataset)).atexit = False
    return _known[id(dataset)]


def how_fed(feed: DatasetFeed) -> tuple[str, str]:
    """Return which workers feed a dataset, and in how much memory."""
    plan = feed.loader.plan
    kinds = ("process", "processes") if feed.has_processes else ("thread", "threads")
    workers = f"{plan.workers} worker {kinds[plan.workers != 1]}" if plan.workers else "no workers"
    return (
        f"runs over ringfeed: {workers}, {plan.slots} slots",
        f", {show_bytes(plan.total)} of shared memory",
    )


def say_fed(feed: DatasetFeed) -> None:
    """Say so; to the byte the memory differs from pass to pass."""
    _say(feed.dataset, *how_fed(feed))


def say_left(dataset: Any, why: Exception) -> str:
    """Say why a dataset is left to Keras, in one line, and return it."""
    left = f"is left to Keras: {str(why).partition(chr(10))[0] or type(why).__name__}"
    _say(dataset, left)
    return left


def _say(dataset: Any, what: str, more: str = "") -> None:
    """Log a line once for each dataset and text; ``more`` is its end, which may differ."""
    said = _known_of(dataset).said
    if what not in said:
        said.add(what)
        LOG.warning("%s %s%s", type(dataset).__name__, what, more)
