"""Keras' enqueuers over a loader, for code that drives them itself; no framework is imported here.

    OrderedEnqueuer(dataset, workers=4, use_multiprocessing=True, max_queue_size=10); start()
    OrderedEnqueuer(dataset, use_multiprocessing=True); start(workers=4, max_queue_size=10)

`get()` gives one epoch after another; for one epoch a start, call `stop()` after it. An epoch ends
when the batch behind its last is asked for: then the dataset's `on_epoch_end` runs, and nowhere
else.

    OrderedEnqueuer(dataset, shuffle=True, num_data_shards=2, data_shard_id=0)     # Keras 3.16
    start(epoch)

`GeneratorEnqueuer`, of an iterator, is that of Keras 2.
"""

from __future__ import annotations

import random
import sys
import threading
from abc import ABC, abstractmethod
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ringfeed._checks import check_choice, check_count
from ringfeed._failure import RemoteError
from ringfeed.datasets.indexed import batches_in
from ringfeed.datasets.passes import ENDLESS, PassOrder
from ringfeed.errors import ClosedError, WorkerError
from ringfeed.keras.objects import KeptBatches, holds_objects
from ringfeed.keras.pydataset import DatasetFeed, draws_kept, open_feed
from ringfeed.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Running(NamedTuple):
    """What a start makes: the loader, if one is needed, and what takes the next batch or raises."""

    loader: Loader | None
    take: Callable[[], Any]


class SequenceEnqueuer(ABC):
    """What the enqueuers share: `start`, `get`, `stop`, `is_running`, called from any thread.

    A running enqueuer has at most ``slots`` batches at once: max_queue_size, or workers + 2 if that
    is 0, which in Keras means without limit. Its arrays are private copies; with ``copy=False``
    they are views of the slots.
    """

    def __init__(
        self,
        py_dataset: Any,
        workers: int = 1,
        use_multiprocessing: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        max_queue_size: int = 10,
    ) -> None:
        """Keep what is to be read; `start` begins to read it."""
        self.py_dataset = py_dataset
        self.use_multiprocessing = bool(use_multiprocessing)
        self._set_sizes(workers, max_queue_size)
        self._running: Running | None = None
        self._switch = threading.RLock()  # a signal handler may come in again

    def _set_sizes(self, workers: int, max_queue_size: int) -> None:
        self.workers = check_count("workers", workers, 0) or 0
        self.max_queue_size = max(
            check_count("max_queue_size", max_queue_size, -sys.maxsize) or 0, 0
        )

    @property
    def loader(self) -> Loader | None:
        """The loader that runs now; None before `start`, and after `stop`."""
        running = self._running
        return None if running is None else running.loader

    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor ended by an error."""
        return self._running is not None

    def start(self, workers: int | None = None, max_queue_size: int | None = None) -> None:
        """Start the workers, and with them an epoch; no effect if it runs already.

        What cannot be read or started is raised by `get`.
        """
        with self._switch:
            if self._running is not None:
                return
            self._set_sizes(
                self.workers if workers is None else workers,
                self.max_queue_size if max_queue_size is None else max_queue_size,
            )
            try:
                self._running = self._open(
                    max(self.max_queue_size, 2) if self.max_queue_size else self.workers + 2
                )
            except Exception as error:  # noqa: BLE001 - what it was is for `get` to say
                self._running = Running(None, partial(_raise, error))

    @abstractmethod
    def _open(self, slots: int) -> Running:
        """Begin an epoch."""

    def stop(self, drain_queue_and_join: bool = True) -> None:  # noqa: FBT001, FBT002 - Keras' own
        """End the workers and give the memory back; a caller that waits in `get` gives up.

        The parameter is Keras', and has no effect; a worker that is inside a batch is waited for a
        second at most.
        """
        del drain_queue_and_join
        with self._switch:
            running, self._running = self._running, None
        if running is not None and running.loader is not None:
            running.loader.close()  # without the lock: a hook that runs now may want it

    def get(self) -> Iterator[Any]:
        """Yield batches in the dataset's structure, without those that are None.

        Each batch goes to one of several callers.

        An exception of the dataset is raised unchanged, in its place in the order, and stops the
        enqueuer; its traceback goes on in the worker. After `stop`: ClosedError, a ValueError.
        """
        try:
            while True:
                yield self._take()
        except StopIteration:
            return

    def _take(self) -> Any:
        """Return the next batch; no local name may keep it, since it may hold a slot."""
        while (running := self._running) is not None:
            try:
                return running.take()
            except StopIteration:
                raise
            except Exception as error:  # noqa: BLE001 - raised below
                if isinstance(error, ClosedError) and self._running is not running:
                    continue  # stopped while it waited; started again, perhaps
                failure = _original(error)
            self.stop()
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame
        raise ClosedError(
            "this enqueuer is not running, so there are no batches; call start(), and take none "
            "after stop()"
        )


class OrderedEnqueuer(SequenceEnqueuer):
    """The batches ``dataset[i]`` of a ``PyDataset`` or ``Sequence``, in order, by several workers.

    py_dataset: it has ``__getitem__``, and ``num_batches`` or ``__len__``. ``num_batches`` None is
        a dataset without end: each start continues after the last batch that was handed out.
    workers, max_queue_size: may be given to `start` instead.
    use_multiprocessing: worker processes, else threads.
    shuffle: a new order each epoch: that of Keras 3.16 for the number of the epoch, if `start` gets
        one; else that of ``random.shuffle``, as in older Keras with the same ``random.seed``.
    num_data_shards, data_shard_id: the number of parts of each epoch, and the number of this part,
        which is every n-th batch of the order.
    copy: whether the arrays are private copies; False: views of the slots.
    start_method: of worker processes: "forkserver", which is a loader's ``backend="process"``,
        "spawn" or "fork".
    spec, max_batch_size, seed, timeout_s: see `ringfeed.Loader`. Without ``spec`` each start reads
        batch 0 once more, in this process.

    A worker that dies is replaced, and its batch read again: nothing is lost, doubled or reordered.

    Batches may also hold sparse and ragged tensors of TensorFlow, sparse ones of JAX and matrices
    of SciPy, if batch 0 does: threads hand them over as they are, processes as pickles. A slot has
    room for a pickle of 64 KiB or four times that of batch 0, whichever is more; a larger batch is
    read once more in this process. A process imports TensorFlow if ``__getitem__`` makes a tensor
    of it.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Keras' parameters, and what a loader needs
        self,
        py_dataset: Any,
        workers: int = 1,
        use_multiprocessing: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        max_queue_size: int = 10,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        num_data_shards: int = 1,
        data_shard_id: int = 0,
        *,
        copy: bool = True,
        spec: object = None,
        max_batch_size: int | None = None,
        start_method: Literal["forkserver", "spawn", "fork"] = "forkserver",
        seed: int = 0,
        timeout_s: float | None = 300,
    ) -> None:
        """Keep the settings; `start` reads the first batch."""
        super().__init__(py_dataset, workers, use_multiprocessing, max_queue_size)
        check_choice("start_method", start_method, ("forkserver", "spawn", "fork"))
        self.shuffle = bool(shuffle)
        self._backend = "process" if start_method == "forkserver" else start_method
        self._options: dict[str, Any] = {
            "copy": copy,
            "spec": spec,
            "max_batch_size": max_batch_size,
            "seed": seed,
            "timeout_s": timeout_s,
        }
        part = slice(data_shard_id, None, num_data_shards)
        self._order = _Order(py_dataset, part, shuffle=self.shuffle)

    def start(  # type: ignore[override]  # Keras 3.16 and Keras 2 have it differently
        self,
        epoch: int | None = None,
        max_queue_size: int | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        """Start the workers: with the number of the epoch, as Keras 3.16 does, or without it.

        A number before ``max_queue_size`` is that of the workers, as in Keras 2. What cannot be
        read or started is raised by `get`; no effect if it runs already.
        """
        if max_queue_size is not None and workers is None:
            epoch, workers = None, epoch
        with self._switch:
            if self._running is None:
                self._order.number = check_count("epoch", epoch, 0)
            super().start(workers, max_queue_size)

    def _open(self, slots: int) -> Running:
        _check_some(self.py_dataset)
        backend = self._backend if self.use_multiprocessing else "thread"
        options = {**self._options, "workers": self.workers, "backend": backend, "slots": slots}
        order = self._order
        order.numbers = []
        passes = PassOrder(order.count, order.draw, order.begin)
        with draws_kept(self.py_dataset):
            feed, made_of = open_feed(self.py_dataset, passes, options)
        feed.loader.set_epoch(order.epochs)
        return Running(feed.loader, _Epochs(feed, order, made_of).take)


class GeneratorEnqueuer(SequenceEnqueuer):
    """The batches of an iterator, in its order, read ahead by one thread of this process.

    It is always one thread: a running generator cannot be sent to a process, and in Keras each
    process has a copy of it, so each batch comes once for each worker. So ``workers``,
    ``use_multiprocessing`` and ``random_seed`` have no effect.

    The iterator is read at most ``max_queue_size`` batches ahead; those are lost at `stop`, as with
    Keras. At its end the loop over `get` ends too.

    If the first batch holds a sparse or ragged tensor, of TensorFlow, JAX or SciPy, batches are
    handed over as they are, without slots.

    spec, max_batch_size: see `ringfeed.Loader`; by default from the first batch.
    """

    def __init__(  # noqa: PLR0913 - Keras' parameters, and what a loader needs
        self,
        generator: Iterator[Any],
        use_multiprocessing: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        random_seed: int | None = None,
        *,
        copy: bool = True,
        spec: object = None,
        max_batch_size: int | None = None,
        timeout_s: float | None = 300,
    ) -> None:
        """Keep the iterator; `start` reads its first batch."""
        if not callable(getattr(type(generator), "__next__", None)):
            raise TypeError(
                f"a GeneratorEnqueuer was given a {type(generator).__name__}, expected a generator "
                "or another iterator; call the function, or give iter(...)"
            )
        super().__init__(generator, use_multiprocessing=use_multiprocessing)
        self.random_seed = random_seed
        self._options: dict[str, Any] = {
            "copy": copy,
            "spec": spec,
            "max_batch_size": max_batch_size,
            "timeout_s": timeout_s,
        }
        self._batches = _Pulled(generator)

    def _open(self, slots: int) -> Running:
        batches: Iterator[Any] = self._batches
        kept = None  # of batches that go past the slots
        if self._options["spec"] is None:
            first = next(batches, None)
            if first is None:
                return Running(None, partial(next, batches))
            batches = chain([first], batches)
            kept = KeptBatches() if holds_objects(first) else None
        if kept is not None:
            batches = map(kept.put, batches)
        loader = Loader(batches, batch_size=None, workers=1, slots=slots, **self._options)
        taken = iter(loader)
        return Running(loader, partial(next, taken if kept is None else map(kept.take, taken)))


class _Order:
    """Epochs as Keras orders them, each cut to its ``part``.

    A start without a number shuffles 0, 1, 2, ... by ``random``, each further epoch the last order.
    Keras 3.16 has an order for each number of an epoch instead.
    """

    def __init__(self, dataset: Any, part: slice, *, shuffle: bool) -> None:
        self.dataset = dataset
        self._part = part
        self._shuffle = shuffle
        self.numbers: list[int] = []
        """The last order that was drawn, since the start."""
        self.number: int | None = None
        """That of the next epoch, where Keras numbers them."""
        self.begin = 0
        """The next position in a dataset without end."""
        self.epochs = 0
        """How many were begun, over all starts."""

    def count(self) -> int | None:
        """Count the batches of an epoch."""
        count = batches_in(self.dataset)
        return count if count is None else len(range(count)[self._part])

    def draw(self, _count: int | None, epoch: int) -> Sequence[int]:
        """Draw an epoch."""
        self.epochs = epoch + 1
        count = batches_in(self.dataset)
        if count is None:
            return ENDLESS[self._part]
        draws: Any = random
        if self.number is not None:
            draws, self.numbers = random.Random(self.number), []  # noqa: S311 - Keras' order
            self.number += 1
        if len(self.numbers) != count:
            self.numbers = list(range(count))
        if self._shuffle:
            draws.shuffle(self.numbers)
        return self.numbers[self._part]


class _Epochs:
    """The batches of a dataset, one epoch after another."""

    def __init__(self, feed: DatasetFeed, order: _Order, made_of: Callable[[Any], Any]) -> None:
        self._feed = feed
        self._order = order
        self._made_of = made_of
        self._begun = order.begin
        self._taking = threading.RLock()  # a signal handler may come in again
        self._begin()

    def _begin(self) -> None:
        _check_some(self._order.dataset)
        self._batches: Any = iter(self._feed.loader)
        self._gave_some = False

    def take(self) -> Any:
        """Return the next batch, of the next epoch where this one is over."""
        with self._taking:
            while True:
                try:
                    batch = self._made_of(next(self._batches))
                except StopIteration:
                    self._end()
                    continue
                self._gave_some = True
                self._order.begin = self._begun + self._batches.progress.finished_batches
                return batch

    def _end(self) -> None:
        if not self._gave_some:
            raise ValueError(
                f"an epoch of {len(self._feed.loader)} batches was None throughout, so that there "
                "is nothing to hand out; return a batch from __getitem__"
            )
        self._feed.run_hook("on_epoch_end")
        self._begin()


class _Pulled:
    """An iterator without the batches of None; each start reads on where the last one stopped."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()  # a thread of the last start may still be inside

    def __iter__(self) -> _Pulled:
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        with self._lock:
            while (batch := next(self._iterator)) is None:
                pass
            return batch


def _check_some(dataset: Any) -> None:
    """Refuse a dataset without batches."""
    if batches_in(dataset) == 0:
        raise ValueError(
            f"the {type(dataset).__name__} has no batches (its length is 0), expected 1 or more; "
            "look at what it was made of"
        )


def _raise(error: Exception) -> None:
    raise error


def _original(error: Exception) -> Exception:
    """Return the dataset's own exception, if the worker could send it, or the error as it is."""
    cause = error.__cause__
    if (
        not isinstance(error, WorkerError)
        or not isinstance(cause, Exception)
        or isinstance(cause, RemoteError)
    ):
        return error
    cause.add_note(str(error))
    return cause
