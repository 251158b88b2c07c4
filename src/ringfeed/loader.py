"""The loader: what users hold. It checks settings and has an `engine.EpochRunner` run its epochs."""

from __future__ import annotations

import warnings
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ringfeed._callers import callers_depth, frame_above
from ringfeed._checks import MOST, check_count
from ringfeed._failure import UsersErrors
from ringfeed._foreign import refuse_foreign
from ringfeed._units import show_bytes
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import add_weights, open_readers, open_source
from ringfeed.engine.options import Options
from ringfeed.engine.runner import EpochRunner
from ringfeed.orders.making import DEFAULT_BATCH_SIZE, AskedOrder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import jax
    import tensorflow as tf
    import torch
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from typing_extensions import Self
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ringfeed.engine._repeated import Repeated
    from ringfeed.engine.identity import Identity
    from ringfeed.engine.plan import Plan
    from ringfeed.engine.runner import BatchIterator
    from ringfeed.frameworks.base import BatchStream, Epochs
    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.device_slots import DeviceSlots
    from ringfeed.monitor.bottleneck import Verdict
    from ringfeed.monitor.stats import Stats
    from ringfeed.monitor.trace import Trace
    from ringfeed.orders.buckets import Buckets
    from ringfeed.orders.sampler import SeededSampler
    from ringfeed.orders.shard import Shard
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.spec.spec import Spec
    from ringfeed.workers.pool import Remote

if TYPE_CHECKING:
    Batch_co = TypeVarWithDefault("Batch_co", default=Any, covariant=True)
else:
    Batch_co = TypeVar("Batch_co", covariant=True)


_in_use: weakref.WeakSet[Loader] = weakref.WeakSet()


def loaders_in_use() -> tuple[Loader, ...]:
    """Return the loaders of this process that have begun an epoch."""
    return tuple(_in_use)


def stream_of(loader: Loader) -> BatchStream:
    """Return a loader as frameworks take it."""
    return loader._stream  # noqa: SLF001 - the one door for what makes loaders of its own


def runner_of(loader: Loader) -> EpochRunner:
    """Return what runs a loader's epochs."""
    return loader._runner  # noqa: SLF001 - as above


class Loader(Generic[Batch_co]):
    """Feeds batches of a dataset, filled by workers straight into preallocated shared memory.

        loader = ringfeed.Loader(dataset, batch_size=128, shuffle=True, workers=4)
        for images, labels in loader:
            train_step(images, labels)

    Each ``for`` is one epoch. A batch has the structure of a sample, in writable ndarrays over the
    slot itself: a view is valid as long as it is referenced, and its slot comes back when the last
    view dies. Where views hold every slot but one, the next batch is a private copy, with one
    `SlotsHeldWarning`. With the same seed every batch is bit-identical whatever the number of
    workers, slots and the start method, if ``dataset[i]`` depends only on ``i`` and
    `ringfeed.rng()`. A worker that dies, at any instruction, is replaced and its rows run again:
    nothing is lost, doubled or reordered. ``Loader[tuple[NDArray[np.uint8], NDArray[np.int64]]]``
    tells a type checker what a batch is.

    Each parameter in full stands in docs/settings.md.

    **What is read**

    dataset: an object with ``__len__`` and ``__getitem__``, whose ``dataset[i]`` is a sample: an
        array, a number, or nested tuples, lists, dicts or NamedTuples of them; a tuple or dict of
        equally long arrays; with ``batch_size=None``, one whose ``dataset[i]`` is a whole batch,
        such as a Keras ``PyDataset``; an iterable, or a function that returns one, which one worker
        reads in order; a `Mix`, a `Pack`, an `Interleave`; an iterator, which a thread of this
        process reads for one epoch. The first sample is read, unless ``spec`` is given: of a copy,
        where worker processes read the others.
    batch_size: samples a batch; None where ``dataset[i]`` is a whole batch.
    max_batch_size: with ``batch_size=None``, ``collate_fn`` and ``batch_sampler``, the most rows of
        a batch.
    spec: what a sample looks like, as in ``{"image": ringfeed.Array((224, 224, 3), "uint8")}``; by
        default what sample 0 looks like.

    **What the workers make of it**

    transform: a function of each sample, which returns a sample, or changes it in place.
    batch_transform: a function of each batch, as a view of its slot, which changes it or returns
        one of its shapes.
    collate_fn: a function of a list of samples that returns the batch, as torch has it.
    worker_init_fn: a function of a worker's number, called once in each worker before its first
        sample.

    **In which order**

    shuffle: a new order each epoch, a pure function of (seed, epoch). True mixes all samples; a
        number, such as ``10_000``, those of a window: see `WindowShuffle`.
    seed: what the orders and `ringfeed.rng` begin with; None: drawn once, and shown by the loader's
        ``repr``.
    sampler: the order, instead of ``shuffle``: one of ringfeed's samplers, an iterable of dataset
        indices, or a function from the number of an epoch to one.
    batch_sampler: the samples of each batch: `Buckets`, or an iterable of lists of dataset indices,
        or a function from the number of an epoch to one.
    drop_remainder: leave out a last batch that would be shorter.
    shard: of several processes that train together, which one this is, as in ``Shard(rank,
        world_size, uneven="pad")``; "auto" to find it.
    reseed: also seed ``random`` and ``numpy.random``, of whichever process fills, for each sample.

    **How fast**

    workers: None for the number of CPUs that this process may use; 0 to fill in this process, when
        a batch is asked for; "auto" to follow what the measured waits ask for.
    concurrency: samples in flight in all workers together, for a ``__getitem__`` that waits, as for
        a network.
    backend: "process" for worker processes, which one small process forks that has imported what
        the dataset needs; "spawn" for a fresh Python each, "fork" for copies of this process;
        "thread" for datasets that release the GIL or cannot be pickled; or a `ringfeed.ray.Ray`. No
        worker process imports your main module.

    **How much memory**

    slots, memory: how many batches exist at once, being filled, ready and in the caller's hands; or
        the bytes that all shared memory may take ("512MB"), which gives the number of slots.
        ``slots="auto"`` opens slots as they help.
    copy: hand out copies: a batch that is kept holds no slot, and no warning is given.

    **What happens on a failure**

    timeout_s, on_stall: how long to wait for a batch (None: for ever) before StallError ("raise"),
        or before the workers that are stuck are killed and their rows run again ("restart").
        Nothing ends a first sample that this thread reads: where it is neither forked for nor
        awaited.
    on_error: "raise" the error of a failed sample in its place in the order, or "skip" the sample.
    max_attempts: how many workers may die of a sample before the sample counts as failed.
    """

    if not TYPE_CHECKING:  # which reads `__init__`

        def __new__(cls, *given: Any, **named: Any) -> Self:
            """Refuse the words of other loaders here: what wraps `__init__` stands in the traceback of each error."""
            refuse_foreign(cls.__name__, given, named)
            return super().__new__(cls)

    def __init__(  # noqa: PLR0913 - the public parameters
        self,
        dataset: Any,
        *,
        batch_size: int | None = DEFAULT_BATCH_SIZE,
        shuffle: bool | int = False,
        seed: int | None = 0,
        sampler: SeededSampler | Iterable[int] | Callable[[int], Iterable[int]] | None = None,
        batch_sampler: Buckets
        | Iterable[Sequence[int]]
        | Callable[[int], Iterable[Sequence[int]]]
        | None = None,
        drop_remainder: bool = False,
        shard: Shard | Literal["auto"] | None = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        worker_init_fn: Callable[[int], object] | None = None,
        workers: int | Literal["auto"] | None = None,
        concurrency: int | None = None,
        backend: Literal["process", "thread", "spawn", "fork"] | Remote = "process",
        slots: int | Literal["auto"] | None = None,
        memory: int | str | None = None,
        spec: object = None,
        max_batch_size: int | None = None,
        copy: bool = False,
        reseed: bool = False,
        timeout_s: float | None = 300,
        on_stall: Literal["raise", "restart"] = "raise",
        on_error: Literal["raise", "skip"] = "raise",
        max_attempts: int = 3,
    ) -> None:
        """Check everything, read sample 0 unless ``spec`` is given, and make the plan; no slot is reserved yet."""
        asked = AskedOrder(
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            seed=seed,
            shard=shard,
            drop_remainder=drop_remainder,
            batch_sampler=batch_sampler,
            sampler=sampler,
            shuffle=shuffle,
            collates=collate_fn is not None,
        )
        sizes, waits = (asked.rows, spec, asked.max_batch_size), concurrency is not None
        given = *sizes, asked.seed, reseed, on_error
        terms = Terms(*given, part=asked.shared_part, waits=waits, timeout_s=timeout_s)
        source = open_source(dataset, terms, transform, collate_fn, batch_transform, worker_init_fn)
        if asked.carries_weights:
            add_weights(source)
        options = Options(
            source,
            workers=workers,
            concurrency=concurrency,
            slots=slots,
            memory=memory,
            backend=backend,
            copy=copy,
            drop_remainder=asked.part.uneven == "drop",
            timeout_s=timeout_s,
            on_stall=on_stall,
            on_error=on_error,
            max_attempts=max_attempts,
        )
        open_readers(source, options.concurrency, options.readers, max_attempts)
        if reseed and options.backend == "thread":
            message = (
                "reseed=True seeds states that all threads share; use backend='process', or "
                "ringfeed.rng()"
            )
            raise ValueError(message)
        with UsersErrors():  # of a first sample
            self._runner = EpochRunner(
                source, options, asked.part, shuffle=shuffle, sampler=asked.sampler
            )
        self._asked, self._options, self._position = asked, options, self._runner.position
        if drop_remainder and (length := source.length()) and batch_size and length < batch_size:
            message = (
                f"drop_remainder=True leaves no batch at all: {length} samples are fewer than "
                f"batch_size={batch_size}; make batch_size smaller, or keep the last batch with "
                "drop_remainder=False"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=callers_depth())

    def __reduce__(self) -> Any:
        """Refuse to be pickled or copied."""
        message = (
            "a Loader cannot be pickled or copied, as it has workers and shared memory of its "
            "own; make another one of its dataset, and give it this one's state_dict() to go on "
            "from here"
        )
        raise TypeError(message)

    if not TYPE_CHECKING:
        __new__.__wrapped__ = __init__  # for help() and inspect.signature()

    # ---- what it is ----

    @property
    def dataset(self) -> Any:
        """The dataset, as it was given."""
        return self._runner.source.given

    @property
    def spec(self) -> Spec:
        """The spec of one sample."""
        return self._runner.source.spec

    @property
    def plan(self) -> Plan:
        """Where the memory goes, in bytes."""
        return self._runner.plan

    @property
    def memory(self) -> int:
        """Bytes of shared memory that the plan takes, the dataset's copies for the workers included."""
        return self._runner.plan.total

    @property
    def batch_size(self) -> int | None:
        """Samples a batch; None for a dataset of whole batches, and with ``batch_sampler``."""
        return self._asked.batch_size

    @property
    def sampler(self) -> Any:
        """What was given as ``sampler=`` or ``batch_sampler=``; None where ``shuffle=`` says the order."""
        return self._asked.given

    @property
    def drop_remainder(self) -> bool:
        """Whether a shorter last batch is left out."""
        return self._options.drop_remainder

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        return bool(self._asked.shuffle)

    @property
    def is_in_order(self) -> bool:
        """Whether every epoch is 0, 1, 2, ..., though the dataset could be read in another order."""
        sampler = self._position.sampler
        return sampler.counts_up and sampler.length is not None and not self._asked.shuffle

    @property
    def on_error(self) -> str:
        """What becomes of a failed sample: "raise" or "skip"."""
        return self._options.on_error

    @property
    def timeout_s(self) -> float | None:
        """How long a batch is waited for."""
        return self._options.timeout_s

    @property
    def copy(self) -> bool:
        """Whether what is handed out is a copy."""
        return self._options.copy

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where the sampler does not know."""
        return self._position.batches()

    def __repr__(self) -> str:
        """Return what it feeds, and how, in a line."""
        if not hasattr(self, "_runner"):  # its parameters were refused
            return object.__repr__(self)
        plan, settings, size = self._runner.plan, self._options, self._asked.batch_size
        batches = "whole batches" if size is None else f"batches of {size}"
        if size is None and not self._runner.source.whole:
            batches = f"batches of up to {plan.layout.rows}"
        kind = f"by {settings.start_method}" if settings.backend == "process" else "in threads"
        most = "" if self._runner.tuner is None else "up to "
        workers = (
            f"workers {kind}: {most}{plan.workers - settings.readers}"
            if plan.workers
            else "no workers"
        )
        workers += " and a reader" if settings.readers else ""
        memory = f"slots: {most}{plan.slots}, {show_bytes(plan.total)}"
        shard = self._asked.shard
        rank = f"{shard}, " if shard.found or shard.world_size > 1 else ""
        seed = f"seed: {self._runner.source.seed}, " if self._asked.seed_is_drawn else ""
        return (
            f"<Loader of {type(self.dataset).__name__}: {batches}, {seed}{rank}{workers}, {memory}>"
        )

    def _repr_html_(self) -> str | None:
        """Return the same for a notebook, with what has been done so far."""
        if not hasattr(self, "_runner"):
            return None
        from ringfeed._html import table  # noqa: PLC0415 - for notebooks

        count = self._stream.length
        epoch = (
            f"number {self.epoch} is next, "
            f"{'of unknown length' if count is None else f'{count:,} batches each'}"
        )
        return table(
            repr(self).strip("<>"),
            [("epochs", epoch), ("memory", str(self.plan)), *self.stats().lines()],
        )

    def __str__(self) -> str:
        """Return the same; in Keras' error for data that it does not know, with what Keras takes."""
        asked_by = str(frame_above(1).f_globals.get("__name__"))
        hint = (
            ", expected what its to_keras() returns"
            if asked_by.partition(".")[0] == "keras"
            else ""
        )
        return f"{self!r}{hint}"

    # ---- epochs ----

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins."""
        return self._position.next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` the epoch of this number: its order and its random numbers.

        Where it is already, it begins where `load_state_dict` or `skip` has it begin.
        """
        self._position.set_epoch(check_count("epoch", epoch, 0, MOST, none=False) or 0)

    def __iter__(self) -> Iterator[Batch_co]:
        """Begin the next epoch; an older iterator raises SupersededError at its next ``next()``."""
        place = self._position.next
        try:
            with UsersErrors():  # of a hook
                return self._begin_epoch()
        except KeyboardInterrupt:  # perhaps when it had begun: the caller has no iterator
            self._position.next = place
            raise

    def repeat(self, epochs: int | None = None) -> Repeated[Batch_co]:
        """Return one iterator over so many epochs; None: without end, for training that counts steps.

            batches = loader.repeat()
            for step in range(100_000):
                images, labels = next(batches)

        It gives what as many ``for`` loops give, with the same hooks between the epochs, and
        `state_dict`, `skip`, `set_epoch` and `remaining` mean the same. The first epoch begins with
        the first ``next()``; the rest of one, after `load_state_dict`, counts as one: ``repeat(10 -
        loader.epoch)`` ends after the tenth in any case. An error of a batch, or of a hook, does
        not end it: the next ``next()`` goes on. ``len()`` counts the batches of so many whole
        epochs. Where two epochs in a row have no batch, it ends in any case.
        """
        from ringfeed.engine._repeated import Repeated  # noqa: PLC0415 - only where it is asked for

        return Repeated(self, check_count("epochs", epochs, 0))

    def _begin_epoch(self, build: BuildBatch | None = None) -> BatchIterator:
        """Begin the next epoch; see `BatchStream.epoch`."""
        _in_use.add(self)
        return self._runner.begin(build, keeps=self)

    # ---- where it is ----

    @cached_property
    def _identity(self) -> Identity:
        """What must be the same where a state is taken and where it is loaded."""
        from ringfeed.engine.identity import Identity  # noqa: PLC0415 - only for states

        source, asked = self._runner.source, self._asked
        return Identity(source, self._position, asked.batch_size, seed_is_drawn=asked.seed_is_drawn)

    @property
    def remaining(self) -> int:
        """The batches that the epoch under way, or else the next, has still to give; TypeError as for ``len()``."""
        left = self._position.left(self._position.place())
        return len(self) if left is None else left

    @property
    def padding(self) -> int:
        """Rows, 0 or 1, at the end of this rank's last batch of the epoch, that repeat a sample: see `Shard`.

        Of the epoch under way, or else the next. Give such a row weight 0 where each sample must
        count once. TypeError as for ``len()``.
        """
        padding = self._position.padding
        return len(self) if padding is None else padding

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Return where the user's code is, as flat JSON: what `load_state_dict` of another run's loader goes on from.

        It counts the samples of the epoch's order that were handed out, whatever was read ahead; at
        the end of an epoch it is the start of the next. Workers, slots, backend and start method
        are not in it. In microseconds, from any thread and from a signal handler.

        An iterable is read again up to its place, unless it has states of its own: docs/resume.md.

        batches: how many of this epoch the training loop has had, where only it knows: tf.data and
            Keras read ahead of the step, and without ``batches`` StateError is raised there.
        """
        check_count("batches", batches, 0, MOST)
        return self._identity.state(self._position.place(batches))

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Have the next ``iter()`` go on where ``state`` was taken; each sample of that epoch comes exactly once.

        Batch size and world size may be others, as may all that is not in the state; a loader with
        ``seed=None`` takes the seed of the state. `Buckets` needs the state's world size amid an
        epoch. StateError where dataset, order or seed are others; with ``strict=False`` that is a
        warning, and the epoch begins anew. An iterator that was made before raises SupersededError
        at its next ``next()``.
        """
        place = self._identity.place(state, strict=strict)
        self._runner.set_seed(self._identity.seed(state))
        self._runner.go_to(place)

    def skip(self, *, batches: int) -> None:
        """Have the next ``iter()`` leave out so many batches more of its epoch.

        ValueError where it has fewer, or for several iterables in turn.
        """
        count = check_count("batches", batches, 0, MOST, none=False) or 0
        self._position.skip(count, self._runner.source.streams)

    # ---- what can be seen while it runs; safe from any thread ----

    def stats(self) -> Stats:
        """Return what has been done so far, and what it means; the object is kept up to date by the next call."""
        return self._runner.report()

    def _verdict(self, stats: Stats) -> Verdict:
        return self._runner.verdict(stats)

    def slot_states(self) -> list[str]:
        """Return a word for each slot: free, filling, ready, held or draining."""
        engine = self._runner.engine
        return ["free"] * self._runner.plan.slots if engine is None else engine.observer.states()

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Begin a timeline of the workers, the slots and the consumer, written to ``path`` when it is stopped.

            with loader.trace("run.html"):
                model.fit(loader.to_keras())

        A name that ends in ``.html`` makes one page for any browser: the timeline, the stalls, the
        memory, what limits the run. It needs ``pip install 'ringfeed[report]'``, or else raises
        ModuleNotFoundError here. Any other name gets a trace for https://ui.perfetto.dev and
        chrome://tracing, of which ``ringfeed report run.json`` makes the page later. A thread looks
        at the ring every millisecond, which takes about one percent of a CPU. OSError where there
        can be no such file.
        """
        from ringfeed.monitor.trace import begin_trace  # noqa: PLC0415 - only where it is needed

        return begin_trace(
            self,
            path,
            self._runner.asking(lambda engine: None if engine is None else engine.observer),
            Loader._verdict,
        )

    # ---- into frameworks, each imported when it is asked for ----

    @cached_property
    def _slots(self) -> DeviceSlots:
        """What devices have to do with the slots."""
        from ringfeed.frameworks.device_slots import DeviceSlots  # noqa: PLC0415 - a plain loop has no device

        runner = self._runner
        # Slots that "auto" may open later have no memory yet, so none is registered.
        slots = DeviceSlots(runner.plan.slot_size, registers="slots" not in self._options.auto)
        runner.on_start.append(slots.prepare)
        if runner.engine is not None:
            slots.prepare(runner.engine)
        return slots

    @property
    def _stream(self) -> BatchStream:
        from ringfeed.frameworks.base import BatchStream, LoaderInfo  # noqa: PLC0415 - a plain loop has no framework

        plan, settings, source = self._runner.plan, self._options, self._runner.source
        is_fixed = settings.drop_remainder and settings.on_error != "skip" and bool(self.batch_size)
        rows = plan.layout.rows
        fixed_rows = rows if is_fixed and not source.collates else None
        info = LoaderInfo(
            self.spec, plan.layout.offsets, plan.slots, rows, fixed_rows, settings.copy
        )
        return BatchStream(
            self, self._runner, info, self._slots, self._begin_epoch, self._asked.seed_is_drawn
        )

    def to_keras(
        self, *, class_weight: Mapping[int, float] | None = None, cast: CastTree = None
    ) -> DataAdapter:
        """Return what ``fit``, ``evaluate`` and ``predict`` of a Keras 3 model take as ``x``, over the slots.

        ``cast``: leaves that become floating point after the hand-over. The slots hold them as the
        uint8 that they are, in a quarter of the memory of float32. It is

        - a dtype, such as ``"float32"``, or a `ringfeed.Cast`, for every uint8 leaf; or
        - a sample's structure of these and of None, for leaves of any numbers, as in ``("float32",
          None)`` or ``{"image": Cast(scale=1 / 255), "label": "float32"}``. None, or no key: the
          leaf stays as it is.

        Raises SpecError for what cannot be cast so, and ValueError with a `PrioritizedSampler`, for
        whose batches ``fit`` has no place.
        """
        self._asked.refuse_weights()
        from ringfeed.frameworks.keras.door import to_keras  # noqa: PLC0415 - imports Keras

        return to_keras(self._stream, class_weight=class_weight, cast=cast)

    def to_tf_dataset(self, *, cast: CastTree = None) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset`` whose every iteration is one epoch.

        ``cast``: as for `to_keras`; here it is done on the CPU.

        TensorFlow copies to a GPU itself: ahead of the step with, as the last step of a pipeline,
        ``.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))``.
        """
        from ringfeed.frameworks.tensorflow.dataset import to_tf_dataset  # noqa: PLC0415 - imports TensorFlow

        return to_tf_dataset(self._stream, cast)

    def to_torch(
        self, device: torch.device | str | None = None, *, cast: CastTree = None
    ) -> Epochs:
        """Return epochs whose batches are torch tensors over the slots.

        ``device="cuda"``: on that GPU, each copied ahead of the step that wants it, on a stream of
        its own; the slot comes back when the copy has passed. The slots are registered by torch,
        so that the GPU copies beside what it computes; a warning says where that cannot be.
        ``cast``: as for `to_keras`; done on the device.
        """
        from ringfeed.frameworks.torch import to_torch  # noqa: PLC0415 - imports torch

        return to_torch(self._stream, device, cast)

    def to_jax(self, device: jax.Device | str | None = None, *, cast: CastTree = None) -> Epochs:
        """Return epochs whose batches are jax arrays over the slots.

        ``device``, a ``jax.Device`` or the name of a platform: on that device, each copied by JAX
        ahead of the step that wants it; the slot comes back when the copy is there. The slots are
        registered by JAX's own client where it can (``dma_map``), since it puts what others
        registered through a buffer of its own. ``cast``: as for `to_keras`; done on the device.
        """
        from ringfeed.frameworks.jax import to_jax  # noqa: PLC0415 - imports JAX

        return to_jax(self._stream, device, cast)

    # ---- the end ----

    def close(self) -> None:
        """End the workers and give the memory back; views that are still referenced stay valid."""
        self._runner.close()

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close the loader."""
        self.close()
