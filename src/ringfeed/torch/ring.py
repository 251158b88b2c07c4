"""The ring under a DataLoader: a Loader whose order the DataLoader's own samplers give, epoch after epoch.

One iterator at a time has it. It stays for the next epoch, with its workers; the workers are sent what the program
changes in the dataset between two epochs, unless ``persistent_workers`` says that they keep theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset, TensorDataset

from ringfeed._units import show_bytes
from ringfeed.engine.options import MOST
from ringfeed.loader import Loader, stream_of
from ringfeed.ring._ring import MAX_WORKERS
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.torch.collation import BatchTensors, Form
from ringfeed.torch.draws import draws_kept
from ringfeed.torch.samples import BulkSamples, Samples, WorkerStart
from ringfeed.transport.opened import as_before

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.frameworks.base import BatchIterator
    from ringfeed.torch.lists import IndexLists


class _Order:
    """The samplers' lists, as the loader reads them: those of the epoch that begins."""

    now: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.now


class Ring:
    """A Loader for the batches of a DataLoader."""

    def __init__(self, loader: Any, first: Any, base_seed: int) -> None:
        """Look at a sample of the first list, and plan the slots; raises what the ring cannot do, in any error."""
        self._order = _Order()
        index = first[0] if loader.batch_sampler is not None else first
        form = Form.of(_sample(loader.dataset, index))
        dataset, reseeds = _readable(loader, base_seed)
        self.loader = Loader(
            dataset,
            batch_sampler=self._order,
            max_batch_size=max(len(first), _size_of(loader)),
            spec=form.tree,
            reseed=reseeds,
            slots=max(loader.prefetch_factor * loader.num_workers + 1, MIN_SLOTS),  # one is in the program's hands
            **_settings(loader),
        )
        self._stream = stream_of(self.loader)
        if not loader.persistent_workers:
            self._stream.runner.source.changes = True
        self._build = BatchTensors(self._stream.info, form, pinned=loader.pin_memory and has_accelerator())

    def begin(self, lists: IndexLists, epoch: int) -> BatchIterator:
        """Begin an epoch, whose number the samples' random numbers depend on."""
        self._order.now = lists
        self.loader.set_epoch(epoch % MOST)
        return self._stream.begin(lambda: self._stream.epoch(self._build))  # type: ignore[return-value]

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


def _sample(dataset: Any, index: Any) -> Any:
    """Read a sample here, and leave no trace of it."""
    with draws_kept(), as_before(dataset):
        getitems = getattr(dataset, "__getitems__", None)
        return getitems([index])[0] if getitems else dataset[index]


def _size_of(loader: Any) -> int:
    """Return the most samples that a batch has, as far as that is known."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", 1)
    return size if isinstance(size, int) else 1


def _settings(loader: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "workers": min(loader.num_workers, MAX_WORKERS),
        "timeout_s": loader.timeout or None,
        "start_method": "forkserver",
    }
    if loader.multiprocessing_context is not None:
        settings["start_method"] = loader.multiprocessing_context.get_start_method()
    return settings


def _readable(loader: Any, base_seed: int) -> tuple[Any, bool]:
    """Return what workers read, and whether they draw random numbers there."""
    dataset, init_fn = loader.dataset, loader.worker_init_fn
    if init_fn is None and (columns := _columns(dataset)) is not None:
        return columns, False
    start = WorkerStart(loader.num_workers, base_seed, init_fn)
    if getattr(dataset, "__getitems__", None) and not _is_plain(dataset):
        return BulkSamples(dataset, start), False
    return Samples(dataset, start), True


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
