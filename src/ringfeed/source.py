"""Kinds of dataset, and how each fills the rows that a worker has claimed.

arrays      a tuple or dict of equally long arrays: gathered in C
batches     batch_size=None: dataset[i] is a whole batch
read_into   dataset.read_into(i, out) writes a sample into its row: no copy at all
bulk        dataset.__getitems__(indices) gives many samples (torch's protocol); not with reseed=True
samples     dataset[i] gives one

An iterable is of the kind samples or batches, its readers being what they are asked of (see `iterables`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._arrays import RowWriter
from ringfeed.errors import SpecError
from ringfeed.failure import End, encode
from ringfeed.iterables import Readers, ahead_of, iterables_of
from ringfeed.randomness import SampleContext, enter, reseed
from ringfeed.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed._ring import Ring, WorkerEnd
    from ringfeed.budget import Layout


MAX_ROWS = 2**32 - 1  # of a batch: the shared memory counts them in 32 bits
MAX_NOTHING = 1000  # batches of None that are read to find one that is none


@dataclass(frozen=True)
class Recipe:
    """What a worker needs to know besides the dataset itself; small, and pickled to each worker."""

    kind: str
    spec: Spec
    layout: Layout
    seed: int
    reseed: bool
    readers: int = 0  # how many iterables there are; 0: the dataset has an index

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


@dataclass(frozen=True)
class Probe:
    """What a dataset turned out to be: its kind, its samples (or batches), the spec and the rows of a batch."""

    kind: str
    length: int | None
    spec: Spec
    rows: int
    readers: int = 0
    has_gaps: bool = False
    """Whether some whole batch was found to be None."""

    def __post_init__(self) -> None:
        """Raise what 32 bits of rows, or 64 of elements, do not hold; what memory does not is the plan's to say."""
        if self.rows > MAX_ROWS:
            message = f"a batch of {self.rows} rows, expected at most {MAX_ROWS}; make it smaller"
            raise ValueError(message)
        for leaf in self.spec.leaves:
            beside = math.prod(axis or 1 for axis in leaf.shape) * leaf.dtype.itemsize
            if not leaf.nbytes and max(self.rows, 1) * beside >= 2**63:
                message = (
                    f"{leaf.path} has shape {leaf.shape}, which holds nothing, but with {self.rows} rows NumPy counts "
                    f"more than 63 bits of bytes along its other axes; make them smaller"
                )
                raise SpecError(message)


def probe(  # noqa: PLR0913 - what the user may say of a dataset
    dataset: Any,
    batch_size: int | None,
    *,
    spec: object = None,
    max_batch_size: int | None = None,
    length: int | None = None,
    seed: int = 0,
    reseed: bool = False,
) -> Probe:
    """Find out what a dataset is, reading sample 0 where the spec is not given.

    Raises TypeError for what is no dataset, ValueError for settings that do not fit it, SpecError for its samples.
    """
    if max_batch_size is not None and batch_size is not None:
        message = f"max_batch_size={max_batch_size} is for datasets of whole batches; with batch_size= leave it out"
        raise ValueError(message)
    arrays = _leaf_arrays(dataset)
    if arrays is not None:
        return _probe_arrays(dataset, arrays, batch_size, spec)
    iterables = iterables_of(dataset)
    if iterables:
        return _probe_iterables(iterables, batch_size, spec, max_batch_size, seed)
    _check_indexable(dataset)
    _refuse_mixed(dataset)
    if length is None and isinstance(dataset, tuple | dict):
        length = len(dataset)  # of samples, as it turned out
    given = None if spec is None else spec if isinstance(spec, Spec) else Spec(spec)
    _refuse_variable(given, batch_size)
    if batch_size is None:
        return _probe_batches(dataset, given, max_batch_size, length, seed)
    _refuse_keras_batches(dataset, batch_size)
    # A class may take what it inherits back by setting it to None.
    kind = "read_into" if callable(getattr(dataset, "read_into", None)) else "samples"
    if kind == "samples" and callable(getattr(dataset, "__getitems__", None)) and not reseed:
        kind = "bulk"
    if given is None:
        given = Spec.infer(_first(dataset, length, seed), 0)
    return Probe(kind, length, given, batch_size)


def _probe_iterables(
    iterables: tuple[Any, ...], batch_size: int | None, spec: object, max_batch_size: int | None, seed: int
) -> Probe:
    first = _Ahead(iterables[0])
    if batch_size is None:
        given = None if spec is None else spec if isinstance(spec, Spec) else Spec(spec)
        found = _probe_batches(first, given, max_batch_size, None, seed)
        return replace(found, readers=len(iterables))
    if spec is None:
        inferred = Spec.infer(_first(first, None, seed), 0)
    else:
        inferred = spec if isinstance(spec, Spec) else Spec(spec)
    return Probe("samples", None, inferred, batch_size, len(iterables))


class _Ahead:
    """The first elements of an iterable, as those of a dataset, for who asks for one after another."""

    def __init__(self, iterable: Any) -> None:
        self._iterator = ahead_of(iterable)

    def __getitem__(self, index: int) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            found = f"gives None in the place of all its {index} batches" if index else "is empty"
            message = f"the iterable {found}, so there is no element to infer the spec from; give spec="
            raise SpecError(message) from None


def _check_indexable(dataset: Any) -> None:
    if not callable(getattr(type(dataset), "__getitem__", None)):
        message = (
            f"a {type(dataset).__name__} is no dataset: it has neither __getitem__ nor __iter__; "
            f"give an object with __len__ and __getitem__, a tuple or dict of arrays, or an iterable"
        )
        raise TypeError(message)


def _refuse_variable(given: Spec | None, batch_size: int | None) -> None:
    """Refuse samples of different shapes, of which no batch can be made."""
    for leaf in given.leaves if given is not None and batch_size is not None else ():
        if leaf.variable:
            message = (
                f"{leaf.path} has variable={leaf.variable}, but samples of different shapes make no batch of "
                f"batch_size={batch_size}; pad them in __getitem__, or let it return whole batches with batch_size=None"
            )
            raise SpecError(message)


def _refuse_mixed(dataset: Any) -> None:
    """Refuse a dict of columns that are not all arrays, and would be asked for its sample 0."""
    if type(dataset) is dict and not any(isinstance(key, int) for key in dataset):
        for path, kind in _no_arrays(dataset, "dataset"):
            message = (
                f"{path} is of type {kind}, expected an array like all in a dict of arrays; give numpy.asarray() of it"
            )
            raise SpecError(message)


def _no_arrays(branch: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(branch, tuple | dict):
        for key, child in branch.items() if isinstance(branch, dict) else enumerate(branch):
            yield from _no_arrays(child, f"{path}[{key!r}]")
    elif not isinstance(branch, np.ndarray):
        yield path, type(branch).__name__


def _refuse_keras_batches(dataset: Any, batch_size: int) -> None:
    """Refuse a Keras PyDataset whose batches would be taken for samples."""
    if all(hasattr(dataset, name) for name in ("use_multiprocessing", "max_queue_size", "workers")):
        message = (
            f"batch_size={batch_size} for a {type(dataset).__name__}, which is a Keras dataset: its items are whole "
            f"batches already; give batch_size=None"
        )
        raise ValueError(message)


def _first(dataset: Any, length: int | None, seed: int) -> Any:
    if length == 0:
        message = "the dataset is empty, so there is no sample to infer the spec from; give spec="
        raise SpecError(message)
    return _read(dataset, 0, seed)


def _read(dataset: Any, index: int, seed: int) -> Any:
    before = enter(SampleContext(seed, index=index))
    try:
        return dataset[index]
    finally:
        enter(before)


def _first_batch(dataset: Any, length: int | None, seed: int) -> tuple[Any, int]:
    """Return the first batch that is not None, and its index."""
    batch, index = _first(dataset, length, seed), 0
    while batch is None:
        index += 1
        if index in (length, MAX_NOTHING):
            message = f"the dataset gives None in the place of its first {index} batches; give spec="
            raise SpecError(message)
        batch = _read(dataset, index, seed)
    return batch, index


def _probe_batches(
    dataset: Any, given: Spec | None, max_batch_size: int | None, length: int | None, seed: int
) -> Probe:
    if given is not None:
        if max_batch_size is None:
            message = "batch_size=None with spec= needs max_batch_size=, the most rows that a batch has"
            raise ValueError(message)
        return Probe("batches", length, given, max_batch_size)
    batch, index = _first_batch(dataset, length, seed)
    inferred, rows = Spec.infer_batch(batch, index)
    if max_batch_size is not None and max_batch_size < rows:
        message = f"max_batch_size={max_batch_size}, but batch {index} has {rows} rows; raise it"
        raise ValueError(message)
    return Probe("batches", length, inferred, max_batch_size or max(rows, 1), has_gaps=index > 0)


def batches_in(dataset: Any) -> int | None:
    """Return how many batches a dataset of whole batches has; None where it says so, or knows no end.

    Keras' own datasets say it by ``num_batches``, which comes before ``len()`` there.
    """
    try:
        if hasattr(type(dataset), "num_batches"):
            count = dataset.num_batches
            if count is None or isinstance(count, int):
                return count
        return len(dataset)
    except (TypeError, NotImplementedError):  # what Python and Keras raise where there is none
        return None


def has_hook(dataset: Any, name: str) -> bool:
    """Whether a dataset defines a hook of its own, rather than inheriting Keras' empty one."""
    hook = getattr(type(dataset), name, None)
    return callable(hook) and getattr(hook, "__module__", "").partition(".")[0] not in {"keras", "tf_keras"}


# ---- arrays ----


def _leaf_arrays(dataset: Any) -> list[np.ndarray[Any, Any]] | None:
    """Return the arrays of a tuple or dict (nested, perhaps) of arrays, or None for any other dataset."""
    if isinstance(dataset, np.ndarray):
        return [dataset]
    if not isinstance(dataset, tuple | dict) or not dataset:
        return None
    children = dataset.values() if isinstance(dataset, dict) else dataset
    leaves: list[np.ndarray[Any, Any]] = []
    for child in children:
        found = _leaf_arrays(child)
        if found is None:
            return None
        leaves += found
    return leaves


def _probe_arrays(dataset: Any, arrays: list[np.ndarray[Any, Any]], batch_size: int | None, spec: object) -> Probe:
    if batch_size is None:
        message = "batch_size=None is for datasets of whole batches; arrays hold samples: give a batch_size"
        raise ValueError(message)
    if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        message = f"the arrays of a dataset must be equally long, but their shapes are {shapes}; cut them to one length"
        raise SpecError(message)
    inferred, length = Spec.infer_batch(dataset, 0)
    if spec is not None and inferred != (spec if isinstance(spec, Spec) else Spec(spec)):
        message = f"spec= says {spec!r}, but the arrays are {inferred!r}; leave spec= out"
        raise SpecError(message)
    return Probe("arrays", length, inferred, batch_size)


# ---- filling ----


class Source:
    """A dataset, ready to fill claims. One per worker thread."""

    def __init__(
        self, dataset: Any, recipe: Recipe, end: WorkerEnd, ring: Ring, *, interruptible: bool = False
    ) -> None:
        """Prepare to fill what ``end`` claims; if ``interruptible``, Ctrl-C comes out of `fill`."""
        self._interruptible = interruptible
        self._end = end
        self._recipe = recipe
        self._context = SampleContext(recipe.seed)
        self._writer = RowWriter(recipe.spec, recipe.layout.offsets, ring)
        self._readers = None
        if recipe.readers:
            dataset = self._readers = Readers(dataset, lambda: self._context.epoch, self._prepare)
        self._read = getattr(self, f"_read_{recipe.kind}")(dataset)

    def fill(self) -> bool:
        """Fill the claim, recording what fails in its failure record; False when it was cancelled."""
        self._context.epoch = self._end.epoch
        before = enter(self._context)
        try:
            if self._readers is not None and (row := self._end.killed) is not None:
                self._readers.bar(self._end.indices[row])
            return self._read()  # type: ignore[no-any-return]
        finally:
            enter(before)

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

    def _read_samples(self, dataset: Any) -> Callable[[], bool]:
        get = self._reseeded(dataset.__getitem__)
        return lambda: self._writer.samples(self._end.claim_address, get, self._context, self._failed)

    def _read_read_into(self, dataset: Any) -> Callable[[], bool]:
        read = self._reseeded(dataset.read_into)
        return lambda: self._writer.rows(self._end.claim_address, read, self._context, self._failed)

    def _read_bulk(self, dataset: Any) -> Callable[[], bool]:
        get = dataset.__getitems__
        return lambda: self._writer.bulk(self._end.claim_address, get, self._context, self._failed)

    def _read_batches(self, dataset: Any) -> Callable[[], bool]:
        get = self._reseeded(dataset.__getitem__)
        most = self._recipe.layout.rows
        return lambda: self._writer.batch(self._end.claim_address, get, most, self._context, self._failed)

    def _read_arrays(self, dataset: Any) -> Callable[[], bool]:
        arrays = [np.asarray(array) for array in _leaf_arrays(dataset) or ()]
        if all(len(array) == 0 or array[0, ...].flags.c_contiguous for array in arrays):
            return lambda: self._writer.gather(self._end.claim_address, arrays, self._failed)
        unflatten = self._recipe.spec.unflatten
        # Strided rows go the way of samples.
        get = lambda index: unflatten([array[index, ...] for array in arrays])  # noqa: E731
        return lambda: self._writer.samples(self._end.claim_address, get, self._context, self._failed)
