"""A DataLoader as `ringfeed profile` reads it: as it is, and with ringfeed's class in its place."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _DatasetKind

from ringfeed.datasets.peekable import fresh
from ringfeed.errors import RingfeedError
from ringfeed.system.machine import usable_cpus
from ringfeed.tools.loaders import Stages
from ringfeed.tools.profile import Timer
from ringfeed.tools.reading import Reading
from ringfeed.torch.epoch import OWN, same_of
from ringfeed.torch.first_sample import told
from ringfeed.torch.loader import DataLoader
from ringfeed.torch.pickled import parts_of
from ringfeed.torch.place import generators
from ringfeed.torch.samples import WorkerStart
from ringfeed.transport.copied import random_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

CHANGE = "from ringfeed.torch import DataLoader   # in the place of torch.utils.data's"
BACK = "from torch.utils.data import DataLoader"
WAYS_OUT = (
    'these are torch\'s own batches: docs/torch.md, "What is left to torch", names the ways out'
)


class TorchSubject:
    """A DataLoader, as `loaders` reads it."""

    def __init__(self, loader: Any) -> None:
        """Take a DataLoader of torch's or of a derived class; a copy of its dataset is read."""
        self.loader = loader = copy(loader)
        vars(loader)["dataset"] = fresh(loader.dataset)  # torch refuses to have it set
        sampler = loader.batch_sampler if loader.batch_size is None else None
        size = (
            f"batch_size={loader.batch_size}"
            if sampler is None
            else f"batch_sampler={type(sampler).__name__}"
        )
        self.name = (
            f"DataLoader of {type(loader.dataset).__name__} ({size}, "
            f"num_workers={loader.num_workers})"
        )
        self.reader = "iterating the dataset" if _is_stream(loader) else "dataset[i]"

    def readings(self) -> list[Reading]:
        """Return the loader as it is, and the other class.

        Where there are no workers, both are read with a worker for each CPU, too.
        """
        loader, workers = self.loader, self.loader.num_workers
        if not workers:
            self._refuse_once()
            count = usable_cpus()
            more = f"num_workers={count}"
            return [
                _reading(loader, OWN, 0, "torch, num_workers=0"),
                _reading(loader, OWN, count, f"torch, {count}", more),
                _reading(loader, DataLoader, count, f"ringfeed, {count}", f"{CHANGE}, and {more}"),
            ]
        own = _reading(loader, OWN, workers, "torch")
        if isinstance(loader, DataLoader):
            own.change = BACK
            return [_reading(loader, DataLoader, workers, "ringfeed"), own]
        return [own, _reading(loader, DataLoader, workers, "ringfeed", CHANGE)]

    def _refuse_once(self) -> None:
        """Raise RingfeedError for an iterable whose elements training would lack afterwards."""
        if _is_stream(self.loader) and iter(self.loader.dataset) is iter(self.loader.dataset):
            raise RingfeedError(
                f"the {self.name} can be read only once: iter() of its dataset gives one and the "
                "same iterator, whose elements would be missing in training; have __iter__ begin "
                "anew each time"
            )

    def untouched(self) -> AbstractContextManager[None]:
        """Keep torch's, NumPy's and Python's random numbers, and the generators."""
        return random_kept(*generators(self.loader).values())

    def stages(self) -> Iterator[Stages]:
        """Make batches as a worker does, one step after another."""
        self._refuse_once()
        loader = self.loader
        # A worker of torch's is given these.
        kind, is_listed = loader._dataset_kind, loader._auto_collation  # noqa: SLF001
        fetcher = _DatasetKind.create_fetcher(
            kind, loader.dataset, is_listed, lambda samples: samples, loader.drop_last
        )
        with ExitStack() as stack:
            if loader.num_workers:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)  # as in torch's workers
                stack.enter_context(
                    told(loader, WorkerStart(loader.num_workers, 0, None), loader.dataset)
                )
            for indices in loader._index_sampler:  # noqa: SLF001
                read, collate, send = Timer(), Timer(), Timer()
                try:
                    samples = read(fetcher.fetch, indices)
                except StopIteration:  # of an iterable
                    return
                batch = collate(loader.collate_fn, samples)
                if loader.num_workers:
                    send(_send, batch)
                yield Stages(
                    1, read.wall_s, read.cpu_s + read.queued_s, collate.wall_s, send.wall_s
                )


def _reading(loader: Any, cls: type, workers: int, label: str, change: str = "") -> Reading:
    """Return the reading of a class with the settings of a loader, but with so many workers."""
    opened = partial(_opened, partial(cls, **settings_of(loader, workers)))
    known = {"rows": loader.batch_size, "most": _length(loader), "opened": opened}
    return Reading(label, change=change, lead=max(workers, 1), **known)


@contextmanager
def _opened(make: Callable[[], Any], reading: Reading) -> Iterator[Iterator[Any]]:
    """Read an epoch; note how ringfeed's class makes batches, or why torch does."""
    loader = make()
    rings = loader._rings if isinstance(loader, DataLoader) else None  # noqa: SLF001 - ours
    iterator: Any = None
    try:
        yield (iterator := iter(loader))
        if rings is not None:
            reading.notes, reading.fell_back = (*sorted(rings.said),), rings.own_reason is not None
            reading.notes += (WAYS_OUT,) * reading.fell_back
    finally:  # workers would else end when they are collected as garbage
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()  # noqa: SLF001 - torch has no other way
        if rings is not None:
            rings.close()


def settings_of(loader: Any, workers: int) -> dict[str, Any]:
    """Return the parameters of a DataLoader like this one, but with so many workers."""
    found = same_of(loader) | {"dataset": loader.dataset, "num_workers": workers}
    if workers and not loader.num_workers:
        found |= {"prefetch_factor": None, "persistent_workers": False}
    if _is_stream(loader):
        return found | {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return found | {"batch_size": None, "sampler": loader.sampler}
    return found | {"batch_sampler": loader.batch_sampler}


def _is_stream(loader: Any) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _length(loader: Any) -> int | None:
    """Return the samples of an epoch, where they and the size of a batch are known."""
    if _is_stream(loader) or loader.batch_size is None:
        return None
    try:
        return len(loader.sampler)
    except TypeError:
        return None


def _send(batch: Any) -> None:
    """Put a batch's tensors into shared memory and pickle the rest, as a worker of torch's does."""
    for part in parts_of(batch):
        torch.from_numpy(part).share_memory_()
