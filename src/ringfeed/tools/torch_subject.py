"""A DataLoader as `ringfeed profile` reads it: as it is, and with ringfeed's class in its place."""

from __future__ import annotations

import pickle
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, IterableDataset

from ringfeed.datasets.peekable import fresh
from ringfeed.errors import RingfeedError
from ringfeed.system.machine import usable_cpus
from ringfeed.tools.profile_report import Stages
from ringfeed.tools.reading import Candidate
from ringfeed.tools.subject import Subject, Timer
from ringfeed.torch.draws import draws_kept, generators
from ringfeed.torch.first_sample import told
from ringfeed.torch.loader import OWN, DataLoader
from ringfeed.torch.log import said_of
from ringfeed.torch.samples import WorkerStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LABEL, RING = "torch", "ringfeed"
CHANGE = "from ringfeed.torch import DataLoader   # in the place of torch.utils.data's"
BACK = "from torch.utils.data import DataLoader"
SAME = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    *("prefetch_factor", "persistent_workers", "in_order"),
)


class TorchSubject(Subject):
    """A DataLoader."""

    def __init__(self, loader: Any) -> None:
        """Take a DataLoader of torch's, or of a class derived from it; a copy of its dataset is read."""
        self.loader = loader = copy(loader)
        vars(loader)["dataset"] = fresh(loader.dataset)  # torch refuses to have it set
        sampler = loader.batch_sampler if loader.batch_size is None else None
        size = f"batch_size={loader.batch_size}" if sampler is None else f"batch_sampler={type(sampler).__name__}"
        self.name = f"DataLoader of {type(loader.dataset).__name__} ({size}, num_workers={loader.num_workers})"
        self.reader = "iterating the dataset" if _is_stream(loader) else "dataset[i]"

    def candidates(self) -> list[Candidate]:
        """Return the loader as it is and the other class; where there are no workers, both with one for each CPU."""
        loader = self.loader
        if not loader.num_workers:
            self._refuse_once()
            return self._with_workers(usable_cpus())
        if isinstance(loader, DataLoader):
            return [self._ring(RING, loader.num_workers, ""), self._torchs(LABEL, loader.num_workers, BACK)]
        return [self._own(LABEL), self._ring(RING, loader.num_workers, CHANGE)]

    def _with_workers(self, count: int) -> list[Candidate]:
        with_workers = f"num_workers={count}"
        return [
            self._own(f"{LABEL}, num_workers=0"),
            self._torchs(f"{LABEL}, {count}", count, with_workers),
            self._ring(f"{RING}, {count}", count, f"{CHANGE}, and {with_workers}"),
        ]

    def _refuse_once(self) -> None:
        """RingfeedError for an iterable whose elements would be missing in training, if they were read here."""
        if _is_stream(self.loader) and iter(self.loader.dataset) is iter(self.loader.dataset):
            message = (
                f"the {self.name} can be read only once: iter() of its dataset gives one and the same iterator, whose "
                f"elements would be missing in training; have __iter__ begin anew each time"
            )
            raise RingfeedError(message)

    def _own(self, label: str) -> Candidate:
        return _candidate(label, self.loader, OWN.__iter__, _end_workers, "")

    def _torchs(self, label: str, workers: int, change: str) -> Candidate:
        return _candidate(label, OWN(**settings_of(self.loader, workers)), OWN.__iter__, _end_workers, change)

    def _ring(self, label: str, workers: int, change: str) -> Candidate:
        return _candidate(label, DataLoader(**settings_of(self.loader, workers)), iter, _end_rings, change)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Keep torch's, NumPy's and Python's random numbers, and the generators."""
        states = [(generator, generator.get_state()) for generator in generators(self.loader).values()]
        with ExitStack() as stack:
            for generator, state in states:
                stack.callback(generator.set_state, state)
            stack.enter_context(draws_kept())
            yield

    # ---- step by step ----

    def stages(self) -> Iterator[Stages]:
        """Make batches as a worker does, one step after another."""
        loader, read, collate, send = self.loader, Timer(), Timer(), Timer()
        with ExitStack() as stack:
            if loader.num_workers:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)  # as in torch's workers
                stack.enter_context(told(loader, WorkerStart(loader.num_workers, 0, None), loader.dataset))
            for samples_of in self._samples():
                for timer in (read, collate, send):
                    timer.wall_s = timer.cpu_s = 0.0
                try:
                    samples = read(samples_of)
                except StopIteration:
                    return
                batch = collate(partial(loader.collate_fn, samples))
                if loader.num_workers:
                    send(_sender(batch))
                yield Stages(1, read.wall_s, read.cpu_s, collate.wall_s, send.wall_s)

    def _samples(self) -> Iterator[Callable[[], Any]]:
        """Yield what reads the samples of each batch."""
        loader, dataset = self.loader, self.loader.dataset
        if _is_stream(loader):
            self._refuse_once()
            yield from repeat(partial(_next_of, iter(dataset), loader.batch_size))
        get = dataset.__getitem__ if loader.batch_sampler is None else getattr(dataset, "__getitems__", None)
        for chosen in loader._index_sampler:  # noqa: SLF001 - a subclass of it is this package's
            yield partial(_each_of, dataset, chosen) if get is None else partial(get, chosen)


def _next_of(elements: Iterator[Any], size: int | None) -> Any:
    first = next(elements)
    return first if size is None else [first, *islice(elements, size - 1)]


def _each_of(dataset: Any, chosen: Iterable[Any]) -> list[Any]:
    return [dataset[index] for index in chosen]


def _candidate(
    label: str, loader: Any, begin: Callable[[Any], Iterator[Any]], end: Callable[[Any], object], change: str
) -> Candidate:
    begun: list[Iterator[Any]] = []

    def start() -> Iterator[Any]:
        begun[:] = [begin(loader)]
        return begun[0]

    def stop() -> None:
        for iterator in begun:
            _shutdown(iterator)
        begun.clear()
        end(loader)

    return Candidate(
        label,
        start,
        stop,
        notes=partial(_notes, loader),
        fell_back=lambda: getattr(loader, "_own_reason", None) is not None,
        lead=max(loader.num_workers, 1),
        rows=loader.batch_size,
        most=_length(loader),
        change=change,
    )


def settings_of(loader: Any, workers: int) -> dict[str, Any]:
    """Return the parameters with which a DataLoader like this one is made, but with so many workers."""
    found = {name: getattr(loader, name) for name in SAME if hasattr(loader, name)}
    found |= {"dataset": loader.dataset, "num_workers": workers}
    if workers and not loader.num_workers:
        found |= {"prefetch_factor": None, "persistent_workers": False}
    if _is_stream(loader):
        return found | {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return found | {"batch_size": None, "sampler": loader.sampler}
    if type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None:
        return found | {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
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


def _shutdown(iterator: Any) -> None:
    """End the workers of one of torch's iterators, which else end when it is collected as garbage."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()  # noqa: SLF001 - torch has no other way


def _end_workers(loader: Any) -> None:
    """Forget the iterator that a loader of torch's keeps with ``persistent_workers``."""
    loader._iterator = None  # noqa: SLF001 - torch has no other way


def _end_rings(loader: Any) -> None:
    """End the workers that a loader of ringfeed's keeps for its next epoch."""
    for ring in loader.__dict__.pop("_rings", ()):
        ring.close()
    _end_workers(loader)


def _notes(loader: Any) -> list[str]:
    """Return what ringfeed's class has said of itself: how batches go, or why torch makes them."""
    notes = sorted(said_of(loader))
    if any("is left to torch" in note for note in notes):
        notes.append('these are torch\'s own batches: docs/torch.md, "What is left to torch", names the ways out')
    return notes


def _sender(batch: Any) -> Callable[[], object]:
    """Return what does with a batch as a worker of torch's: its tensors into shared memory, a pickle of the rest."""
    leaves = tree_leaves(batch)
    tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"]
    others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]

    def send() -> object:
        for tensor in tensors:
            tensor.share_memory_()
        return pickle.loads(pickle.dumps(others))  # noqa: S301 - of this process

    return send
