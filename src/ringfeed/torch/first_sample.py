"""What is known of a dataset ahead of the workers: its first sample, read where nothing of it stays.

    workers are forked      in a forked process of its own, which ends with it
    else                    here, of a copy: the dataset as workers are sent it

torch reads no sample ahead, so what takes elements of something that processes share is not read: see `_refuse_shared`.
"""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import pickle
import select
import stat
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle
import numpy as np
import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils import worker

from ringfeed.errors import SpecError
from ringfeed.introspection.torch_info import swapped
from ringfeed.system._system import Descriptor
from ringfeed.system.guard import Lifeline, become_worker, fork
from ringfeed.torch.draws import draws_kept
from ringfeed.torch.index_lists import NOTHING, UnfitError
from ringfeed.torch.pickled import parts_of, read, size_of, write
from ringfeed.transport.opened import refuse_to_share
from ringfeed.transport.references import walk, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.torch.samples import WorkerStart

LIMIT_S = 60.0  # for a first sample: where it takes longer, or waits for something, torch makes the batches


def with_first(loader: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any], *, forked: bool) -> Any:
    """Return what ``use`` makes of the first sample: of that list, or of an IterableDataset for `NOTHING`.

    SpecError where it cannot be read without a trace, or raises something; UnfitError where nothing can be read.
    """
    dataset = loader.dataset
    if type(dataset) is TensorDataset:
        return use(_sample(loader, dataset, first))
    _refuse_shared(dataset)
    if forked:
        refuse_to_share(dataset)
        return _Reading(dataset, partial(_read, loader, first, start, use)).result()
    return _read(loader, first, start, use, _copied(dataset))


def _read(loader: Any, first: Any, start: WorkerStart, use: Callable[[Any], Any], dataset: Any = None) -> Any:
    """Read the sample of the dataset, as worker 0 would; ``dataset``: a copy of it."""
    dataset = loader.dataset if dataset is None else dataset
    with draws_kept(), told(loader, start, dataset):
        if first is not NOTHING:
            return use(_sample(loader, dataset, first))
        for element in dataset:
            return use(element)
    message = "its IterableDataset is empty in worker 0"
    raise UnfitError(message)


def _sample(loader: Any, dataset: Any, first: Any) -> Any:
    if loader.batch_sampler is None:
        return dataset[first]
    getitems = getattr(dataset, "__getitems__", None)
    index = next(iter(first))
    return getitems([index])[0] if getitems else dataset[index]


def _refuse_shared(dataset: Any) -> None:
    """SpecError for a dataset with what processes share: to read may wait for others, or take what is theirs."""
    for steps, held in walk(dataset):
        if type(held).__module__.startswith(("multiprocessing.", "torch.multiprocessing.")):
            message = f"dataset{written(steps)} is of multiprocessing's, and a read ahead could change it for all"
            raise SpecError(message)


def _copied(dataset: Any) -> Any:
    """Return a copy, with nothing of the dataset's memory; UnfitError where there can be none."""
    try:
        return pickle.loads(cloudpickle.dumps(dataset, 5))  # noqa: S301 - of this process
    except Exception as error:
        message = f"its dataset cannot be copied to another process: {error}"
        raise UnfitError(message) from error


class _Reading:
    """A read in a forked process: what it changes in memory, and draws, ends with that."""

    def __init__(self, dataset: Any, make: Callable[[], Any]) -> None:
        """Fork it; what it shares of the dataset's tensors becomes its own."""
        self._dataset = dataset
        self._memory = Descriptor(os.memfd_create, "ringfeed-first-sample", os.MFD_CLOEXEC)
        self._lifeline = Lifeline()
        self._child = fork(partial(self._run, make))

    def _run(self, make: Callable[[], Any]) -> NoReturn:
        try:
            self._lifeline.close_others(self._memory)
            become_worker(*self._lifeline.fds)
            _let_go_of_files({self._memory.fileno(), *self._lifeline.fds})
            torch.set_num_threads(1)  # the others are not here
            for _, held in walk(self._dataset):
                if type(held) is torch.Tensor and held.is_shared():
                    held.set_(held.clone())
            self._tell(make)
        finally:
            os._exit(0)

    def _tell(self, make: Callable[[], Any]) -> None:
        try:
            parts = parts_of((True, make()))
        except BaseException as error:  # noqa: BLE001 - told
            text = str(error).partition("\n")[0] or type(error).__name__
            parts = parts_of((False, text))
        os.ftruncate(self._memory.fileno(), size_of(parts))
        write(parts, np.frombuffer(mmap.mmap(self._memory.fileno(), 0), np.uint8))

    def result(self) -> Any:
        """Wait for it; SpecError where it has failed, UnfitError where it has crashed or takes too long."""
        poller, deadline = select.poll(), time.monotonic() + LIMIT_S
        poller.register(self._child.pidfd.fileno(), select.POLLIN)
        while not poller.poll(100):  # by pieces, for Ctrl-C
            if time.monotonic() > deadline:
                message = f"its first sample takes more than {LIMIT_S:g} s"
                raise UnfitError(message)
        if not os.fstat(self._memory.fileno()).st_size:
            message = "the process that reads its first sample has crashed"
            raise UnfitError(message)
        is_there, found = read(torch.frombuffer(mmap.mmap(self._memory.fileno(), 0), dtype=torch.uint8))
        if not is_there:
            raise SpecError(found)
        return found


def _let_go_of_files(kept: set[int]) -> None:
    """Share no place of a file with this process's parent, and nothing that can be written, or read but once."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in {0, 1, 2, *map(int, os.listdir("/proc/self/fd"))} - {null, *kept}:  # noqa: PTH208 - names are enough
        with suppress(OSError):  # it was that of the listing
            own, kind, access = null, os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            if stat.S_ISREG(kind) and access != os.O_WRONLY:
                own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
                os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            elif not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or fd < 3):  # noqa: PLR2004
                continue
            os.dup2(own, fd, inheritable=False)
            if own != null:
                os.close(own)


def start_method(loader: Any) -> str:
    """Return how workers start: as those of torch's do, by default in the way that multiprocessing starts its own."""
    if loader.multiprocessing_context is not None:
        return str(loader.multiprocessing_context.get_start_method())
    # Not to be fixed here: the program may still set it.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


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
