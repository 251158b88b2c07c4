"""Keras' enqueuers over a loader, for code that drives them itself; no framework is imported here.

They are called as Keras 3 has them and as Keras 2 had them:

    OrderedEnqueuer(dataset, workers=4, use_multiprocessing=True, max_queue_size=10); start()
    OrderedEnqueuer(sequence, use_multiprocessing=True); start(workers=4, max_queue_size=10)

`get()` gives one epoch after another, as Keras 2 does; for one epoch a start, as in Keras 3, call `stop()` after it.
Between two epochs of one start the dataset's `on_epoch_end` runs, nowhere else. Code for Keras 2 is known by its
calls, or by a dataset without `num_batches`; it finds two things as they were: `get()` ends quietly after `stop()`,
and the next epoch begins behind the last batch of one, before it is asked for.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ringfeed.engine.options import check_choice, check_count
from ringfeed.errors import ClosedError, WorkerError
from ringfeed.keras.enqueuer_epochs import Failed, Order, Over, Stream, open_ordered
from ringfeed.keras.enqueuer_pulls import Pulled, open_pulled
from ringfeed.ring.failure import RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from ringfeed.loader import Loader

_MACHINERY = ("queue", "ready_queue", "future_queue", "executor_fn", "run_thread", "stop_signal", "start_stop_lock")


class SequenceEnqueuer(ABC):
    """What the enqueuers share: `start`, `get`, `stop`, `is_running`. Each may be called from any thread.

    A running enqueuer has ``slots`` batches at once at most: max_queue_size, or workers + 2 where that is 0, which for
    Keras means without bound. Its arrays are the caller's own, unless it was made with ``copy=False``: then they are
    views of the slots, which come back when the last view dies.
    """

    def __init__(self, sequence: Any, use_multiprocessing: bool = False) -> None:  # noqa: FBT001, FBT002 - Keras' own
        """Keep what is to be read; `start` begins to read it."""
        self.sequence = sequence
        self.use_multiprocessing = bool(use_multiprocessing)
        self.workers = 1
        self.max_queue_size = 10
        self._keras_2 = True
        self._stream: Stream | None = None  # while it runs
        self._switch = threading.RLock()  # a signal handler may come in again

    def __init_subclass__(cls, **settings: Any) -> None:
        """Refuse what is written for Keras' own base class."""
        super().__init_subclass__(**settings)
        if "_run" in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines _run(), which fills the queue of Keras' SequenceEnqueuer; here is no queue: "
                f"make it a generator, and give that to GeneratorEnqueuer"
            )

    def __getattr__(self, name: str) -> Any:
        """Say what has taken the place of Keras' machinery; reached only for what is not there."""
        if name in _MACHINERY:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}: batches stand in shared memory, not in a queue; ask "
                f"is_running(), or loader.slot_states() and loader.stats() while it runs"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def loader(self) -> Loader | None:
        """The loader that runs now; None before `start`, and after `stop`."""
        stream = self._stream
        return None if stream is None else stream.loader

    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor ended by an error."""
        return self._stream is not None

    def start(self, workers: int | None = None, max_queue_size: int | None = None) -> None:
        """Start the workers, and with them an epoch; nothing happens where it runs already.

        What cannot be read or started is raised by `get`.
        """
        with self._switch:
            if self._stream is not None:
                return
            if workers is not None or max_queue_size is not None:
                self._keras_2 = True
            self.workers = check_count("workers", self.workers if workers is None else workers, 0) or 0
            given = self.max_queue_size if max_queue_size is None else max_queue_size
            self.max_queue_size = max(check_count("max_queue_size", given, -sys.maxsize) or 0, 0)
            try:
                self._stream = self._open(max(self.max_queue_size, 2) if self.max_queue_size else self.workers + 2)
            except Exception as error:  # noqa: BLE001 - what it was is for `get` to say
                self._stream = Failed(error)

    @abstractmethod
    def _open(self, slots: int) -> Stream:
        """Return the batches that this start brings."""

    def stop(self, drain_queue_and_join: bool | float | None = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002 - Keras' own
        """End the workers and give the memory back; a caller that waits in `get` gives up. Again: nothing.

        The parameters are Keras', and make no difference: there is no queue to drain, and a worker that is inside
        a batch is waited for a second at most.
        """
        del drain_queue_and_join, timeout
        with self._switch:
            stream, self._stream = self._stream, None
        if stream is not None and stream.loader is not None:
            stream.loader.close()  # without the lock: a hook that runs now may want it

    def get(self) -> Iterator[Any]:
        """Give batches in the dataset's structure, without those that are None; several share them out.

        An exception of the dataset comes out as it is, in its place in the order, and stops the enqueuer; its
        traceback goes on in the worker. After `stop`: ClosedError, a ValueError; for code written for Keras 2
        the end of the loop.
        """
        try:
            while True:
                yield self._take()
        except Over:
            return

    def _take(self) -> Any:
        """Return the next batch; no local name may keep it, since it may hold a slot."""
        while (stream := self._stream) is not None:
            try:
                return stream.take()
            except Over:
                raise
            except ClosedError as error:
                if self._stream is not stream:
                    continue  # stopped while it waited; started again, perhaps
                failure: Exception = error
            except Exception as error:  # noqa: BLE001 - raised below, out of reach of the one that it came in
                failure = _original(error)
            self.stop()
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame
        if self._keras_2:
            raise Over
        raise ClosedError(
            "this enqueuer is not running, so there are no batches; call start(), and take none after stop()"
        )


class OrderedEnqueuer(SequenceEnqueuer):
    """The batches of a ``PyDataset`` or ``Sequence``, ``dataset[i]`` each, in order, by several workers.

    py_dataset, or sequence: it has ``__getitem__``, and ``num_batches`` or ``__len__``. ``num_batches`` None is a
        dataset without end: each start goes on behind the last batch that was handed out.
    workers, max_queue_size: may be given to `start` instead, as for Keras 2.
    use_multiprocessing: worker processes, else threads. A bool in the place of ``workers`` is Keras 2's
        ``(sequence, use_multiprocessing, shuffle)``.
    shuffle: a new order each epoch, by ``random.shuffle``: the one that Keras has with the same ``random.seed``.
    copy: whether the arrays are private copies; False: views of the slots.
    spec, max_batch_size, start_method, seed, timeout_s: see `ringfeed.Loader`. Without ``spec`` each start reads
        batch 0 once more, in this process.

    A worker that dies is replaced, and its batch read again: nothing is lost, doubled or reordered.
    """

    def __init__(  # noqa: PLR0913 - Keras' parameters, and what a loader needs
        self,
        py_dataset: Any = None,
        workers: int = 1,
        use_multiprocessing: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        max_queue_size: int = 10,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        *,
        sequence: Any = None,
        copy: bool = True,
        spec: object = None,
        max_batch_size: int | None = None,
        start_method: Literal["spawn", "fork", "forkserver"] = "spawn",
        seed: int = 0,
        timeout_s: float | None = 300,
    ) -> None:
        """Keep the settings, and look at the dataset's length; `start` reads the first batch."""
        if (py_dataset is None) == (sequence is None):
            raise TypeError("an OrderedEnqueuer is made of one dataset, expected either py_dataset or sequence")
        older = isinstance(workers, bool)
        if older:
            workers, use_multiprocessing, shuffle = 1, bool(workers), bool(shuffle or use_multiprocessing)
        super().__init__(py_dataset if sequence is None else sequence, use_multiprocessing)
        check_choice("start_method", start_method, ("spawn", "fork", "forkserver"))
        self._keras_2 = older or sequence is not None or not hasattr(type(self.sequence), "num_batches")
        self.py_dataset = self.sequence
        self.workers = workers
        self.max_queue_size = max_queue_size
        self.shuffle = bool(shuffle)
        self._copy = copy
        self._options = {
            "spec": spec,
            "max_batch_size": max_batch_size,
            "start_method": start_method,
            "seed": seed,
            "timeout_s": timeout_s,
        }
        self._order = Order(self.sequence, shuffle=self.shuffle)

    def _open(self, slots: int) -> Stream:
        backend = "process" if self.use_multiprocessing else "thread"
        options = {**self._options, "workers": self.workers, "backend": backend, "slots": slots}
        return open_ordered(self.sequence, self._order, options, copy=self._copy, eager=self._keras_2)


class GeneratorEnqueuer(SequenceEnqueuer):
    """The batches of an iterator, in its order, read ahead by one thread of this process.

    Whatever is asked for, it is one: a running generator cannot be sent to a process, and where Keras gives each
    process a copy of it, each batch comes as often as there are workers. So ``workers``, ``use_multiprocessing`` and
    ``random_seed``, which Keras sets in such a process, make no difference here.

    The iterator is never read further ahead than ``max_queue_size`` batches; those are lost at `stop`, as with Keras.
    At its end the loop over `get` ends too.

    spec, max_batch_size: see `ringfeed.Loader`; otherwise the first batch tells.
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
                f"a GeneratorEnqueuer was given a {type(generator).__name__}, expected a generator or another "
                f"iterator; call the function, or give iter(...)"
            )
        super().__init__(generator, use_multiprocessing)
        self.random_seed = random_seed
        self._copy = copy
        self._options = {"spec": spec, "max_batch_size": max_batch_size, "timeout_s": timeout_s}
        self._pulled = Pulled(generator)

    def _open(self, slots: int) -> Stream:
        return open_pulled(self._pulled, {**self._options, "slots": slots}, copy=self._copy)


def _original(error: Exception) -> Exception:
    """Return the dataset's own exception, where the worker could send it; else the error as it is."""
    cause = error.__cause__
    if not isinstance(error, WorkerError) or not isinstance(cause, Exception) or isinstance(cause, RemoteError):
        return error
    if sys.version_info >= (3, 11):
        cause.add_note(str(error))
    return cause
