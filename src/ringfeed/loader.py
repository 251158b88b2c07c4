"""The loader: what users hold. It checks settings, keeps epochs apart, and runs an `engine.Engine`."""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ringfeed._process import Exit, Forks
from ringfeed._units import show_bytes
from ringfeed.data.base import Terms
from ringfeed.data.passes import PassOrder
from ringfeed.data.sampler import Sequential, batch_count, check_seed
from ringfeed.data.source import open_source
from ringfeed.engine.autotune import make_tuner
from ringfeed.engine.batches import BatchIterator, EpochRun
from ringfeed.engine.engine import Engine
from ringfeed.engine.options import MOST, Options, check_count
from ringfeed.engine.plan import Plan, check_available, plan_for
from ringfeed.errors import ClosedError, RingfeedError, SupersededError
from ringfeed.frameworks.base import LoaderInfo
from ringfeed.frameworks.device import PendingCopies
from ringfeed.frameworks.pinned import Pins, start_driver
from ringfeed.monitor.bottleneck import STARTUP_S, verdict
from ringfeed.monitor.memory import Memory, frameworks_in
from ringfeed.monitor.stats import Stats
from ringfeed.monitor.trace import Trace
from ringfeed.ring import _ring
from ringfeed.ring.failure import UsersErrors
from ringfeed.ring.machine import check_futex, usable_cpus
from ringfeed.transport.shared_dataset import pack

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import jax
    import tensorflow as tf
    import torch
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from typing_extensions import Self
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ringfeed.data.sampler import Sampler
    from ringfeed.frameworks.base import Epochs
    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.pinned import Registrar
    from ringfeed.ring._feed import Feed
    from ringfeed.ring._snapshot import Observer
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.spec.spec import Spec
    from ringfeed.workers.process import Launcher

if TYPE_CHECKING:
    Batch_co = TypeVarWithDefault("Batch_co", default=Any, covariant=True)
else:
    Batch_co = TypeVar("Batch_co", covariant=True)

_in_use: weakref.WeakSet[Loader] = weakref.WeakSet()


def loaders_in_use() -> tuple[Loader, ...]:
    """Return the loaders of this process that have begun an epoch."""
    return tuple(_in_use)


def stream_of(loader: Loader) -> LoaderStream:
    """Return a loader as frameworks take it."""
    return loader._stream  # noqa: SLF001 - the one door for what makes loaders of its own


class Loader(Generic[Batch_co]):
    """Feeds batches of a dataset, filled by workers straight into preallocated shared memory.

        loader = ringfeed.Loader(dataset, batch_size=128, shuffle=True, workers=4)
        for images, labels in loader:
            train_step(images, labels)

    Each ``for`` is one epoch. A batch has the structure of a sample, in writable ndarrays over the slot itself: a view
    is valid as long as it is referenced, and its slot comes back when the last view dies. Where views hold every slot
    but one, the next batch is a private copy, with one `SlotsHeldWarning`. With the same seed every batch is
    bit-identical whatever the number of workers, slots and the start method, if ``dataset[i]`` depends only on ``i``
    and `ringfeed.rng()`. A worker that dies, at any instruction, is replaced and its rows run again: nothing is lost,
    doubled or reordered. ``Loader[tuple[NDArray[np.uint8], NDArray[np.int64]]]`` tells a type checker what a batch is.

    **What is read**

    dataset: one of these:

        - an object with ``__len__`` and ``__getitem__``, whose ``dataset[i]`` is a sample: an array, a number, or
          nested tuples, lists, dicts or NamedTuples of them. Its methods ``read_into(index, out)`` and
          ``__getitems__(indices)`` are used where it has them.
        - a tuple or dict of equally long arrays, tensors or Series: columns. A list holds samples, and a list of up to
          8 arrays that are longer than the list is refused, as they may be columns.
        - with ``batch_size=None``, an object whose ``dataset[i]`` is a whole batch, such as a Keras ``PyDataset``.
        - an iterable: an object with ``__iter__`` and no ``__getitem__``, or a function without arguments that returns
          an iterable. One worker reads it in order, from its start in each epoch, up to ``slots`` batches ahead; the
          replacement of a dead worker starts anew and skips what was read. `Interleave` makes one of several.
        - an iterator, such as a generator or a file. A thread of this process reads it, for one epoch.

        The first sample is read here to learn the spec, unless ``spec`` is given. What ``__getitem__`` opens on first
        use, each worker process opens for itself: if reading sample 0 here leaves something in the dataset that cannot
        be pickled, the dataset gets back the attributes it had. Its methods ``on_epoch_begin()`` and
        ``on_epoch_end()`` run in this process, and the workers see what they change.
    batch_size: samples a batch; None where ``dataset[i]`` is a whole batch.
    max_batch_size: with ``batch_size=None``, the most rows a batch has; by default the rows of batch 0.
    spec: what a sample looks like, as in ``{"image": ringfeed.Array((224, 224, 3), "uint8")}``; by default what sample
        0 looks like. An Array with ``scale=``, ``mean=`` and the like converts uint8 samples to float32.

    **In which order**

    shuffle, seed: a new order each epoch, a pure function of (seed, epoch).
    sampler: an iterable of dataset indices, instead of ``shuffle``.
    drop_remainder: leave out a last batch that would be shorter.
    reseed: also seed ``random`` and ``numpy.random``, of whichever process fills, for each sample (12 us a sample).

    **How fast**

    workers: None for as many as this process may use CPUs; 0 to fill in this process, when a batch is asked for;
        "auto" to begin with one and then follow what the measured waits ask for, up to four a CPU (`stats` gives the
        number).
    backend: "process", or "thread" for datasets that release the GIL or cannot be pickled. Threads share what the
        dataset has open: with one file and its position, rows come out wrong unless the dataset has a lock.
    start_method: "spawn" (a fresh interpreter, which never imports the user's main module), "fork", "forkserver": a
        process that starts with the loader, imports what the dataset needs, and forks workers in the first epoch. A
        fork shares open files: where they are seen in the dataset, it is refused. Where unpickling the dataset opens
        something, a np.memmap too, each worker of a forkserver unpickles it for itself.
    pin: register the slots with the CUDA driver, so that a GPU copies from them by itself (see `to_torch`). PlanError
        without a driver. Copies that you start yourself must be over before the loader is closed.

    **How much memory**

    slots, memory: how many batches exist at once, being filled, ready and in the caller's hands; or the bytes that all
        shared memory may take ("512MB"), which gives the number of slots. Default: 4 slots, or workers + 2 with
        ``batch_size=None``. ``slots="auto"`` begins with 2 and opens others as they help, within ``memory`` or else a
        quarter of what is free; slots that are not open yet are not reserved.
    copy: hand out copies: a batch that is kept holds no slot, and no warning is given.

    **What happens on a failure**

    timeout_s, on_stall: how long to wait for a batch (None: for ever) before StallError ("raise"); or before the
        workers that are stuck are killed and their rows run again ("restart"), in other slots if SIGKILL cannot end
        the workers.
    on_error: "raise" the error of a failed sample in its place in the order, or "skip" the sample.
    max_attempts: how many workers may die of a sample before the sample counts as failed.
    max_restarts: how many workers may be replaced before WorkerError; None: no limit, but three deaths in a row before
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
        """Check everything, read sample 0 unless ``spec`` is given, and make the plan; no slot is reserved yet."""
        self._batch_size = check_count("batch_size", batch_size, 1)
        check_count("max_batch_size", max_batch_size, 1)
        self._seed = check_seed(seed)
        terms = Terms(self._batch_size, spec, max_batch_size, self._seed, reseed, on_error)
        self._source = source = open_source(dataset, terms)
        self._settings = Options.of(
            source,
            workers=workers,
            slots=slots,
            memory=memory,
            backend="thread" if source.local_only else backend,
            start_method=start_method,
            copy=copy,
            drop_remainder=drop_remainder,
            timeout_s=timeout_s,
            on_stall=on_stall,
            on_error=on_error,
            max_attempts=max_attempts,
            max_restarts=max_restarts,
            pin=pin,
        )
        if pin:
            start_driver()  # refused now, where it cannot be had
        if reseed and self._settings.backend == "thread":
            message = "reseed=True seeds states that all threads share; use backend='process', or ringfeed.rng()"
            raise ValueError(message)
        self._dataset = source.given
        if self._sends:
            source.check_sendable()
        self._shuffle = shuffle
        self._custom_sampler = sampler
        with UsersErrors(), self._as_before():
            self._sampler = self._make_sampler()
            source.learn()
        self._plan = self._make_plan()
        self._tuner = make_tuner(self._settings, self._plan)
        self._check_memory()
        self._engine: Engine | None = None
        self._stats = Stats()
        self._pending = PendingCopies()
        self._pins: Pins | None = None  # of the engine that runs
        self._imports: Sequence[str] = ()  # frameworks that workers were slow to import
        self._changes = source.changes
        self._forks = Forks.count
        self._lock = threading.RLock()  # a signal handler, a hook or the garbage collector may come in again
        self._turn = 0  # of the newest iterator
        self._rest_at: int | None = None  # where its pass goes on, while that is planned anew
        self._ended = 0  # of the newest that came to its end
        self._next_epoch = 0
        self._closed = False
        self._unended: Engine | None = None  # the last there was, until it has ended
        self._finalizer: weakref.finalize[[Engine], Loader] | None = None
        self._launcher = self._begin_to_launch()  # until the first epoch

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
        self._modules = () if parcel is None else parcel.modules
        return plan_for(self._settings, self._source, parcel)

    def _begin_to_launch(self) -> Launcher | None:
        """Have a forkserver import what the workers need while the user's program goes on."""
        if not self._sends or self._settings.start_method != "forkserver":
            return None
        from ringfeed.workers.forkserver import Forkserver  # noqa: PLC0415 - for one start method

        with suppress(RingfeedError, OSError):  # what keeps it from starting is raised by the first epoch
            check_futex()
            launcher = Forkserver(self._settings.timeout_s, self._source.packages, self._modules)
            launcher.begin()
            return launcher
        return None

    def _check_memory(self) -> None:
        """Refuse what the machine has no memory for at the start."""
        plan = self._plan
        if self._tuner is not None:
            plan = replace(plan, slots=self._tuner.setting.slots, workers=self._tuner.setting.workers)
        check_available(plan)

    # ---- what it is ----

    @property
    def dataset(self) -> Any:
        """The dataset, as it was given."""
        return self._dataset

    @property
    def spec(self) -> Spec:
        """The spec of one sample."""
        return self._source.spec

    @property
    def plan(self) -> Plan:
        """Where the memory goes, in bytes."""
        return self._plan

    @property
    def memory(self) -> int:
        """Bytes of shared memory that the plan takes, the dataset's copies for the workers included."""
        return self._plan.total

    @property
    def batch_size(self) -> int | None:
        """Samples a batch; None for a dataset of whole batches."""
        return self._batch_size

    @property
    def drop_remainder(self) -> bool:
        """Whether a shorter last batch is left out."""
        return self._settings.drop_remainder

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._shuffle

    @property
    def is_in_order(self) -> bool:
        """Whether every epoch is 0, 1, 2, ..., though the dataset could be read in another order."""
        in_order = isinstance(self._sampler, (Sequential, PassOrder)) and not self._shuffle
        return in_order and self._sampler.length is not None

    @property
    def on_error(self) -> str:
        """What becomes of a failed sample: "raise" or "skip"."""
        return self._settings.on_error

    @property
    def timeout_s(self) -> float | None:
        """How long a batch is waited for."""
        return self._settings.timeout_s

    @property
    def copy(self) -> bool:
        """Whether what is handed out is a copy."""
        return self._settings.copy

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where the sampler does not know."""
        length = self._sampler.length
        if length is None:
            endless = isinstance(self._sampler, (Sequential, PassOrder))
            whose = "dataset has no len(), and goes on without end" if endless else "sampler has no len()"
            whose = "dataset is an iterable" if self._source.streams else whose
            message = f"the length of this loader is unknown: its {whose}"
            raise TypeError(message)
        return batch_count(length, self._batch_size or 1, self._settings.drop_remainder)

    def __repr__(self) -> str:
        """Return what it feeds, and how, in a line."""
        if not hasattr(self, "_plan"):  # its parameters were refused
            return object.__repr__(self)
        plan, settings, size = self._plan, self._settings, self._batch_size
        batches = "whole batches" if size is None else f"batches of {size}"
        kind = f"by {settings.start_method}" if settings.backend == "process" else "in threads"
        most = "" if self._tuner is None else "up to "
        workers = f"workers {kind}: {most}{plan.workers}" if plan.workers else "no workers"
        memory = f"slots: {most}{plan.slots}, {show_bytes(plan.total)}"
        return f"<Loader of {type(self._dataset).__name__}: {batches}, {workers}, {memory}>"

    # ---- epochs ----

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins."""
        return self._next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` the epoch of this number: its order and its random numbers."""
        self._next_epoch = check_count("epoch", epoch, 0, MOST, none=False) or 0

    def __iter__(self) -> Iterator[Batch_co]:
        """Begin the next epoch; an older iterator raises SupersededError at its next ``next()``."""
        with UsersErrors():  # of a hook
            return self._begin_epoch()

    def _begin_epoch(self, build: BuildBatch | None = None, *, wait_for_slots: bool = False) -> BatchIterator:
        """Begin the next epoch; see `BatchStream.epoch`."""
        self._check_open()
        with self._lock:
            self._turn += 1
            self._rest_at = None
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
            _in_use.add(self)
            self._engine.begin(self._sampler.epoch(number), number, self._turn, pure=self._sampler.pure)
            run = self._run(self._turn, wait_for_slots=wait_for_slots)
            return BatchIterator(run, self._engine.taker, build, copy=self._settings.copy)

    def _run(self, turn: int, *, wait_for_slots: bool) -> EpochRun:
        resolve = partial(self._resolve, turn, patient=wait_for_slots)
        ready, break_off = partial(self._ready, turn), partial(self._break_off, turn)
        return EpochRun(turn, self._lock, resolve, ready, break_off, self._is_stopped)

    def _is_stopped(self) -> bool:
        return self._engine is None

    def _attach(self, feed: Feed) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.attach(feed)

    def _has_more(self) -> bool:
        engine = self._engine
        return engine is not None and engine.has_more

    def _run_hook(self, name: str) -> None:
        """Call a hook of the dataset, if it has it; its length may be another afterwards."""
        if self._source.run_hook(name):
            with self._as_before():
                self._sampler = self._make_sampler()

    def _waiting(self) -> int:
        """Return how many batches the sampler has given and no iterator has taken."""
        engine = self._engine
        return 0 if engine is None else engine.waiting

    def _reload(self) -> None:
        """Have what the newest iterator has not taken yet read from the dataset as it is now."""
        with self._lock:
            engine, order = self._engine, self._sampler
            if engine is None or engine.pool.failure is not None or not (self._waiting() or self._rest_at is not None):
                return
            assert isinstance(order, PassOrder)
            engine.update(self._source.dataset)
            if self._rest_at is None:
                self._rest_at = order.now.given - engine.withdraw()
            order.go_to(self._rest_at)
            engine.begin(order.now, self._next_epoch - 1, self._turn, pure=order.pure)
            self._rest_at = None

    def _start(self) -> None:
        self._stop_engine()  # if Ctrl-C has kept the last from it
        self._check_memory()
        source = self._source.without_dataset()
        launcher, self._launcher = self._launcher, None
        engine = Engine(self._plan, source, self._settings, self._stats, tuner=self._tuner, launcher=launcher)
        try:
            self._unended = engine
            self._finalizer = weakref.finalize(self, Engine.stop, engine)
            atexit.unregister(Exit.note)
            atexit.register(Exit.note)  # the last to be registered is the first to run
            self._pin_slots(engine)
            engine.start(self._source.dataset)
            self._check_open()
            self._engine = engine
        except BaseException:
            self._stop_engine()
            raise

    def _pin_slots(self, engine: Engine) -> None:
        """Register the slots with ``pin=True``; at the engine's end, when the copies that read them have passed."""
        engine.on_stop.append(self._pending.wait)
        if self._settings.pin:
            self._pins = Pins(start_driver(), engine.ring, self._plan.slot_size)
            engine.on_stop.append(self._pins.release)

    def _register_slots(self, registrar: Registrar) -> None:
        if self._pins is not None:
            self._pending.wait()
            self._pins.move_to(registrar)

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            message = "a newer iterator of this loader has taken over; finish one before you make the next"
            raise SupersededError(message)

    def _ready(self, turn: int) -> bool:
        """Whether the next batch is there; raises what is raised for an iterator that has had its time."""
        self._check_open()
        with self._lock:
            self._check_turn(turn)
            engine = self._engine
            return engine is not None and (engine.taker.kept is not None or engine.ring.look() == _ring.TAKEABLE)

    def _resolve(self, turn: int, answer: int, build: BuildBatch | None, *, patient: bool) -> None:
        """Have the engine do what the ring's answer asks for; StopIteration at the epoch's end."""
        self._check_open()
        with self._lock:
            self._check_turn(turn)
            engine = self._engine
            if engine is None:
                self._check_open()
                raise StopIteration  # the workers have failed, and that was raised
            if self._rest_at is not None:
                self._reload()  # Ctrl-C has kept the last from its end
            try:
                return engine.resolve(answer, build, patient=patient)
            except StopIteration:
                pass  # what the hook raises must not come "during handling" of this
            except RingfeedError as error:
                if error is engine.pool.failure:
                    self._stop_engine()
                raise
            if self._ended != turn:
                self._ended = turn  # whatever the hook raises, it has run
                self._run_hook("on_epoch_end")
            raise StopIteration

    def _break_off(self, turn: int) -> None:
        """Cancel an epoch whose iterator died before its end."""
        # Never wait for the lock: this runs wherever the garbage collector does, in the pool's watcher too. Its
        # owner closes the loader or begins an epoch: the iterator of the newest turn is not inside next() if it dies.
        if turn != self._turn or self._forks != Forks.count or not self._lock.acquire(blocking=False):
            return
        try:
            if turn == self._turn and self._engine is not None:
                self._engine.cancel()
        finally:
            self._lock.release()

    # ---- what can be seen while it runs; safe from any thread ----

    def stats(self) -> Stats:
        """Return what has been done so far, and what it means; the object is kept up to date by the next call."""
        engine = self._engine
        if engine is not None:
            self._stats = engine.count()
        plan, tuner, engine_now = self._plan, self._tuner, self._engine_now()
        self._stats.look_with(lambda: _memory_of(plan, engine_now()))
        self._stats.tuning = [] if tuner is None else list(tuner.history)
        self._stats.verdict = verdict(
            self._stats,
            workers=self._settings.workers if tuner is None else tuner.setting.workers,
            slots=plan.slots if tuner is None else tuner.setting.slots,
            slot_size=plan.slot_size,
            cpus=usable_cpus(),
            tuned="" if tuner is None else tuner.why,
            imported=self._imported(),
        )
        return self._stats

    def _imported(self) -> Sequence[str]:
        """Return the frameworks that workers import, where their start takes long."""
        stats = self._stats
        started = self._settings.start_method != "fork"  # a forked worker maps what this process has imported
        slow = stats.startup_s >= STARTUP_S or not stats.batches
        if self._engine is not None and started and slow and not self._imports:
            self._imports = frameworks_in(self._engine.worker_pids())
        return self._imports

    def _engine_now(self) -> Callable[[], Engine | None]:
        """Return what returns the engine that runs, and does not keep this loader."""
        this = weakref.ref(self)

        def engine() -> Engine | None:
            loader = this()
            return None if loader is None else loader._engine  # noqa: SLF001 - it is this very object

        return engine

    def slot_states(self) -> list[str]:
        """Return a word for each slot: free, filling, ready, held or draining."""
        engine = self._engine
        return ["free"] * self._plan.slots if engine is None else engine.observer.states()

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Begin a timeline of the workers, the slots and the consumer, written to ``path`` when it is stopped.

            with loader.trace("run.json"):
                model.fit(loader.to_keras())

        Open the file in https://ui.perfetto.dev or chrome://tracing. A thread looks at the ring every millisecond,
        which takes about one percent of a CPU; nothing else becomes slower. OSError where there can be no such file.
        """
        engine_now = self._engine_now()
        return Trace(lambda: _observer_of(engine_now()), path)

    # ---- into frameworks, each imported when it is asked for ----

    @property
    def _stream(self) -> LoaderStream:
        return LoaderStream(
            self,
            self._info,
            self._pending,
            self._begin_epoch,
            self._attach,
            self._has_more,
            self._request_stop,
            self._register_slots,
            self._waiting,
            self._reload,
        )

    def _info(self) -> LoaderInfo:
        plan, settings, is_iterable = self._plan, self._settings, self._source.streams > 0
        skips, rows = settings.on_error == "skip", plan.layout.rows
        has_gaps = self._source.has_gaps or self._stats.none_batches > 0  # None has come in the place of whole batches
        return LoaderInfo(
            spec=self.spec,
            offsets=plan.layout.offsets,
            slots=plan.slots,
            max_rows=rows,
            fixed_rows=rows if settings.drop_remainder and self._batch_size is not None and not skips else None,
            count=self._count,
            is_exact=not (skips or has_gaps or is_iterable),
            is_iterable=is_iterable,
            copy=settings.copy,
            is_shuffled=self.shuffle,
            is_in_order=self.is_in_order,
            timeout_s=settings.timeout_s,
        )

    def _count(self) -> int | None:
        try:
            return len(self)
        except TypeError:
            return None

    def to_keras(self, *, class_weight: Mapping[int, float] | None = None, cast: CastTree = None) -> DataAdapter:
        """Return what ``fit``, ``evaluate`` and ``predict`` of a Keras 3 model take as ``x``, over the slots.

        ``cast``: leaves that become floating point after the hand-over. The slots hold them as the uint8 that they are,
        in a quarter of the memory of float32. It is

        - a dtype, such as ``"float32"``, or a `ringfeed.Cast`, for every uint8 leaf; or
        - a sample's structure of these and of None, for leaves of any numbers, as in ``("float32", None)`` or
          ``{"image": Cast(scale=1 / 255), "label": "float32"}``. None, or no key: the leaf stays as it is.

        Raises SpecError for what cannot be cast so.
        """
        from ringfeed.frameworks.keras.door import to_keras  # noqa: PLC0415 - imports Keras

        return to_keras(self._stream, class_weight=class_weight, cast=cast)

    def to_tf_dataset(self, *, cast: CastTree = None) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset`` whose every iteration is one epoch.

        ``cast``: as for `to_keras`; here it is done on the CPU.

        TensorFlow copies to a GPU itself: ahead of the step with, as the last step of a pipeline,
        ``.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))``, and from the slot itself with ``pin=True``.
        """
        from ringfeed.frameworks.tensorflow.dataset import to_tf_dataset  # noqa: PLC0415 - imports TensorFlow

        return to_tf_dataset(self._stream, cast)

    def to_torch(self, device: torch.device | str | None = None, *, cast: CastTree = None) -> Epochs:
        """Return epochs whose batches are torch tensors over the slots.

        ``device="cuda"``: on that GPU, each copied ahead of the step that wants it, on a stream of its own; the slot
        comes back when the copy has passed. With ``pin=True`` the GPU copies beside what it computes. ``cast``: as for
        `to_keras`; done on the device.
        """
        from ringfeed.frameworks.torch import to_torch  # noqa: PLC0415 - imports torch

        return to_torch(self._stream, device, cast)

    def to_jax(self, device: jax.Device | str | None = None, *, cast: CastTree = None) -> Epochs:
        """Return epochs whose batches are jax arrays over the slots.

        ``device``, a ``jax.Device`` or the name of a platform: on that device, each copied by JAX ahead of the step
        that wants it; the slot comes back when the copy is there. With ``pin=True`` the slots are registered by JAX's
        own client where it can (``dma_map``), since it puts what others registered through a buffer of its own.
        ``cast``: as for `to_keras`; done on the device.
        """
        from ringfeed.frameworks.jax import to_jax  # noqa: PLC0415 - imports JAX

        return to_jax(self._stream, device, cast)

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
        self._engine = self._pins = None
        if self._unended is not None:
            self._stats = self._unended.stats
            self._unended.stop()
            if self._finalizer is not None:
                self._finalizer.detach()
            self._unended = None

    def _request_stop(self) -> None:
        """Begin to close: what waits for a batch gives up. At once, from any thread."""
        self._closed = True
        engine = self._engine
        if engine is not None and self._forks == Forks.count:
            engine.pool.dismiss()

    def close(self) -> None:
        """End the workers and give the memory back; views that are still referenced stay valid."""
        self._request_stop()  # before the lock: another thread may hold it while it waits
        if self._forks != Forks.count:
            return  # a forked child: nothing here is its own
        with self._lock:
            self._stop_engine()
            self._launcher = None  # that ends what it has begun

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close the loader."""
        self.close()


def _memory_of(plan: Plan, engine: Engine | None) -> Memory:
    return Memory(plan) if engine is None else engine.memory(plan)


def _observer_of(engine: Engine | None) -> Observer | None:
    return None if engine is None else engine.observer


@dataclass(frozen=True)
class LoaderStream:
    """A loader as frameworks take it: a `BatchStream`. Made for each, since a loader must not refer to itself.

    waiting, reload: for a sampler that is a `PassOrder`, and the owner of its dataset.
    """

    loader: Loader
    look: Callable[[], LoaderInfo]
    pending: PendingCopies
    epoch: Callable[..., Any]
    attach: Callable[[Feed], None]
    has_more: Callable[[], bool]
    request_stop: Callable[[], None]
    register_slots: Callable[[Registrar], None]
    waiting: Callable[[], int]
    reload: Callable[[], None]

    @property
    def info(self) -> LoaderInfo:
        """What is known now."""
        return self.look()

    @property
    def next_epoch(self) -> int:
        """The number of the next epoch."""
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next epoch the one of this number."""
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.loader)
