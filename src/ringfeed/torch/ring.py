"""The ring under a DataLoader: a Loader whose order the DataLoader's own samplers give.

One iterator at a time has it. With ``persistent_workers`` it stays for the next epoch, and its
workers keep what they have. Without, it ends with its epoch, as torch's workers do, and the next
one's know what the program has set meanwhile.

    default_collate, samples of one shape and text      leaf by leaf: Form
    collate_fn, __getitems__, all else                  as bytes: Pickling
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from ringfeed._process import Forks
from ringfeed._units import show_bytes
from ringfeed.datasets.peekable import has_state
from ringfeed.datasets.streams import Interleave
from ringfeed.errors import RingfeedError, ShipError, SpecError
from ringfeed.loader import Loader, stream_of
from ringfeed.ring._ring import MAX_WORKERS
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.spec.spec import Array
from ringfeed.torch.collation import Form, batch_builder, has_own_collation
from ringfeed.torch.first_sample import first_line, start_method, with_first
from ringfeed.torch.index_lists import NOTHING, IndexLists, ints_of
from ringfeed.torch.pickled import (
    Apart,
    Aparts,
    Batches,
    Fetch,
    UnsendableError,
    as_numbers,
    memory_of,
    parts_of,
    read,
    size_of,
)
from ringfeed.torch.samples import Copy, Numbers, Samples, StatefulCopy, WorkerStart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfeed.engine._iterator import BatchIterator

LOG = logging.getLogger("ringfeed.torch")
EPOCHS = 2**63 - 1  # numbers of epochs that a loader takes
LEAST = 2**16  # bytes for a batch whose size is only guessed
MORE = 1.25  # times the bytes that a batch has needed
LEAST_ROWS = 128  # numbers that say what a sampler has given, of four bytes each


class Pickling:
    """Batches as bytes, in slots with room for what the first sample suggests, or the largest."""

    def __init__(self) -> None:
        self.size: int | None = None
        """The bytes of a batch; None: nothing is known."""

        self.converts = False
        """Whether arrays become tensors, as torch does where it has nothing to collate."""

    def settings(
        self, loader: Any, first: Any, start: WorkerStart, rows: int, slots: int
    ) -> dict[str, Any]:
        """Return the settings of a Loader: what makes bytes of a batch, and how many.

        ``rows``: the most numbers of the ring's lists, which are also a batch's most rows.
        """
        alone = loader.batch_sampler is None
        self.converts = alone and loader.collate_fn is default_convert
        collate = None if self.converts else loader.collate_fn
        if self.size is None:
            try:
                self.size = with_first(
                    loader, first, start, partial(_estimate, loader, collate, first)
                )
            except SpecError:
                self.size = 0  # larger ones lie apart
        room = -(-int(LEAST + self.size * MORE) // rows)
        settings: dict[str, Any] = {
            "spec": Array((room,), "uint8", variable=True),
            "max_batch_size": rows,
        }
        if first is NOTHING:
            return settings | {"collate_fn": Batches(collate, rows, room, slots, alone=alone)}
        samples = Samples(loader.dataset, start)
        fetch = Fetch(samples, collate, rows, room, slots, alone=alone)
        return settings | {"dataset": Numbers(), "collate_fn": fetch}

    def batch_of(self, leaves: list[Any]) -> Any:
        """Return the batch whose bytes lie in a slot, or apart: its tensors are parts of these."""
        try:
            batch = read(leaves[0].numpy().reshape(-1))
            if type(batch) is Apart:
                flat = memory_of(batch)
                self.size = max(self.size or 0, len(flat))
                batch = read(flat)
        except Exception as error:
            raise ShipError(
                f"a batch cannot be made again in the training process: {error}; return objects of "
                "classes that a module or the script defines"
            ) from error
        return default_convert(batch) if self.converts else batch


def _estimate(loader: Any, collate: Any, first: Any, sample: Any) -> int:
    """Return about how many bytes a batch takes that has many samples like this one."""
    alone = loader.batch_sampler is None
    count = 1 if alone else size_of_batch(loader) or len(first)
    try:
        made = sample if collate is None else collate(sample if alone else [sample])
    # Perhaps it needs several samples; if it fails with these, too, that is told in its place.
    except Exception:  # noqa: BLE001
        return 2 * count * size_of(parts_of(sample))
    return count * size_of(parts_of(made))


class Ring:
    """A Loader for the batches of a DataLoader."""

    def __init__(self, loader: Any, lists: IndexLists, way: Form | Pickling | None) -> None:
        """Look at a first sample, and plan the slots; raises what the ring cannot do, in any error.

        ``way``: how batches go; None: leaf by leaf, in a form that the first sample shows.
        """
        method = start_method(loader)
        if has_own_collation() and method != "fork":
            raise ShipError(
                "torch's default_collate_fn_map has functions of the user's own, which workers "
                "would not know"
            )
        self.forks = Forks.count
        """How often this process had been forked; in one that was forked later the ring is dead."""
        first = lists.peek()
        start = WorkerStart(loader.num_workers, lists.base_seed, loader.worker_init_fn)
        rows = size_of_batch(loader) or 1
        # One is in the program's hands, and a program that begins to keep batches has two: of two
        # slots none would be left to fill, and nothing could be copied.
        slots = max(loader.prefetch_factor * loader.num_workers + 1, MIN_SLOTS + 1)
        # The lists of the epoch that begins, where the Loader's order finds them.
        self._order = order = [lists]
        settings = (
            _of_iterable(loader, start)
            if lists.of_stream
            else {"batch_sampler": lambda _: order[0]}
        )
        self.way: Form | Pickling = way or with_first(loader, first, start, Form.of)
        if isinstance(self.way, Pickling):
            rows = rows if lists.of_stream else max(LEAST_ROWS, 2 * rows)
            settings |= self.way.settings(loader, first, start, rows, slots)
            self._numbers = partial(as_numbers, most=rows, apart=Aparts(slots))
        else:
            settings["spec"] = self.way.tree
            if not lists.of_stream:
                settings |= {"max_batch_size": rows, "dataset": _of_samples(loader, start)}
            of_columns = isinstance(settings["dataset"], tuple)
            self._numbers = partial(ints_of, most=rows, of_columns=of_columns)
        self.loader = Loader(
            **settings,
            workers=min(loader.num_workers, MAX_WORKERS),
            slots=slots,
            timeout_s=loader.timeout or None,
            backend={"forkserver": "process"}.get(method, method),
        )
        self._stream = stream_of(self.loader)
        # Workers that persist keep their copies, as torch's do.
        self._stream.runner.source.changes = False
        # Without an accelerator torch can pin no memory.
        pinned = loader.pin_memory and getattr(torch, "accelerator", torch.cuda).is_available()
        self._build = batch_builder(self._stream.info, self.way.batch_of, pinned=pinned)

    def begin(
        self, lists: IndexLists, epoch: int, at: Mapping[str, Any] | None = None
    ) -> BatchIterator:
        """Begin an epoch, whose number the samples' random numbers depend on.

        ``at``: what the Loader's ``state_dict()`` returned, for iterables to go on from there.
        """
        self._order[0], lists.numbers = lists, self._numbers
        self.loader.set_epoch(epoch % EPOCHS)
        if at is not None:
            now = self.loader.state_dict()
            same = {name: now[name] for name in ("epoch", "spec")}  # a slot's room may be another
            self.loader.load_state_dict(dict(at) | same)
        stream, build = self._stream, self._build
        return stream.begin(lambda: stream.epoch(build))  # type: ignore[return-value]

    def close(self) -> None:
        """End the workers and give the memory back."""
        self.loader.close()

    def __str__(self) -> str:
        """Say what it takes."""
        plan = self.loader.plan
        workers = "1 worker process" if plan.workers == 1 else f"{plan.workers} worker processes"
        return f"{workers}, {plan.slots} slots, {show_bytes(plan.total)} of shared memory"


class Rings:
    """What the epochs of a DataLoader share: how its batches go, and the ring that waits."""

    def __init__(self) -> None:
        self.own_reason: str | None = None
        """Why torch makes all batches."""
        self.way: Form | Pickling | None = None
        """How batches go; None: nothing is known yet."""
        self.said: set[str] = set()
        """What was logged, once each."""
        self._idle: Ring | None = None

    def take(self, loader: Any, lists: IndexLists) -> Ring:
        """Return a ring that no iterator has, or a new one."""
        idle, self._idle = self._idle, None
        if idle is not None and idle.forks == Forks.count:
            # Its workers persist, so a function that was set since then reaches none of them, as
            # with torch.
            return idle
        if not isinstance(self.way, Pickling) and not goes_by_leaf(loader):
            self.way = Pickling()
        ring = Ring(loader, lists, self.way)
        self.way = ring.way
        self.say(loader, f"runs over ringfeed: {ring}", logging.INFO)
        return ring

    def keep(self, loader: Any, ring: Ring) -> bool:
        """Keep one ring with workers that persist for the next epoch; return whether it is kept."""
        is_wanted = self._idle is None and self.own_reason is None and ring.way is self.way
        is_kept: bool = is_wanted and loader.persistent_workers
        if is_kept:
            self._idle = ring
        return is_kept

    def pickle(self, loader: Any, why: Exception) -> bool:
        """Have batches go as bytes from now on; False where they raise this error, too."""
        is_no_remedy = isinstance(why, RingfeedError) and not isinstance(why, SpecError)
        if isinstance(self.way, Pickling) or is_no_remedy or isinstance(why, UnsendableError):
            return False
        self.way = Pickling()
        self.say(loader, f"has its batches pickled: {first_line(why)}", logging.INFO)
        self.close()
        return True

    def leave_to_torch(self, loader: Any, why: Exception | str) -> None:
        """Have torch make the batches from now on."""
        self.own_reason = why if isinstance(why, str) else first_line(why)
        self.say(loader, f"is left to torch: {self.own_reason}", logging.WARNING)

    def say(self, loader: Any, what: str, level: int) -> None:
        """Log a line, once for each loader."""
        if what not in self.said:
            self.said.add(what)
            LOG.log(level, "DataLoader of %s %s", type(loader.dataset).__name__, what)

    def close(self) -> None:
        """End the workers that wait for the next epoch."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()


# ---- the settings of the Loader ----


def size_of_batch(loader: Any) -> int:
    """Return the most samples of a batch; 0 where only the lists of a batch_sampler say it."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", 0)
    return size if isinstance(size, int) else 0


def _of_iterable(loader: Any, start: WorkerStart) -> dict[str, Any]:
    """Return the settings for a copy of an IterableDataset in each worker, read in turn."""
    if loader.num_workers > MAX_WORKERS:
        raise ShipError(
            f"num_workers={loader.num_workers} copies of an IterableDataset, and {MAX_WORKERS} is "
            "the most"
        )
    kind = StatefulCopy if has_state(loader.dataset) else Copy
    return {
        "dataset": Interleave(
            kind(loader.dataset, number, start) for number in range(loader.num_workers)
        ),
        "batch_size": loader.batch_size or 1,
        "drop_remainder": loader.drop_last,
        "reseed": True,
    }


def _of_samples(loader: Any, start: WorkerStart) -> Any:
    """Return what workers read of a map-style dataset: columns need none of its code."""
    if type(loader.dataset) is TensorDataset and start.init_fn is None:
        with suppress(TypeError, RuntimeError):  # of a tensor that no array can be
            if columns := tuple(tensor.numpy() for tensor in loader.dataset.tensors):
                return columns
    return Samples(loader.dataset, start)


def goes_by_leaf(loader: Any) -> bool:
    """Return whether samples, read one by one and collated by default, may be written leaf by leaf.

    Their number must be known: lists that grow would need larger slots, and with them new workers,
    which forget what a dataset has changed in itself.
    """
    if (
        loader.batch_sampler is None
        or not size_of_batch(loader)
        or loader.collate_fn is not default_collate
        or has_own_collation()
    ):
        return False
    return isinstance(loader.dataset, IterableDataset) or _is_plain(loader.dataset)


def _is_plain(dataset: Any) -> bool:
    """Whether it is a Subset of a dataset that gives one sample at a time."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not getattr(dataset, "__getitems__", None)
