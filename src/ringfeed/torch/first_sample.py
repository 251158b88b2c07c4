"""What is known of a dataset ahead of the workers: its first sample, read here as worker 0 would, without a trace."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch.utils.data._utils import worker

from ringfeed.introspection.torch_info import swapped
from ringfeed.torch.draws import draws_kept
from ringfeed.torch.index_lists import UnfitError
from ringfeed.transport.opened import as_before, shared_by_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.torch.samples import WorkerStart


def with_first(loader: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any]) -> Any:
    """Return what ``use`` makes of the first sample: of an IterableDataset where ``first`` is None, else of that list.

    What the user's code changes in the dataset, and draws, is undone: torch would read nothing in this process.
    """
    if first is None:
        return _with_element(loader, start, use)
    dataset = loader.dataset
    _refuse_waiting(loader)
    with draws_kept(), as_before(dataset, always=True), told(loader, start, dataset):
        return use(_sample(loader, first))


def _refuse_waiting(loader: Any) -> None:
    """UnfitError for a dataset that may wait for other workers: nothing is read of it here."""
    context = loader.multiprocessing_context
    where = None if context is not None and context.get_start_method() == "fork" else shared_by_fork(loader.dataset)
    if where is not None:
        message = f"{where} is of multiprocessing's, which only a fork of this process shares"
        raise UnfitError(message)


def _sample(loader: Any, first: Any) -> Any:
    dataset, getitems = loader.dataset, getattr(loader.dataset, "__getitems__", None)
    if loader.batch_sampler is None:
        return dataset[first[:1] if isinstance(first, list) else first]
    index = next(iter(first))
    return getitems([index])[0] if getitems else dataset[index]


def _with_element(loader: Any, start: WorkerStart, use: Callable[[Any], Any]) -> Any:
    """Read the first element, as worker 0 has it, of a copy that is dropped.

    UnfitError where it cannot be copied, as a generator cannot: then the element would be lost.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = cloudpickle.dumps(loader.dataset, 5, buffer_callback=buffers.append)
        copied = pickle.loads(pickled, buffers=buffers)  # noqa: S301 - of this process
    except Exception as error:
        message = f"its IterableDataset cannot be copied to another process: {error}"
        raise UnfitError(message) from error
    with draws_kept(), told(loader, start, copied):
        for element in copied:
            return use(element)
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
