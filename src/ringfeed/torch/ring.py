"""The ring under a DataLoader: a Loader whose order the DataLoader's own samplers give, epoch after epoch.

One iterator at a time has it. It stays for the next epoch, with its workers; the workers are sent what the program
changes in the dataset between two epochs, unless ``persistent_workers`` says that they keep theirs.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch.utils.data import Subset, TensorDataset
from torch.utils.data._utils import worker

from ringfeed._units import show_bytes
from ringfeed.data.streams import Interleave
from ringfeed.loader import Loader, stream_of
from ringfeed.ring._ring import MAX_WORKERS
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.torch.collation import BatchTensors, Form
from ringfeed.torch.draws import draws_kept
from ringfeed.torch.lists import IndexLists, UnfitError
from ringfeed.torch.samples import BulkSamples, Copy, Samples, WorkerStart
from ringfeed.transport.opened import as_before

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.frameworks.base import BatchIterator
    from ringfeed.torch.lists import Start

EPOCHS = 2**63 - 1  # numbers of epochs that a loader takes


class _Order:
    """The samplers' lists, as the loader reads them: those of the epoch that begins."""

    now: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.now


class Ring:
    """A Loader for the batches of a DataLoader."""

    def __init__(self, loader: Any, first: Any, base_seed: int) -> None:
        """Look at a sample of the first list, and plan the slots; raises what the ring cannot do, in any error.

        ``first`` is None for an IterableDataset.
        """
        self._order = _Order()
        read = WorkerStart(loader.num_workers, base_seed, loader.worker_init_fn)
        if first is None:
            form = Form.of(first_element(loader, read))
            settings = _of_iterable(loader, read)
        else:
            index = first[0] if loader.batch_sampler is not None else first
            form = Form.of(_sample(loader, index, read))
            lists = {"batch_sampler": self._order, "max_batch_size": max(len(first), _size_of(loader))}
            settings = _of_samples(loader, read) | lists
        self.loader = Loader(spec=form.tree, **settings, **_settings(loader))
        self._stream = stream_of(self.loader)
        if not loader.persistent_workers:
            self._stream.source.changes = True
        self._build = BatchTensors(self._stream.info, form, pinned=loader.pin_memory and has_accelerator())

    def begin(self, begun: IndexLists | Start | None, epoch: int) -> BatchIterator:
        """Begin an epoch, whose number the samples' random numbers depend on."""
        self._order.now = begun if isinstance(begun, IndexLists) else iter(())
        self.loader.set_epoch(epoch % EPOCHS)
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


def _sample(loader: Any, index: Any, start: WorkerStart) -> Any:
    """Read a sample here, as worker 0 would, and leave no trace of it."""
    dataset = loader.dataset
    with draws_kept(), as_before(dataset), worker_told(loader.num_workers, start.base_seed, dataset):
        getitems = getattr(dataset, "__getitems__", None)
        return getitems([index])[0] if getitems else dataset[index]


def first_element(loader: Any, start: WorkerStart) -> Any:
    """Read the first element of an IterableDataset, as worker 0 has it, of a copy that is dropped.

    UnfitError where it cannot be copied, as a generator cannot: then the element would be lost.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = cloudpickle.dumps(loader.dataset, 5, buffer_callback=buffers.append)
        copied = pickle.loads(pickled, buffers=buffers)  # noqa: S301 - of this process
    except Exception as error:
        message = f"its IterableDataset cannot be copied to another process: {error}"
        raise UnfitError(message) from error
    with draws_kept(), worker_told(loader.num_workers, start.base_seed, copied):
        for element in copied:
            return element
    message = "its IterableDataset is empty in worker 0"
    raise UnfitError(message)


@contextmanager
def worker_told(workers: int, seed: int, dataset: Any) -> Iterator[None]:
    """Have torch's ``get_worker_info()`` say here that this is worker 0."""
    before = worker._worker_info  # noqa: SLF001 - there is no other way
    worker._worker_info = worker.WorkerInfo(id=0, num_workers=workers, seed=seed, dataset=dataset)  # noqa: SLF001
    try:
        yield
    finally:
        worker._worker_info = before  # noqa: SLF001


def _size_of(loader: Any) -> int:
    """Return the most samples that a batch has, as far as that is known."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", 1)
    return size if isinstance(size, int) else 1


def _settings(loader: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "workers": min(loader.num_workers, MAX_WORKERS),
        "slots": max(loader.prefetch_factor * loader.num_workers + 1, MIN_SLOTS),  # one is in the program's hands
        "timeout_s": loader.timeout or None,
        "start_method": "forkserver",
    }
    if loader.multiprocessing_context is not None:
        settings["start_method"] = loader.multiprocessing_context.get_start_method()
    return settings


def _of_iterable(loader: Any, start: WorkerStart) -> dict[str, Any]:
    """Return the settings for a copy of an IterableDataset in each worker, whose batches come in turn."""
    if loader.num_workers > MAX_WORKERS:
        message = f"num_workers={loader.num_workers} copies of an IterableDataset, and {MAX_WORKERS} is the most"
        raise ValueError(message)
    copies = Interleave(Copy(loader.dataset, number, start) for number in range(loader.num_workers))
    return {
        "dataset": copies,
        "batch_size": loader.batch_size,
        "drop_remainder": loader.drop_last,
        "reseed": True,
    }


def _of_samples(loader: Any, start: WorkerStart) -> dict[str, Any]:
    """Return what workers read of a map-style dataset."""
    dataset = loader.dataset
    if start.init_fn is None and (columns := _columns(dataset)) is not None:
        return {"dataset": columns}
    if getattr(dataset, "__getitems__", None) and not _is_plain(dataset):
        return {"dataset": BulkSamples(dataset, start)}
    return {"dataset": Samples(dataset, start)}


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
