"""What is known of a dataset ahead of the workers: its first sample, read as worker 0 would."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, TensorDataset
from torch.utils.data._utils import worker

from ringfeed.errors import ShipError
from ringfeed.forkserver.asked import answer_of
from ringfeed.introspection.torch_info import swapped
from ringfeed.torch.draws import draws_kept
from ringfeed.torch.index_lists import UnfitError
from ringfeed.transport.copied import of_copy
from ringfeed.transport.opened import shared_by_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.torch.samples import WorkerStart


def with_first(loader: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any] = lambda sample: sample) -> Any:
    """Return what ``use`` makes of the first sample: of an IterableDataset where ``first`` is None, else of that list.

    It is read in a forked process where workers are forked, and else of a copy: the dataset is not
    touched here. In a TensorDataset there is nothing to touch.
    """
    dataset = loader.dataset
    read = partial(_read, loader, first=first, start=start, use=use)
    _refuse_shared(loader)
    if type(dataset) is TensorDataset:
        with draws_kept():
            return read(dataset)
    if start_method(loader) == "fork":
        return answer_of(partial(read, dataset), loader.timeout or None)
    try:
        with draws_kept():
            return of_copy(dataset, read)
    except ShipError as error:
        if not isinstance(dataset, IterableDataset):
            raise
        message = f"its IterableDataset cannot be copied to another process: {error}"
        raise UnfitError(message) from error


def start_method(loader: Any) -> str:
    """Return how workers start: as those of torch's do, by default in the way that multiprocessing starts its own."""
    if loader.multiprocessing_context is not None:
        return str(loader.multiprocessing_context.get_start_method())
    # Not to be fixed here: the program may still set it.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _refuse_shared(loader: Any) -> None:
    """UnfitError for a dataset of which no sample may be read ahead: it may wait for other workers, or count them."""
    context = loader.multiprocessing_context
    where = None if context is not None and context.get_start_method() == "fork" else shared_by_fork(loader.dataset)
    if where is not None:
        message = f"{where} is of multiprocessing's, which only a fork of this process shares"
        raise UnfitError(message)


def _read(loader: Any, dataset: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any]) -> Any:
    with told(loader, start, dataset):
        return use(_element(dataset) if first is None else _sample(loader, dataset, first))


def _sample(loader: Any, dataset: Any, first: Any) -> Any:
    getitems = getattr(dataset, "__getitems__", None)
    if loader.batch_sampler is None:
        return dataset[first[:1] if isinstance(first, list) else first]
    index = next(iter(first))
    return getitems([index])[0] if getitems else dataset[index]


def _element(dataset: Any) -> Any:
    for element in dataset:
        return element
    message = "its IterableDataset is empty in worker 0"
    raise UnfitError(message)


@contextmanager
def told(loader: Any, start: WorkerStart, dataset: Any) -> Iterator[None]:
    """Have torch say here that this is worker 0, and its generator begin with the seed of that one."""
    before = torch.utils.data.get_worker_info()
    info = worker.WorkerInfo(id=0, num_workers=loader.num_workers, seed=start.base_seed, dataset=dataset)
    torch.default_generator.manual_seed(start.base_seed)
    try:
        swapped(worker, info)
        yield
    finally:
        swapped(worker, before)
