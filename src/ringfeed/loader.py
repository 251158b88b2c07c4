"""The loader: what users hold. It checks settings, keeps epochs apart, and runs an `engine.Engine`."""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ringfeed._process import Exit, Forks
from ringfeed.data.base import Terms
from ringfeed.data.sampler import check_seed
from ringfeed.data.source import open_source
from ringfeed.engine.allowance import Allowance
from ringfeed.engine.batches import BatchIterator
from ringfeed.engine.engine import Engine
from ringfeed.engine.options import MOST, Settings, check_count
from ringfeed.engine.plan import Plan, check_available
from ringfeed.errors import ClosedError, RingfeedError, SupersededError
from ringfeed.facts import Facts
from ringfeed.frameworks.cuda import start_driver
from ringfeed.frameworks.pending_copies import Flight
from ringfeed.insight import Insight
from ringfeed.monitor.stats import Stats
from ringfeed.outlets import Outlets
from ringfeed.ring import _ring
from ringfeed.transport.shared_dataset import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from ringfeed.data.sampler import Sampler
    from ringfeed.engine.batches import Form
    from ringfeed.ring._feed import Feed


class Loader(Facts, Insight, Outlets):
    """Feeds batches of a dataset, filled by workers straight into preallocated shared memory.

    ``for batch in loader`` is one epoch. A batch mirrors the structure of a sample, in writable ndarrays over the
    slot itself: a view is valid as long as it is referenced, and its slot comes back when the last view dies. Where
    views hold every slot but one, the next batch is a private copy, with one `SlotsHeldWarning`. With the same seed
    every batch is bit-identical whatever the number of workers, slots and the start method, if ``dataset[i]`` depends
    only on ``i`` and `ringfeed.rng()`. A worker that dies, at any instruction, is replaced and its rows run again:
    nothing is lost, doubled or reordered.

    dataset: anything with ``__len__`` and ``__getitem__`` that gives an array, a number, or nested tuples, lists,
        dicts or NamedTuples of them; a tuple or dict of equally long arrays, tensors or Series (a list holds samples;
        of up to 8 arrays that are longer than it is refused, as they may be columns); with ``batch_size=None``, a
        dataset of whole batches such as a Keras ``PyDataset``. Or an iterable: an object with ``__iter__`` and no
        ``__getitem__``, or a function without arguments that returns an iterable, which one worker reads in order,
        anew in each epoch (a replacement starts anew and skips what was read), up to ``slots`` batches ahead; an
        iterator, such as a generator or a file, which a thread of this process reads, for one epoch; several by
        `Interleave`. The first element is read to learn the spec, unless it is given. ``read_into(index, out)`` and
        ``__getitems__(indices)`` are used where a dataset has them. What ``__getitem__`` opens on first use, each
        worker process opens for itself: if reading sample 0 here leaves something in the dataset that cannot be
        pickled, the dataset gets back the attributes it had. ``on_epoch_begin()`` and ``on_epoch_end()`` run in this
        process, and what they change reaches the workers.
    batch_size: samples a batch; None where ``dataset[i]`` is a whole batch.
    shuffle, seed: a new order each epoch, a pure function of (seed, epoch).
    sampler: an iterable of dataset indices, instead of ``shuffle``.
    drop_remainder: leave out a last batch that would be shorter.
    workers: None for as many as this process may use CPUs; 0 to fill in this process, when a batch is asked for;
        "auto" to begin with one and go on by who waits for whom, up to four a CPU (`stats` says what it came to).
    backend: "process", or "thread" for datasets that release the GIL or cannot be pickled. Threads share what the
        dataset has open: with one file and its position, rows come out wrong unless the dataset has a lock.
    start_method: "spawn" (a fresh interpreter, which never imports the user's main module), "fork", "forkserver".
        A fork shares open files: where they are seen in the dataset, it is refused.
    slots, memory: how many batches exist at once, being filled, ready and in the caller's hands; or the bytes that
        all shared memory may take ("512MB"), which picks the slots. Default: 4 slots, or workers + 2 with
        ``batch_size=None``. ``slots="auto"`` begins with 2 and opens others as they help, within ``memory`` or else a
        quarter of what is free; what it has not opened it has not reserved.
    spec: what a sample looks like, as in ``{"image": ringfeed.Array((224, 224, 3), "uint8")}``; else sample 0 tells. An
        Array with ``scale=``, ``mean=`` and the like converts uint8 samples to float32.
    max_batch_size: with ``batch_size=None``, the most rows a batch has; else batch 0 tells.
    copy: hand out copies, so that keeping batches holds no slots and is never warned of.
    pin: register the slots with the CUDA driver, so that a GPU copies from them by itself (see `to_torch`). PlanError
        without one. Copies of your own must have passed before the loader is closed.
    reseed: also seed ``random`` and ``numpy.random``, of whichever process fills, for each sample (12 us a sample).
    timeout_s, on_stall: how long to wait for a batch before StallError, or before the workers that are stuck are
        killed and their rows run again ("restart"), in other slots if SIGKILL cannot end them. None: for ever.
    on_error: "raise" the error of a failed sample in its place in the order, or "skip" the sample.
    max_attempts: deaths of workers that a sample may cost before it counts as failed.
    max_restarts: workers that may be replaced before WorkerError; None: no limit, but three deaths in a row before
        anything was filled are always an error.
    """

    def __init__(  # noqa: PLR0913 - the public parameters
        self,
        dataset: Any,
        *,
        batch_size: int | None = 32,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Iterable[int] | Callable[[int], Iterable[int]] | None = None,
        drop_remainder: bool = False,
        workers: int | Literal["auto"] | None = None,
        backend: Literal["process", "thread"] = "process",
        start_method: Literal["spawn", "fork", "forkserver"] = "spawn",
        slots: int | Literal["auto"] | None = None,
        memory: int | str | None = None,
        spec: object = None,
        max_batch_size: int | None = None,
        copy: bool = False,
        pin: bool = False,
        reseed: bool = False,
        timeout_s: float | None = 300,
        on_stall: Literal["raise", "restart"] = "raise",
        on_error: Literal["raise", "skip"] = "raise",
        max_attempts: int = 3,
        max_restarts: int | None = None,
    ) -> None:
        """Check everything, read sample 0 unless ``spec`` is given, and make the plan; nothing is reserved yet."""
        self._batch_size = check_count("batch_size", batch_size, 1)
        check_count("max_batch_size", max_batch_size, 1)
        self._seed = check_seed(seed)
        terms = Terms(self._batch_size, spec, max_batch_size, self._seed, reseed, on_error)
        self._source = source = open_source(dataset, terms)
        self._allowance = Allowance.of(workers, slots, memory, whole=source.whole, iterables=source.streams)
        if source.local_only:
            backend = "thread"
        self._settings = Settings(
            backend,
            start_method,
            self._allowance.workers,
            copy,
            drop_remainder,
            timeout_s,
            on_stall,
            on_error,
            max_attempts,
            max_restarts,
            pin,
        )
        if pin:
            self._allowance.check_pinned()
            start_driver()  # refused now, where it cannot be had
        if reseed and backend == "thread":
            message = "reseed=True seeds states that all threads share; use backend='process', or ringfeed.rng()"
            raise ValueError(message)
        self._dataset = dataset
        if self._sends:
            source.check_sendable()
        self._shuffle = shuffle
        self._custom_sampler = sampler
        with self._as_before():
            self._sampler = self._make_sampler()
            source.learn()
        self._plan = self._make_plan()
        self._tuner = self._allowance.tuner(self._plan)
        self._settings = replace(self._settings, workers=self._plan.workers)
        self._check_memory()
        self._engine: Engine | None = None
        self._stats = Stats()
        self._flight = Flight()
        self._changes = bool(source.hooks)
        self._forks = Forks.count
        self._lock = threading.RLock()  # a signal handler, a hook or the garbage collector may come in again
        self._turn = 0  # of the newest iterator
        self._ended = 0  # of the newest that came to its end
        self._next_epoch = 0
        self._closed = False
        self._unended: Engine | None = None  # the last there was, until it has ended
        self._finalizer: weakref.finalize[[Engine], Loader] | None = None

    def _make_sampler(self) -> Sampler:
        return self._source.sampler(shuffle=self._shuffle, sampler=self._custom_sampler)

    @property
    def _sends(self) -> bool:
        """Whether other processes read the dataset."""
        return self._settings.workers > 0 and self._settings.backend == "process"

    def _as_before(self) -> AbstractContextManager[None]:
        """Have what is read here, in the place of workers, leave nothing open in the dataset that is sent to them."""
        if not self._sends:
            return nullcontext()
        from ringfeed.transport.opened import as_before  # noqa: PLC0415 - it imports what pickles datasets

        return as_before(self._source.dataset)

    def _make_plan(self) -> Plan:
        start_method = self._settings.start_method
        if self._sends and start_method == "fork":
            from ringfeed.transport.opened import refuse_to_share  # noqa: PLC0415 - as above

            refuse_to_share(self._source.dataset)
        sent = self._sends and start_method != "fork"
        parcel = pack(self._source.dataset, weigh=start_method == "spawn") if sent else None
        return self._allowance.plan(self._source, parcel, copied=start_method == "spawn")

    def _check_memory(self) -> None:
        """Refuse what the machine has no memory for at the start."""
        plan = self._plan
        if self._tuner is not None:
            plan = replace(plan, slots=self._tuner.setting.slots, workers=self._tuner.setting.workers)
        check_available(plan)

    # ---- epochs ----

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins."""
        return self._next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` the epoch of this number: its order and its random numbers."""
        self._next_epoch = check_count("epoch", epoch, 0, MOST, none=False) or 0

    def __iter__(self) -> BatchIterator:
        """Begin the next epoch; an older iterator raises SupersededError at its next ``next()``."""
        return self.batches()

    def batches(self, form: Form | None = None, *, patient: bool = False) -> BatchIterator:
        """Return ``iter(self)``, as the adapters to frameworks want it.

        ``form(lease, rows)`` makes what is handed out in the place of arrays. A ``patient`` iterator waits up to
        ``timeout_s`` for views that hold every slot, instead of one second: for callers whose views go by themselves.
        """
        self._check_open()
        with self._lock:
            self._turn += 1
            if self._engine is not None:
                self._engine.cancel()  # before the hook, which may raise: C code does not look at the turn here
            self._run_hook("on_epoch_begin")
            self._check_open()  # the hook may have closed it, or another thread
            if self._engine is not None and self._engine.pool.failure is not None:
                self._stop_engine()  # start afresh
            if self._engine is None:
                self._start()
            elif self._changes:
                self._engine.update(self._source.dataset)
            assert self._engine is not None
            number, self._next_epoch = self._next_epoch, self._next_epoch + 1
            self._note_use()
            self._engine.begin(self._sampler.epoch(number), number, pure=self._sampler.pure)
            return BatchIterator(self, self._engine.taker, self._turn, form, patient=patient)

    def lend(self, feed: Feed) -> bool:
        """Have C code take the newest iterator's next batches from ``feed``; False when its epoch has no more."""
        with self._lock:
            return self._engine is not None and self._engine.lend(feed, self._turn)

    def _run_hook(self, name: str) -> None:
        """Call a hook of the dataset, if it has it; its length may be another afterwards."""
        if self._source.run_hook(name):
            with self._as_before():
                self._sampler = self._make_sampler()

    def _start(self) -> None:
        self._stop_engine()  # if Ctrl-C has kept the last from it
        self._check_memory()
        source = self._source.without_dataset()
        engine = Engine(self._plan, source, self._settings, self._stats, self._flight, tuner=self._tuner)
        try:
            self._unended = engine
            self._finalizer = weakref.finalize(self, Engine.stop, engine)
            atexit.unregister(Exit.note)
            atexit.register(Exit.note)  # the last to be registered is the first to run
            engine.start(self._source.dataset)
            self._check_open()
            self._engine = engine
        except BaseException:
            self._stop_engine()
            raise

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            message = "a newer iterator of this loader has taken over; finish one before you make the next"
            raise SupersededError(message)

    def _ready(self, turn: int) -> bool:
        """Whether `_next` would not wait; raises what it would raise for an iterator that has had its time."""
        self._check_open()
        with self._lock:
            self._check_turn(turn)
            return self._engine is not None and self._engine.ring.look() == _ring.TAKEABLE

    def _next(self, turn: int, form: Form | None, *, patient: bool) -> Any:
        if self._closed or self._forks != Forks.count:  # looked at here first: it is asked for every batch
            self._check_open()
        with self._lock:
            if turn != self._turn:
                self._check_turn(turn)
            engine = self._engine
            if engine is None:
                self._check_open()
                raise StopIteration  # the workers have failed, and `next` has raised it
            try:
                return engine.next(form, patient=patient, turn=turn)
            except StopIteration:
                if self._ended != turn:
                    self._ended = turn  # whatever the hook raises, it has run
                    self._run_hook("on_epoch_end")
                raise
            except RingfeedError as error:
                if error is engine.pool.failure:
                    self._stop_engine()
                raise

    def _break_off(self, turn: int) -> None:
        """Cancel an epoch whose iterator died before its end."""
        # Never wait for the lock: this runs wherever the garbage collector does, in the pool's watcher too. Whoever
        # has it closes the loader or begins an epoch: the iterator of the newest turn is not inside next() if it dies.
        if turn != self._turn or self._forks != Forks.count or not self._lock.acquire(blocking=False):
            return
        try:
            if turn == self._turn and self._engine is not None:
                self._engine.cancel()
        finally:
            self._lock.release()

    # ---- the end ----

    def _check_open(self) -> None:
        if self._forks != Forks.count:
            message = "this loader belongs to the process that this one was forked from; make a new one here"
            raise ClosedError(message)
        if self._closed:
            message = "this loader is closed; make a new one"
            raise ClosedError(message)

    def _stop_engine(self) -> None:
        """End the engine. What Ctrl-C keeps it from is done by the next call, or at the loader's end."""
        self._engine = None
        if self._unended is not None:
            self._stats = self._unended.stats
            self._unended.stop()
            if self._finalizer is not None:
                self._finalizer.detach()
            self._unended = None

    def dismiss(self) -> None:
        """Begin to close: whoever waits for a batch gives up. At once, from any thread."""
        self._closed = True
        engine = self._engine
        if engine is not None and self._forks == Forks.count:
            engine.pool.dismiss()

    def close(self) -> None:
        """End the workers and give the memory back; views that are still referenced stay valid."""
        self.dismiss()  # before the lock: somebody may be waiting with it
        if self._forks != Forks.count:
            return  # a forked child: nothing here is its own
        with self._lock:
            self._stop_engine()

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close the loader."""
        self.close()
