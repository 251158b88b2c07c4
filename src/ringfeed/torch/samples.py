"""A dataset of torch's as workers have it: each worker tells torch which one it is before its first sample.

    Samples    map-style, by index
    Copy       an IterableDataset: each worker reads one of its own

Imports no torch: a worker whose dataset does without has none.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed._classes import class_names
from ringfeed.datasets.worker_info import tell_torch, worker_info
from ringfeed.orders.rng import installed, reseed, seed_torch
from ringfeed.torch._watched import WatchedSamples
from ringfeed.torch.draw_watch import absent, forget, has_drawn, is_settled, quick_watch, renew, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class WorkerStart(NamedTuple):
    """What a worker does before its first sample of a dataset."""

    workers: int
    base_seed: int
    init_fn: Callable[[int], object] | None

    def begin(self, dataset: Any) -> None:
        """Have torch's ``get_worker_info()`` say which worker this is, and call the user's function."""
        here = worker_info()
        if here is not None:
            self.begin_as(here.id, dataset)

    def begin_as(self, number: int, dataset: Any) -> None:
        """The same, as the worker of this number."""
        seed = self.base_seed + number
        tell_torch(number, self.workers, seed, dataset, as_torch=True)
        if self.init_fn is not None:
            import torch  # noqa: PLC0415 - such functions ask torch for the seed

            random.seed(seed)
            torch.manual_seed(seed)
            _seed_numpy(self.base_seed, number)
            self.init_fn(number)
            seed_torch(torch.initial_seed())  # the function may have seeded torch


def _seed_numpy(base_seed: int, number: int) -> None:
    from torch.utils.data._utils import worker  # noqa: PLC0415 - as above

    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(worker._generate_state(base_seed, number))  # noqa: SLF001 - torch's own seed


class Samples(WatchedSamples):
    """The dataset of a DataLoader, sample by sample.

    A sample that draws from a global generator is read with that one seeded for it, so that it does not depend on the
    worker: the first of each epoch is, and where it draws, so are all that follow. Where it does not, and a later one
    draws, that one is read again, seeded.
    """

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(self, dataset: Any, start: WorkerStart) -> None:
        self.dataset = dataset
        self.start = start
        self.draws = False
        self._epoch: int | None = None  # that this worker was told of

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__}  # and nothing of what is watched

    def begin(self) -> None:
        """Tell torch which worker this is, ahead of the first sample of an epoch."""
        context = installed.context
        if context is None or context.epoch == self._epoch:
            return
        is_first, self._epoch = self._epoch is None, context.epoch
        if is_first:
            self.start.begin(self.dataset)
        forget()

    def read(self, index: int) -> Any:
        """Return a sample, seeded; where it does not draw, those after it may be read at once."""
        self.begin()
        context = installed.context
        if context is None:
            return self.dataset[index]
        if self.draws:
            reseed(context)
            return self.dataset[index]
        if not is_settled():
            settle()
        before = absent()
        reseed(context)
        renew()
        sample = self.dataset[index]
        if has_drawn():
            forget()
            self.draws = absent() == before  # else what it imported may have been all that it seemed to draw
        else:
            self._watch()
        return sample

    def _watch(self) -> None:
        watch, context = quick_watch(), installed.context
        if watch is not None and context is not None:
            self.watch_over(self.dataset, watch, context)

    @staticmethod
    def __ringfeed_source__(dataset: Any, terms: Any, _: Any) -> Any:
        """Have the batches read by the workers in turn, each by one, as torch's are."""
        return in_turn(dataset, terms)


class Copy:
    """One worker's copy of an IterableDataset, which finds its part of the data by ``get_worker_info()``."""

    holds_dataset = True  # as above

    def __init__(self, dataset: Any, number: int, start: WorkerStart) -> None:
        self.dataset = dataset
        self.number = number
        self.start: WorkerStart | None = start

    def begin(self) -> None:
        """Tell torch which worker this is, ahead of the first element."""
        if self.start is not None:
            self.start.begin_as(self.number, self.dataset)
            self.start = None

    def __iter__(self) -> Iterator[Any]:
        """Begin to read it, in the worker of this number."""
        self.begin()
        return iter(self.dataset)


class StatefulCopy(Copy):
    """One with states of its own, by which a run goes on."""

    def __init__(self, dataset: Any, number: int, start: WorkerStart) -> None:
        super().__init__(dataset, number, start)
        # A worker that persists reads one dataset in all epochs, as torch's does: it may count them. One of Hugging
        # Face's begins for ever where it was loaded, so each epoch reads a copy.
        self.ringfeed_goes_on = "datasets.IterableDataset" not in class_names(dataset)

    def state_dict(self) -> Any:
        """Return where the dataset is."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Have the next ``iter()`` go on from a state."""
        self.begin()
        self.dataset.load_state_dict(state)


class Numbers:
    """A dataset whose samples are their own numbers: see `pickled.Fetch`."""

    def __getitem__(self, index: int) -> int:
        return index

    @staticmethod
    def __ringfeed_source__(dataset: Any, terms: Any, _: Any) -> Any:
        """Have the batches made by the workers in turn."""
        return in_turn(dataset, terms)


def in_turn(dataset: Any, terms: Any) -> Any:
    """Return the source of a dataset whose first batch is the first worker's, and so on."""
    from ringfeed.datasets.samples import SampleSource  # noqa: PLC0415 - not for workers

    source = SampleSource(dataset, dataset, terms)
    source.at_once = source.in_turn = True
    return source
