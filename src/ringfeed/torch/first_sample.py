"""Reads a dataset's first sample ahead of the workers, where nothing of the reading stays.

    workers are forked      in a forked process of its own, which ends with it
    else                    here, of a copy: the dataset as workers are sent it

torch reads no sample ahead, so what takes elements of something that processes share is not read:
see `_refuse_shared`.
"""

from __future__ import annotations

import multiprocessing
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils import worker

from ringfeed.datasets.torch_info import swapped
from ringfeed.errors import ShipError, SpecError, StallError, WorkerError
from ringfeed.torch.index_lists import NOTHING
from ringfeed.transport.copied import of_copy, random_kept
from ringfeed.transport.references import walk, written
from ringfeed.transport.unpicklable import refuse_to_share
from ringfeed.workers.first_sample_fork import answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.torch.samples import WorkerStart

# Torch makes the batches where a first sample takes longer, or waits for something.
LIMIT_S = 60.0


def with_first(loader: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any]) -> Any:
    """Return what ``use`` makes of the first sample of a list; `NOTHING`: of an IterableDataset.

    SpecError where it cannot be read without a trace, or raises something; ShipError where nothing
    can be read.
    """
    dataset = loader.dataset
    if type(dataset) is TensorDataset:
        return _read(loader, dataset, first, start, use)
    _refuse_shared(dataset)
    if start_method(loader) != "fork":
        return of_copy(dataset, lambda copy: _read(loader, copy, first, start, use))
    refuse_to_share(dataset)
    try:
        return answer_of(partial(_read_apart, loader, first, start, use), LIMIT_S, apart=True)
    except StallError as error:
        raise ShipError(f"its first sample takes more than {LIMIT_S:g} s") from error
    except WorkerError as error:
        raise ShipError("the process that reads its first sample has crashed") from error


def _read(
    loader: Any, dataset: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any]
) -> Any:
    """Read the sample of the loader's dataset, or of a copy, as worker 0 would."""
    with random_kept(torch.default_generator), told(loader, start, dataset):
        if first is NOTHING:
            for element in dataset:
                return use(element)
            raise ShipError("its IterableDataset is empty in worker 0")
        if loader.batch_sampler is None:
            return use(dataset[first])
        getitems = getattr(dataset, "__getitems__", None)
        index = next(iter(first))
        return use(getitems([index])[0] if getitems else dataset[index])


def _read_apart(loader: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any]) -> Any:
    """Read it in a forked process, in silence; SpecError for whatever it raises.

    What the dataset shares of its tensors becomes that process's own.
    """
    warnings.simplefilter("ignore")
    try:
        for _, held, _ in walk(loader.dataset):
            if type(held) is torch.Tensor and held.is_shared():
                held.set_(held.clone())
        return _read(loader, loader.dataset, first, start, use)
    except BaseException as error:  # noqa: BLE001 - it is told
        raise SpecError(first_line(error)) from None


def first_line(why: BaseException) -> str:
    """Return the first line of what an error says."""
    return str(why).partition("\n")[0] or type(why).__name__


def _refuse_shared(dataset: Any) -> None:
    """Raise SpecError for a dataset that holds an object of multiprocessing's.

    Reading ahead could wait for other processes, or take what is theirs.
    """
    for steps, held, _ in walk(dataset):
        if type(held).__module__.startswith(("multiprocessing.", "torch.multiprocessing.")):
            raise SpecError(
                f"dataset{written(steps)} is of multiprocessing's, and a read ahead could change "
                "it for all"
            )


def start_method(loader: Any) -> Any:
    """Return the start method of torch's workers: the context's, else multiprocessing's default."""
    if loader.multiprocessing_context is not None:
        return str(loader.multiprocessing_context.get_start_method())
    # Not to be fixed here: the program may still set it.
    return (
        multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0]
    )


@contextmanager
def told(loader: Any, start: WorkerStart, dataset: Any) -> Iterator[None]:
    """Make torch take this process for worker 0, with that worker's seed in its generator."""
    before = torch.utils.data.get_worker_info()
    info = worker.WorkerInfo(
        id=0, num_workers=loader.num_workers, seed=start.base_seed, dataset=dataset
    )
    torch.default_generator.manual_seed(start.base_seed)
    try:
        swapped(worker, info)
        yield
    finally:
        swapped(worker, before)
