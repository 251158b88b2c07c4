"""A dataset of torch's in a worker, which tells torch its number before the first sample.

    Samples    map-style, by index
    Copy       an IterableDataset: each worker reads one of its own

Imports no torch: a worker whose dataset does without has none.
"""

from __future__ import annotations

import random
import sys
from ctypes import string_at
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed._classes import class_names
from ringfeed.datasets.worker_info import tell_torch, worker_info
from ringfeed.orders.rng import SampleContext, installed, reseed, seed_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Two generators that differ draw the same bits once in 2**64.
BITS = 64


class WorkerStart(NamedTuple):
    """What a worker does before its first sample of a dataset."""

    workers: int
    base_seed: int
    init_fn: Callable[[int], object] | None

    def begin(self, dataset: Any, number: int) -> None:
        """Tell torch's ``get_worker_info()`` which worker this is, and call ``init_fn``."""
        seed = self.base_seed + number
        tell_torch(number, self.workers, seed, dataset, as_torch=True)
        if self.init_fn is not None:
            import torch  # noqa: PLC0415 - such functions ask torch for the seed
            from torch.utils.data._utils import worker  # noqa: PLC0415

            random.seed(seed)
            torch.manual_seed(seed)
            # As torch seeds NumPy.
            np.random.seed(worker._generate_state(self.base_seed, number))  # noqa: NPY002, SLF001
            self.init_fn(number)
            seed_torch(torch.initial_seed())  # the function may have seeded torch


class _Twins:
    """Generators that draw what ``random``, ``numpy.random`` and torch will draw.

    As long as both draw the same, nothing else has drawn from the global ones. To compare them
    takes less than three microseconds, and to seed the global ones takes twenty.
    """

    def __init__(self) -> None:
        """Begin where the global generators are."""
        self._random, self._numpy = random.Random(), np.random.RandomState()  # noqa: S311 - a twin
        self._random.setstate(random.getstate())
        self._numpy.set_state(np.random.get_state())  # noqa: NPY002 - what datasets draw from
        self._torch = _torchs_state()

    def differ(self) -> bool:
        """Whether anything was drawn, or torch was imported, since the twins began.

        It draws from all of them.
        """
        return (
            random.getrandbits(BITS) != self._random.getrandbits(BITS)
            or np.random.random_sample() != self._numpy.random_sample()  # noqa: NPY002
            or _torchs_state() != self._torch
        )

    def begin_anew(self) -> None:
        """Seed the global generators and their twins alike, after something else has drawn."""
        for generator in (random, self._random, np.random, self._numpy):
            generator.seed(0)
        self._torch = _torchs_state()


def _torchs_state() -> bytes | None:
    """Return the state of torch's generator; None where torch is not imported."""
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is None:
        return None
    state = generator.get_state()
    # By an array of NumPy's it would take half a microsecond more.
    return string_at(state.data_ptr(), state.nbytes)


class Samples:
    """The dataset of a DataLoader, sample by sample.

    A sample that draws from a global generator is read with that one seeded for it, so that it does
    not depend on the worker. The first sample of each epoch is, and where it draws, so are all that
    follow. Where it does not, and a later one draws, that one is read again, seeded.
    """

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(self, dataset: Any, start: WorkerStart) -> None:
        self.dataset = dataset
        self.start = start
        self._draws = False
        self._epoch: int | None = None  # that this worker was told of
        self._twins: _Twins | None = None

    @staticmethod
    def __ringfeed_source__(dataset: Any, terms: Any, _: Any) -> Any:
        """Return a source whose batches are read by one worker each, as torch's are."""
        from ringfeed.datasets.indexed import IndexedSource  # noqa: PLC0415 - not for workers

        source = IndexedSource(dataset, dataset, terms)
        source.at_once = True
        return source

    def begin(self) -> SampleContext:
        """Return the context of what is read; the first call tells torch which worker this is."""
        context = installed.context
        assert context is not None
        if context.epoch != self._epoch:
            here = worker_info()
            if self._epoch is None and here is not None:
                self.start.begin(self.dataset, here.id)
            self._epoch, self._twins = context.epoch, None
        return context

    def __getitem__(self, index: Any) -> Any:
        context = self.begin()
        begun_at = context.index
        if self._twins is not None:
            try:
                sample = self.dataset[index]
            except Exception:
                if not self._twins.differ():
                    raise
            else:
                if not self._twins.differ():
                    return sample
            self._twins = None
            # What it draws by `ringfeed.rng` begins again, too.
            context.index = begun_at
        reseed(context)
        if self._draws:
            return self.dataset[index]
        twins, has_torch = _Twins(), "torch" in sys.modules
        sample = self.dataset[index]
        if not twins.differ():
            self._twins = twins
        else:
            # An import of torch may be all that was seen: then the next sample shows whether
            # samples draw.
            self._draws = has_torch or "torch" not in sys.modules
        return sample

    def seeded(self, function: Callable[[Any], Any], given: Any) -> Any:
        """Return ``function(given)``, called with the generators seeded for the whole batch."""
        reseed(self.begin())
        try:
            return function(given)
        finally:
            if self._twins is not None:
                self._twins.begin_anew()


class Copy:
    """One worker's copy of an IterableDataset, which asks ``get_worker_info()`` for its part."""

    holds_dataset = True  # as above

    def __init__(self, dataset: Any, number: int, start: WorkerStart) -> None:
        self.dataset = dataset
        self.number = number
        self.start: WorkerStart | None = start

    def begin(self) -> None:
        """Tell torch which worker this is, ahead of the first element."""
        if self.start is not None:
            self.start.begin(self.dataset, self.number)
            self.start = None

    def __iter__(self) -> Iterator[Any]:
        """Begin to read it, in the worker of this number."""
        self.begin()
        return iter(self.dataset)


class StatefulCopy(Copy):
    """One with states of its own, by which a run goes on."""

    def __init__(self, dataset: Any, number: int, start: WorkerStart) -> None:
        super().__init__(dataset, number, start)
        # A worker that persists reads one dataset in all epochs, as torch's does: it may count
        # them. One of Hugging Face's begins for ever where it was loaded, so each epoch reads a
        # copy.
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
