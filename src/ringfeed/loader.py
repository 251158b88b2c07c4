"""The public class `Loader`: it checks the settings; an `engine.EpochRunner` runs the epochs."""

from __future__ import annotations

import warnings
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from ringfeed._callers import callers_depth, frame_above
from ringfeed._checks import MOST, check_count, check_integer
from ringfeed._failure import UsersErrors
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import add_weights, open_readers, open_source
from ringfeed.engine.options import Options
from ringfeed.engine.runner import EpochRunner
from ringfeed.orders.making import DEFAULT_BATCH_SIZE, OrderParameters
from ringfeed.system.machine import HAS_PROCESSES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import jax
    import tensorflow as tf
    import torch
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ringfeed.engine._iterator import BatchIterator
    from ringfeed.engine._repeated import Repeated
    from ringfeed.engine.identity import Identity
    from ringfeed.engine.plan import Plan
    from ringfeed.frameworks.base import BatchStream, Epochs
    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.device import DeviceSlots
    from ringfeed.monitor.stats import Stats, Verdict
    from ringfeed.monitor.trace import Trace
    from ringfeed.orders.buckets import Buckets
    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Shard
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.spec.spec import Spec
    from ringfeed.workers.pool import Remote

if TYPE_CHECKING:
    Batch_co = TypeVarWithDefault("Batch_co", default=Any, covariant=True)
else:
    Batch_co = TypeVar("Batch_co", covariant=True)


_in_use: weakref.WeakKeyDictionary[Loader, None] = weakref.WeakKeyDictionary()


def loaders_in_use() -> tuple[Loader, ...]:
    """Return the loaders of this process that have begun an epoch."""
    # The references are listed in one step: other threads begin epochs meanwhile.
    return tuple(found for ref in _in_use.keyrefs() if (found := ref()) is not None)


def stream_of(loader: Loader) -> BatchStream:
    """Return the loader's `BatchStream`, from which the framework adapters read."""
    return loader._stream  # noqa: SLF001 - for packages that make loaders of their own


def runner_of(loader: Loader) -> EpochRunner:
    """Return the loader's `EpochRunner`."""
    return loader._runner  # noqa: SLF001 - for packages that make loaders of their own


class Loader(Generic[Batch_co]):
    """Feeds batches of a dataset, filled by workers straight into preallocated shared memory.

        loader = ringfeed.Loader(dataset, batch_size=128, shuffle=True, workers=4)
        for images, labels in loader:
            train_step(images, labels)

    Each ``for`` is one epoch. A batch has the structure of a sample; its leaves are writable
    ndarrays over the slot. A view stays valid as long as it is referenced, and the slot is filled
    again when its last view dies. When views hold all slots but one, the next batch is a private
    copy, with one `SlotsHeldWarning`. With the same seed, batches are bit-identical for any number
    of workers or slots and any start method, if ``dataset[i]`` depends only on ``i`` and
    `ringfeed.rng()`. A worker that dies, at any instruction, is replaced, and its rows run again:
    no row is lost, repeated or reordered. ``Loader[tuple[NDArray[np.uint8], NDArray[np.int64]]]``
    tells a type checker the type of a batch.

    docs/settings.md explains each parameter in full.

    **What is read**

    dataset: an object with ``__len__`` and ``__getitem__``, whose ``dataset[i]`` is a sample (an
        array, a number, or nested tuples, lists, dicts or NamedTuples of these) or, with
        ``batch_size=None``, a whole batch, as in a Keras ``PyDataset``; a tuple or dict of equally
        long arrays; an iterable, or a function that returns one: one worker reads it in order; an
        iterator: a thread of this process reads it, for one epoch; a `Mix`, a `Pack` or an
        `Interleave`. The loader reads the first sample unless ``spec`` is given: from a copy of the
        dataset if worker processes read the others.
    batch_size: samples per batch; None if ``dataset[i]`` is a whole batch.
    max_batch_size: the most rows that a batch may have, for ``batch_size=None``, ``collate_fn`` and
        ``batch_sampler``.
    spec: the structure, shapes and dtypes of a sample, as in ``{"image": ringfeed.Array((224, 224,
        3), "uint8")}``; by default those of sample 0.

    **What the workers do with it**

    transform: a function called on each sample; it returns a sample, or changes this one in place.
    batch_transform: a function called on each batch, a view of its slot; it changes the batch in
        place, or returns one of the same shapes.
    collate_fn: a function that makes a batch from a list of samples, as in torch.
    worker_init_fn: a function called once in each worker, with the worker's number, before its
        first sample.

    **In which order**

    shuffle: a new order each epoch, a pure function of (seed, epoch). True mixes all samples; a
        number, such as ``10_000``, mixes only within windows of that size: see `WindowShuffle`.
    seed: the seed of the orders and of `ringfeed.rng`; None draws one, which the loader's ``repr``
        shows.
    sampler: the order, instead of ``shuffle``: one of ringfeed's samplers, an iterable of dataset
        indices, or a function that returns such an iterable for the number of an epoch.
    batch_sampler: the samples of each batch: `Buckets`, an iterable of lists of dataset indices, or
        a function that returns such an iterable for the number of an epoch.
    drop_remainder: leave out the last batch if it would be shorter.
    shard: the rank of this process among those that train together, as in ``Shard(rank,
        world_size, uneven="pad")``; "auto" finds it.
    reseed: also seed ``random`` and ``numpy.random`` for each sample, in the process that fills it.

    **How fast**

    workers: None: as many as the CPUs that this process may use; 0: this process fills a batch when
        it is asked for; "auto": the number changes with the measured waits.
    concurrency: samples that all workers together read at the same time, for a ``__getitem__`` that
        waits, as for a network.
    backend: None: "process", or "thread" where Python runs without the GIL. "process": a small
        process imports what the dataset needs and forks the workers; "spawn": each worker is a
        fresh Python; "fork": workers are copies of this process; "thread": for datasets that
        release the GIL or cannot be pickled; or a `ringfeed.ray.Ray`. No worker process imports
        your main module.

    **How much memory**

    slots, memory: the number of batches that exist at once (being filled, ready, or held by the
        caller); or the bytes that all shared memory may take ("512MB"), from which the number of
        slots follows. ``slots="auto"`` opens slots while they help.
    copy: hand out batches as copies: a batch that you keep holds no slot and gives no warning.

    **What happens on a failure**

    timeout_s, on_stall: how long to wait for a batch (None: for ever). Then "raise" raises
        StallError; "restart" kills the workers that are stuck and runs their rows again. The first
        sample has this limit only with ``backend="fork"`` or an async ``__getitem__``.
    on_error: "raise" the error of a failed sample at its place in the order, or "skip" the sample.
    max_attempts: how many workers may die of a sample before the sample counts as failed.
    """

    if not TYPE_CHECKING:  # which reads `__init__`

        def __new__(cls, *given: Any, **named: Any) -> Self:
            """Refuse other loaders' parameters; a wrapped `__init__` would be in each traceback."""
            if len(given) > 1 or not named.keys() <= Loader.__init__.__kwdefaults__.keys():
                from ringfeed._foreign import refuse_foreign  # noqa: PLC0415 - few words are wrong

                refuse_foreign(cls, given, named)
            return super().__new__(cls)

    def __init__(  # noqa: PLR0913 - the public parameters
        self,
        dataset: Any,
        *,
        batch_size: int | None = DEFAULT_BATCH_SIZE,
        shuffle: bool | int = False,
        seed: int | None = 0,
        sampler: Sampler | Iterable[int] | Callable[[int], Iterable[int]] | None = None,
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
        backend: Literal["process", "thread", "spawn", "fork"] | Remote | None = None,
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
        """Check the settings, read sample 0 unless ``spec`` is given, and plan; reserve no slot."""
        order = OrderParameters(
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
        self._samples: Loader[Any] | None = None
        if getattr(dataset, "learns", False):
            from ringfeed.datasets.learnt import Packing, reading  # noqa: PLC0415 - rarely

            self._samples = Loader(**reading(dataset, order, locals()))
            dataset = Packing(dataset, self._samples, runner_of(self._samples))
            transform = worker_init_fn = concurrency = None
            workers, backend, reseed = 0, "thread", False
        terms = Terms(
            order.rows,
            spec,
            order.max_batch_size,
            order.seed,
            reseed,
            on_error,
            waits=concurrency is not None,
            part=order.part if order.part.world_size > 1 else None,
            timeout_s=timeout_s,
        )
        source = open_source(dataset, terms, transform, collate_fn, batch_transform, worker_init_fn)
        if order.sampler.carries_weights:
            add_weights(source)
        options = Options(
            source,
            workers=workers,
            concurrency=concurrency,
            slots=slots,
            memory=memory,
            backend=backend,
            copy=copy,
            drop_remainder=order.part.uneven == "drop",
            timeout_s=timeout_s,
            on_stall=on_stall,
            on_error=on_error,
            max_attempts=max_attempts,
        )
        open_readers(source, options.concurrency, options.readers, max_attempts)
        if reseed and options.backend == "thread":
            remedy = "backend='process'" if HAS_PROCESSES else "workers=0"
            raise ValueError(
                f"reseed=True seeds states that all threads share; use {remedy}, or ringfeed.rng()"
            )
        with UsersErrors():  # of a first sample
            self._runner = EpochRunner(source, options, order.part, order.sampler)
        self._order, self._options, self._position = order, options, self._runner.position
        if drop_remainder and (length := source.length()) and batch_size and length < batch_size:
            warnings.warn(
                f"drop_remainder=True leaves no batch at all: {length} samples are fewer than "
                f"batch_size={batch_size}; make batch_size smaller, or keep the last batch with "
                "drop_remainder=False",
                RuntimeWarning,
                stacklevel=callers_depth(),
            )

    def __reduce__(self) -> Any:
        """Refuse to be pickled or copied."""
        raise TypeError(
            "a Loader cannot be pickled or copied, as it has workers and shared memory of its "
            "own; make another one of its dataset, and give it this one's state_dict() to go on "
            "from here"
        )

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
        """The memory of each part, in bytes."""
        return self._runner.plan

    @property
    def memory(self) -> int:
        """Bytes of shared memory in the plan, including the dataset's copies for the workers."""
        return self._runner.plan.total

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None for a dataset of whole batches, and with ``batch_sampler``."""
        return self._order.batch_size

    @property
    def sampler(self) -> Any:
        """The given ``sampler=`` or ``batch_sampler=``; None if ``shuffle=`` decides the order."""
        return self._order.given

    @property
    def drop_remainder(self) -> bool:
        """Whether a shorter last batch is left out."""
        return self._options.drop_remainder

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        return bool(self._order.shuffle)

    @property
    def is_in_order(self) -> bool:
        """Whether each epoch reads samples 0, 1, 2, ..., though other orders are possible."""
        sampler = self._position.sampler
        return sampler.counts_up and sampler.length is not None and not self._order.shuffle

    @property
    def on_error(self) -> str:
        """How a failed sample is treated: "raise" or "skip"."""
        return self._options.on_error

    @property
    def timeout_s(self) -> float | None:
        """Seconds to wait for a batch."""
        return self._options.timeout_s

    @property
    def copy(self) -> bool:
        """Whether batches are handed out as copies."""
        return self._options.copy

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError if the sampler does not know it."""
        return self._position.batches()

    def __repr__(self) -> str:
        """Return the dataset's type and the main settings, in one line."""
        if not hasattr(self, "_runner"):  # its parameters were refused
            return object.__repr__(self)
        from ringfeed.monitor.words import loader_text  # noqa: PLC0415 - where it is shown

        samples = "" if self._samples is None else f", samples: {self._samples!r}"
        return f"<{loader_text(self._runner, self._order)}{samples}>"

    def _repr_html_(self) -> str | None:
        """Return a table for notebooks: ``repr``, next epoch, memory and statistics."""
        if not hasattr(self, "_runner"):
            return None
        from ringfeed.monitor.words import loader_html  # noqa: PLC0415 - for notebooks

        return loader_html(self, repr(self).strip("<>"), self._stream.length)

    def __str__(self) -> str:
        """Return the ``repr``; inside Keras' error for unknown data, add what Keras accepts."""
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
        """Set the epoch that the next ``iter()`` begins: its order and its random numbers.

        If that epoch is next already, a position set by `load_state_dict` or `skip` stays.
        """
        self._position.set_epoch(check_integer("epoch", epoch, 0, MOST))

    def __iter__(self) -> Iterator[Batch_co]:
        """Begin the next epoch; an older iterator raises SupersededError at its next ``next()``."""
        place = self._position.next
        try:
            with UsersErrors():  # A hook of the dataset may raise.
                return self._begin_epoch()
        except KeyboardInterrupt:
            # The epoch may have begun, but the caller has no iterator of it.
            self._position.next = place
            raise

    def repeat(self, epochs: int | None = None) -> Repeated[Batch_co]:
        """Return one iterator over ``epochs`` epochs; None: endless, to train by steps.

            batches = loader.repeat()
            for step in range(100_000):
                images, labels = next(batches)

        Its batches, and the hooks between the epochs, are those of as many ``for`` loops;
        `state_dict`, `skip`, `set_epoch` and `remaining` mean the same. The first ``next()`` begins
        the first epoch. After `load_state_dict` the rest of an epoch counts as one epoch, so
        ``repeat(10 - loader.epoch)`` always ends after the tenth. An error of a batch or a hook
        does not end the iterator: the next ``next()`` continues. ``len()`` counts the batches of
        ``epochs`` whole epochs. Two epochs in a row without a batch always end the iterator.
        """
        from ringfeed.engine._repeated import Repeated  # noqa: PLC0415 - only where it is asked for

        return Repeated(self, check_count("epochs", epochs, 0))

    def _begin_epoch(self, build: BuildBatch | None = None) -> BatchIterator:
        """Begin the next epoch; see `BatchStream.epoch`."""
        _in_use[self] = None
        return self._runner.begin(build, keeps=self)

    # ---- where it is ----

    @cached_property
    def _identity(self) -> Identity:
        """What a state and the loader that loads it must have in common."""
        from ringfeed.engine.identity import Identity  # noqa: PLC0415 - only for states

        return Identity(self._runner.source, self._position, self._order)

    @property
    def remaining(self) -> int:
        """Batches left in the running epoch, or else in the next; TypeError as for ``len()``."""
        left = self._position.left(self._position.place())
        return len(self) if left is None else left

    @property
    def padding(self) -> int:
        """How many rows, 0 or 1, pad this rank's last batch by repeating a sample: see `Shard`.

        The last batch is that of the running epoch, or else of the next. Give the padding row
        weight 0 if each sample must count once. TypeError as for ``len()``.
        """
        padding = self._position.padding
        return len(self) if padding is None else padding

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Return the loader's position as flat JSON, for `load_state_dict` of another run's loader.

        The position counts the samples of the epoch's order that were handed out, not those read
        ahead; the end of an epoch is the start of the next. Workers, slots, backend and start
        method are not in the state. Takes microseconds, from any thread and from a signal handler.

        An iterable without states of its own is read again up to its position: docs/resume.md.

        batches: how many batches of this epoch the training loop has received. tf.data and Keras
            read ahead of the loop, so only the loop knows; StateError there without ``batches``.
        """
        check_count("batches", batches, 0, MOST)
        return self._identity.state(self._position.place(batches))

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue at ``state`` with the next ``iter()``; each sample of the epoch comes once.

        Batch size, world size and all that is not in the state may differ; a loader with
        ``seed=None`` takes the seed of the state. In the middle of an epoch, `Buckets` needs the
        world size of the state. StateError if dataset, order or seed differ; with ``strict=False``
        that is a warning, and the epoch starts again. Older iterators raise SupersededError at
        their next ``next()``.
        """
        place = self._identity.place(state, strict=strict)
        self._runner.set_seed(self._identity.seed(state))
        self._runner.go_to(place)

    def skip(self, *, batches: int) -> None:
        """Leave out ``batches`` more batches of the epoch that the next ``iter()`` begins.

        ValueError if the epoch has fewer, or for several iterables in turn.
        """
        count = check_integer("batches", batches, 0, MOST)
        self._position.skip(count, self._runner.source.streams)

    # ---- what can be seen while it runs; safe from any thread ----

    def stats(self) -> Stats:
        """Return counts and times so far, with a verdict; the next call updates the object."""
        stats = self._runner.report()
        if self._samples is not None:
            of_samples = self._samples.stats()
            for name in ("verdict", "restarts", "skipped"):
                setattr(stats, name, getattr(of_samples, name))
        return stats

    def _verdict(self, stats: Stats) -> Verdict:
        return self._runner.verdict(stats)

    def slot_states(self) -> list[str]:
        """Return the state of each slot: free, filling, ready, held or draining."""
        engine = self._runner.engine
        return ["free"] * self._runner.plan.slots if engine is None else engine.observer.states()

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Begin a timeline of workers, slots and consumer; stopping it writes ``path``.

            with loader.trace("run.html"):
                model.fit(loader.to_keras())

        If ``path`` ends in ``.html``, the file is one page for any browser: the timeline, the
        stalls, the memory, and what limits the run. That needs ``pip install 'ringfeed[report]'``;
        ModuleNotFoundError here without it. Any other name gets a trace for https://ui.perfetto.dev
        and chrome://tracing; ``ringfeed report run.json`` makes the page from it later. A thread
        reads the ring every millisecond, which takes about one percent of a CPU. OSError if the
        file cannot be made.
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
        """The copies that devices make of the slots, and the slots' registration with drivers."""
        from ringfeed.frameworks.device import DeviceSlots  # noqa: PLC0415 - on demand

        runner = self._runner
        # Slots that "auto" may open later have no memory yet, so none is registered.
        slots = DeviceSlots(runner.plan.slot_size, registers="slots" not in self._options.auto)
        runner.on_start.append(slots.prepare)
        if runner.engine is not None:
            slots.prepare(runner.engine)
        return slots

    @property
    def _stream(self) -> BatchStream:
        from ringfeed.frameworks.base import BatchStream, LoaderInfo  # noqa: PLC0415 - on demand

        plan, settings, source = self._runner.plan, self._options, self._runner.source
        is_fixed = settings.drop_remainder and settings.on_error != "skip" and bool(self.batch_size)
        rows = plan.layout.rows
        fixed_rows = rows if is_fixed and not source.collates else None
        info = LoaderInfo(
            self.spec, plan.layout.offsets, plan.slots, rows, fixed_rows, settings.copy
        )
        return BatchStream(
            self, self._runner, info, self._slots, self._begin_epoch, self._order.seed_is_drawn
        )

    def to_keras(
        self, *, class_weight: Mapping[int, float] | None = None, cast: CastTree = None
    ) -> DataAdapter:
        """Return ``x`` for ``fit``, ``evaluate`` and ``predict`` of Keras 3, over the slots.

        ``cast``: which leaves become floating point after the hand-over. In the slots they stay
        uint8, a quarter of the memory of float32. Give

        - a dtype, such as ``"float32"``, or a `ringfeed.Cast`, for every uint8 leaf; or
        - the structure of a sample, with these or None in place of its leaves, for numbers of any
          dtype: ``("float32", None)`` or ``{"image": Cast(scale=1 / 255), "label": "float32"}``. A
          leaf with None, or without a key, stays as it is.

        Raises SpecError if a leaf cannot be cast so, and ValueError with a `PrioritizedSampler`:
        ``fit`` has no place for the sample numbers in its batches.
        """
        self._order.refuse_weights()
        from ringfeed.frameworks.keras import to_keras  # noqa: PLC0415 - imports Keras

        return to_keras(self._stream, class_weight=class_weight, cast=cast)

    def to_tf_dataset(self, *, cast: CastTree = None) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset`` whose every iteration is one epoch.

        ``cast``: as for `to_keras`; done on the CPU.

        TensorFlow itself copies batches to a GPU. To copy each before the training step needs it,
        end the pipeline with ``.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))``.
        """
        from ringfeed.frameworks.tensorflow.dataset import (  # noqa: PLC0415 - imports TensorFlow
            to_tf_dataset,
        )

        return to_tf_dataset(self._stream, cast)

    def to_torch(
        self, device: torch.device | str | None = None, *, cast: CastTree = None
    ) -> Epochs:
        """Return epochs whose batches are torch tensors over the slots.

        ``device="cuda"``: on that GPU. Each batch is copied before the training step needs it, on
        a stream of its own; its slot is filled again after the copy. torch registers the slots, so
        that the GPU copies while it computes; a warning says if torch cannot.
        ``cast``: as for `to_keras`; done on the device.
        """
        from ringfeed.frameworks.torch import to_torch  # noqa: PLC0415 - imports torch

        return to_torch(self._stream, device, cast)

    def to_jax(self, device: jax.Device | str | None = None, *, cast: CastTree = None) -> Epochs:
        """Return epochs whose batches are jax arrays over the slots.

        ``device``: a ``jax.Device`` or the name of a platform. JAX copies each batch there before
        the training step needs it; its slot is filled again after the copy. JAX itself registers
        the slots with the driver if it can (``dma_map``). ``cast``: as for `to_keras`; done on the
        device.
        """
        from ringfeed.frameworks.jax import to_jax  # noqa: PLC0415 - imports JAX

        return to_jax(self._stream, device, cast)

    # ---- the end ----

    def close(self) -> None:
        """End the workers and give the memory back; views that are still referenced stay valid."""
        self._runner.close()
        if self._samples is not None:
            self._samples.close()

    def __enter__(self) -> Self:
        """Return the loader itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close the loader."""
        self.close()
