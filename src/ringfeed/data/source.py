"""Kinds of dataset, and how each fills the rows that a worker has claimed.

arrays      a tuple or dict of equally long arrays: gathered in C
batches     batch_size=None: dataset[i] is a whole batch
read_into   dataset.read_into(i, out) writes a sample into its row: no copy at all
bulk        dataset.__getitems__(indices) gives many samples (torch's protocol); not with reseed=True
samples     dataset[i] gives one

An iterable is of the kind samples or batches, its readers being what they are asked of (see `iterables`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.data.iterables import Readers
from ringfeed.data.rng import SampleContext, enter, reseed
from ringfeed.errors import SpecError
from ringfeed.ring.failure import End, encode
from ringfeed.spec._rows import RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.ring._ring import Ring, WorkerEnd
    from ringfeed.spec.layout import Layout
    from ringfeed.spec.spec import Spec

CACHES = 3  # times the last cache: from here on nobody loses by it, whoever waits and wherever samples come from
NEVER = 2**64 - 1  # bytes of slots that nobody has
USUAL_CACHE = 32 << 20  # bytes, where the kernel does not say: C's sysconf tells that of all processors of a machine
IDLE_NS = 10**10  # a sleeping worker looks round this often; waking it does not depend on it


@dataclass(frozen=True)
class Recipe:
    """What a worker needs to know besides the dataset itself; small, and pickled to each worker."""

    kind: str
    spec: Spec
    layout: Layout
    seed: int
    reseed: bool
    readers: int = 0  # how many iterables there are; 0: the dataset has an index
    tensors: frozenset[str] | None = None  # the frameworks whose tensors the samples hold; None: no sample was read

    def place(self, index: int) -> str:
        """Say which sample an index means."""
        if not self.readers:
            return f"dataset[{index}]"
        return f"element {index // self.readers} of {self.whose(index)}"

    def whose(self, index: int) -> str:
        """Say which iterable an index means."""
        return "the iterable" if self.readers == 1 else f"iterable {index % self.readers}"

    def places(self, indices: list[int]) -> str:
        """Say which samples some workers are at."""
        if self.readers:
            return ", ".join(map(self.place, indices)) or "the iterable"
        return f"dataset[i] (i = {', '.join(map(str, indices))})" if indices else "dataset[i]"


def leaf_arrays(dataset: Any) -> list[np.ndarray[Any, Any]] | None:
    """Return the arrays of a tuple or dict (nested, perhaps) of arrays, or None for any other dataset."""
    if isinstance(dataset, np.ndarray):
        return [dataset]
    if not isinstance(dataset, tuple | dict) or not dataset:
        return None
    children = dataset.values() if isinstance(dataset, dict) else dataset
    leaves: list[np.ndarray[Any, Any]] = []
    for child in children:
        found = leaf_arrays(child)
        if found is None:
            return None
        leaves += found
    return leaves


def beyond_caches(file: str = "/sys/devices/system/cpu/cpu0/cache/index3/size") -> int:
    """Return how many bytes of slots are too many for a batch to be found in a cache, by the size of the last one."""
    try:
        size = int(Path(file).read_text().removesuffix("K\n")) * 1024
    except (OSError, ValueError):
        size = USUAL_CACHE
    return CACHES * size


class Source:
    """A dataset, ready to fill claims. One per worker thread."""

    def __init__(  # noqa: PLR0913 - what a worker has
        self,
        dataset: Any,
        recipe: Recipe,
        end: WorkerEnd,
        ring: Ring,
        *,
        interruptible: bool = False,
        bars: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Prepare to fill what ``end`` claims; if ``interruptible``, Ctrl-C comes out of `fill`.

        ``bars``: epoch and number of the elements of iterables that ended all who read them.
        """
        self._interruptible = interruptible
        self._end = end
        self._recipe = recipe
        self._context = SampleContext(recipe.seed)
        # What the consumer fills itself, it takes at once: it finds the batch in a cache, whatever lies in other slots.
        beyond = NEVER if interruptible else beyond_caches()
        self._writer = RowWriter(recipe.spec, recipe.layout.offsets, ring, beyond)
        self._readers = None
        if recipe.readers:
            dataset = self._readers = Readers(dataset, lambda: self._context.epoch, self._prepare, bars)
        self._read: Callable[[], bool] = getattr(self, f"_read_{recipe.kind}")(dataset)
        if self._readers is not None:
            self._read = partial(self._read_iterables, self._read, self._readers)

    def serve(self, version: int, *, claimed: bool = False) -> bool:
        """Fill tickets of one version of the dataset until the ring stops: see `WorkerEnd.serve`.

        What is raised outside the samples of a ticket fails all of them.
        """
        before = enter(self._context)
        try:
            return self._end.serve(self._read, self._context, self._fail, version, IDLE_NS, claimed)
        finally:
            enter(before)

    def fill(self) -> bool:
        """Fill the claim, recording what fails in its failure record; False when it was cancelled."""
        self._context.epoch = self._end.epoch
        before = enter(self._context)
        try:
            return self._read()
        finally:
            enter(before)

    def _fail(self, error: BaseException) -> None:
        for row in range(len(self._end.indices)):
            self._end.fail(row, encode(error))

    def _failed(self, row: int, index: int, error: BaseException) -> None:
        if self._interruptible and isinstance(error, KeyboardInterrupt):
            raise error
        if self._readers is not None and type(error) is End:
            self._cut(row, error.__cause__)
            return
        if self._readers is not None and isinstance(error, SpecError):
            error.args = (str(error).replace(f"dataset[{index}]", self._recipe.place(index), 1),)
        self._end.fail(row, encode(error))

    def _cut(self, row: int, cause: BaseException | None) -> None:
        """Say that the iterable has ended; only the first row that it does not have counts."""
        if self._end.cut(row):
            self._end.fail(row, encode(End()) + (encode(cause)[1:] if cause is not None else b""))

    def _prepare(self, index: int) -> None:
        """Have the random numbers be those of an element; also of one that is only skipped."""
        self._context.index = index
        if self._recipe.reseed:
            reseed(self._context)

    def _reseeded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self._recipe.reseed or self._readers is not None:
            return function

        def call(*arguments: Any) -> Any:
            reseed(self._context)
            return function(*arguments)

        return call

    def _read_iterables(self, read: Callable[[], bool], readers: Readers) -> bool:
        if (row := self._end.killed) is not None:
            readers.bar(self._end.indices[row])
        try:
            return read()
        except KeyboardInterrupt:
            readers.forget()  # whatever it came in the midst of
            raise

    def _read_samples(self, dataset: Any) -> Callable[[], bool]:
        get = self._reseeded(dataset.__getitem__)
        return partial(self._writer.samples, self._end.claim_address, get, self._context, self._failed)

    def _read_read_into(self, dataset: Any) -> Callable[[], bool]:
        read = self._reseeded(dataset.read_into)
        return partial(self._writer.rows, self._end.claim_address, read, self._context, self._failed)

    def _read_bulk(self, dataset: Any) -> Callable[[], bool]:
        get = dataset.__getitems__
        return partial(self._writer.bulk, self._end.claim_address, get, self._context, self._failed)

    def _read_batches(self, dataset: Any) -> Callable[[], bool]:
        get = self._reseeded(dataset.__getitem__)
        most = self._recipe.layout.rows
        return partial(self._writer.batch, self._end.claim_address, get, most, self._context, self._failed)

    def _read_arrays(self, dataset: Any) -> Callable[[], bool]:
        arrays = [np.asarray(array) for array in leaf_arrays(dataset) or ()]
        if all(len(array) == 0 or array[0, ...].flags.c_contiguous for array in arrays):
            return partial(self._writer.gather, self._end.claim_address, arrays, self._failed)
        unflatten = self._recipe.spec.unflatten
        # Strided rows go the way of samples.
        get = lambda index: unflatten([array[index, ...] for array in arrays])  # noqa: E731
        return partial(self._writer.samples, self._end.claim_address, get, self._context, self._failed)
