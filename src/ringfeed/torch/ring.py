"""The ring under a DataLoader: a Loader whose order the DataLoader's own samplers give, epoch after epoch.

One iterator at a time has it. With ``persistent_workers`` it stays for the next epoch, and its workers keep what they
have. Without, it ends with its epoch, as torch's workers do, and the next one's know what the program has set
meanwhile.

    default_collate, samples of one shape and text      leaf by leaf: Form
    collate_fn, __getitems__, all else                  as bytes: Pickling
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset, default_collate

from ringfeed._process import Forks
from ringfeed._units import show_bytes
from ringfeed.datasets.peekable import has_state
from ringfeed.datasets.streams import Interleave
from ringfeed.errors import SpecError
from ringfeed.loader import Loader, stream_of
from ringfeed.ring._ring import MAX_WORKERS
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.spec.spec import Array
from ringfeed.torch.collation import BatchObjects, BatchTensors, Form, has_own_collation
from ringfeed.torch.first_sample import start_method, with_first
from ringfeed.torch.index_lists import NOTHING, IndexLists, UnfitError
from ringfeed.torch.pickled import Batches, Fetch, parts_of, size_of
from ringfeed.torch.samples import Copy, Numbers, Samples, StatefulCopy, WorkerStart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringfeed.engine.batches import BatchIterator
    from ringfeed.torch.index_lists import Start

EPOCHS = 2**63 - 1  # numbers of epochs that a loader takes
LEAST = 2**16  # bytes for a batch whose size is only guessed
MORE = 1.25  # times the bytes that a batch has needed
LEAST_ROWS = 128  # numbers that say what a sampler has given, of four bytes each


class Pickling:
    """Has batches go as bytes, in slots with room for those that the first sample suggests, or the largest so far."""

    def __init__(self) -> None:
        self.size: int | None = None
        """The bytes of a batch; None: nothing is known."""

    def settings(self, loader: Any, first: Any, start: WorkerStart, rows: int) -> dict[str, Any]:
        """Return the settings of a Loader: what makes bytes of a batch, and how many; ``rows``: of the ring's lists."""
        alone = is_alone(loader)
        collate = None if alone and converts(loader) else loader.collate_fn
        if self.size is None:
            use = partial(_estimate, loader, collate, first)
            try:
                self.size = with_first(loader, first, start, use, forked=start_method(loader) == "fork")
            except SpecError:
                self.size = 0  # larger ones lie apart
        room = -(-int(LEAST + self.size * MORE) // rows)
        how = collate, rows, room, _slots(loader)
        settings: dict[str, Any] = {"spec": Array((room,), "uint8", variable=True), "max_batch_size": rows}
        if first is NOTHING:
            return settings | {"collate_fn": Batches(*how, alone=alone)}
        fetch = Fetch(Samples(loader.dataset, start), *how, alone=loader.batch_sampler is None)
        return settings | {"dataset": Numbers(), "collate_fn": fetch}


def _estimate(loader: Any, collate: Any, first: Any, sample: Any) -> int:
    """Return about how many bytes a batch takes that has many samples like this one."""
    alone = is_alone(loader)
    count = 1 if alone else max(_size_of(loader), 0 if first is NOTHING else len(first))
    try:
        made = sample if collate is None else collate(sample if alone else [sample])
    except Exception:  # noqa: BLE001 - perhaps it needs several; if it fails with these, too, that is told in its place
        return 2 * count * size_of(parts_of(sample))
    return count * size_of(parts_of(made))


class _Order:
    """The samplers' lists, as the loader reads them: those of the epoch that begins."""

    now: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.now


class Ring:
    """A Loader for the batches of a DataLoader."""

    def __init__(
        self, loader: Any, begun: IndexLists | Start, pickling: Pickling | None, form: Form | None = None
    ) -> None:
        """Look at a first sample, and plan the slots; raises what the ring cannot do, in any error.

        ``pickling``: has batches go as bytes; ``form``: of the batches of a ring before, where it is known.
        """
        if has_own_collation() and start_method(loader) != "fork":
            message = "torch's default_collate_fn_map has functions of the user's own, which workers would not know"
            raise UnfitError(message)
        self._forks = Forks.count
        first = begun.peek() if isinstance(begun, IndexLists) else NOTHING
        self.pickling = pickling
        self.form: Any = form
        """That of the batches that go leaf by leaf."""
        self._order = _Order()
        start = WorkerStart(loader.num_workers, begun.base_seed, loader.worker_init_fn)
        self.rows = rows = _size_of(loader)
        """The most numbers of a list of the order: samples of a batch, or what says what the sampler has given."""
        if isinstance(begun, IndexLists):
            self.rows = rows = max(rows, begun.longest) if pickling is None else max(LEAST_ROWS, 2 * begun.longest)
        if pickling is None and form is None:
            self.form = with_first(loader, first, start, Form.of, forked=start_method(loader) == "fork")
        settings = _of_iterable(loader, start) if first is NOTHING else {"batch_sampler": self._order}
        if pickling is not None:
            settings |= pickling.settings(loader, first, start, rows)
        elif first is NOTHING:
            settings |= {"spec": self.form.tree}
        else:
            settings |= {"spec": self.form.tree, "max_batch_size": rows, "dataset": _of_samples(loader, start)}
        self.loader = Loader(**settings, **_settings(loader))
        self._stream = stream_of(self.loader)
        # Workers that persist keep their copies, as torch's do.
        self._stream.runner.source.changes = False
        info, pinned = self._stream.info, loader.pin_memory and has_accelerator()
        if pickling is None:
            self._build: Any = BatchTensors(info, self.form, pinned=pinned)
        else:
            self._build = BatchObjects(info, pickling, converts=is_alone(loader) and converts(loader), pinned=pinned)

    def begin(self, begun: IndexLists | Start, epoch: int, place: Mapping[str, Any] | None = None) -> BatchIterator:
        """Begin an epoch, whose number the samples' random numbers depend on.

        ``place``: what `place` returned, for iterables to go on from there.
        """
        if isinstance(begun, IndexLists):
            self._order.now, begun.room = begun, self.rows
            begun.of_columns = isinstance(self.loader.dataset, tuple)
        self.loader.set_epoch(epoch % EPOCHS)
        if place is not None:
            now = self.loader.state_dict()
            same = {name: now[name] for name in ("epoch", "spec")}  # a slot's room may be another
            self.loader.load_state_dict(dict(place) | same)
        return self._stream.begin(lambda: self._stream.epoch(self._build))  # type: ignore[return-value]

    @property
    def is_here(self) -> bool:
        """Whether this process has made it, and not one that this one was forked from."""
        return self._forks == Forks.count

    def place(self, taken: int) -> dict[str, Any]:
        """Return where the program is in its iterables, as JSON has it; ``taken``: batches since `begin`."""
        return self.loader.state_dict(batches=taken)

    def close(self) -> None:
        """End the workers and give the memory back."""
        self.loader.close()

    def __str__(self) -> str:
        """Say what it takes."""
        plan = self.loader.plan
        workers = "1 worker process" if plan.workers == 1 else f"{plan.workers} worker processes"
        return f"{workers}, {plan.slots} slots, {show_bytes(plan.total)} of shared memory"


def has_accelerator() -> bool:
    """Whether torch can pin memory."""
    accelerator = getattr(torch, "accelerator", torch.cuda)
    return bool(accelerator.is_available())


# ---- the settings of the Loader ----


def is_alone(loader: Any) -> bool:
    """Whether what the dataset gives is no part of a batch: ``batch_size=None``."""
    return loader.batch_sampler is None and loader.batch_size is None


def converts(loader: Any) -> bool:
    """Whether the user gave no collate_fn."""
    return loader.collate_fn in (default_collate, torch.utils.data.default_convert)


def _size_of(loader: Any) -> int:
    """Return the most samples that a batch has, as far as that is known."""
    size = loader.batch_size or getattr(loader.batch_sampler or loader.sampler, "batch_size", 1)
    return size if isinstance(size, int) else 1


def _slots(loader: Any) -> int:
    count: int = loader.prefetch_factor * loader.num_workers + 1  # one is in the program's hands
    return max(count, MIN_SLOTS)


def _settings(loader: Any) -> dict[str, Any]:
    method = start_method(loader)
    return {
        "workers": min(loader.num_workers, MAX_WORKERS),
        "slots": _slots(loader),
        "timeout_s": loader.timeout or None,
        "backend": {"forkserver": "process"}.get(method, method),
    }


def _of_iterable(loader: Any, start: WorkerStart) -> dict[str, Any]:
    """Return the settings for a copy of an IterableDataset in each worker, whose batches come in turn."""
    if loader.num_workers > MAX_WORKERS:
        message = f"num_workers={loader.num_workers} copies of an IterableDataset, and {MAX_WORKERS} is the most"
        raise UnfitError(message)
    kind = StatefulCopy if has_state(loader.dataset) else Copy
    return {
        "dataset": Interleave(kind(loader.dataset, number, start) for number in range(loader.num_workers)),
        "batch_size": loader.batch_size or 1,
        "drop_remainder": loader.drop_last,
        "reseed": True,
    }


def _of_samples(loader: Any, start: WorkerStart) -> Any:
    """Return what workers read of a map-style dataset, sample by sample."""
    columns = None if start.init_fn is not None else _columns(loader.dataset)
    return Samples(loader.dataset, start) if columns is None else columns


def goes_by_leaf(loader: Any) -> bool:
    """Whether batches may be written leaf by leaf: default_collate makes them of samples that are read one by one."""
    if loader.batch_sampler is None or loader.collate_fn is not default_collate or has_own_collation():
        return False
    return isinstance(loader.dataset, IterableDataset) or _is_plain(loader.dataset)


def _is_plain(dataset: Any) -> bool:
    """Whether it is a Subset of a dataset that gives one sample at a time."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not getattr(dataset, "__getitems__", None)


def _columns(dataset: Any) -> tuple[Any, ...] | None:
    """Return the columns of a TensorDataset, which need no worker's code."""
    if type(dataset) is not TensorDataset:
        return None
    try:
        columns = tuple(tensor.numpy() for tensor in dataset.tensors)
    except (TypeError, RuntimeError):
        return None
    return columns or None
