"""Kinds of dataset, and how each fills the rows that a worker has claimed.

arrays      a tuple or dict of equally long arrays: gathered in C
batches     batch_size=None: dataset[i] is a whole batch
read_into   dataset.read_into(i, out) writes a sample into its row: no copy at all
bulk        dataset.__getitems__(indices) gives many samples (torch's protocol); not with reseed=True
samples     dataset[i] gives one
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._arrays import RowWriter
from ringfeed.errors import SpecError
from ringfeed.failure import encode
from ringfeed.randomness import SampleContext, enter, reseed
from ringfeed.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed._ring import Ring, WorkerEnd
    from ringfeed.plan import Layout


MAX_ROWS = 2**32 - 1  # of a batch: the shared memory counts them in 32 bits


@dataclass(frozen=True)
class Recipe:
    """What a worker needs to know besides the dataset itself; small, and pickled to each worker."""

    kind: str
    spec: Spec
    layout: Layout
    seed: int
    reseed: bool


@dataclass(frozen=True)
class Probe:
    """What a dataset turned out to be: its kind, its samples (or batches), the spec and the rows of a batch."""

    kind: str
    length: int | None
    spec: Spec
    rows: int

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
    _check_indexable(dataset)
    if length is None and isinstance(dataset, tuple | dict):
        length = len(dataset)  # of samples, as it turned out
    given = None if spec is None else spec if isinstance(spec, Spec) else Spec(spec)
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


def _check_indexable(dataset: Any) -> None:
    if not callable(getattr(type(dataset), "__getitem__", None)):
        message = (
            f"a {type(dataset).__name__} is no dataset: it has no __getitem__; "
            f"give an object with __len__ and __getitem__, or a tuple or dict of arrays"
        )
        raise TypeError(message)


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
    before = enter(SampleContext(seed))
    try:
        return dataset[0]
    finally:
        enter(before)


def _probe_batches(
    dataset: Any, given: Spec | None, max_batch_size: int | None, length: int | None, seed: int
) -> Probe:
    if given is not None:
        if max_batch_size is None:
            message = "batch_size=None with spec= needs max_batch_size=, the most rows that a batch has"
            raise ValueError(message)
        return Probe("batches", length, given, max_batch_size)
    inferred, rows = Spec.infer_batch(_first(dataset, length, seed), 0)
    if max_batch_size is not None and max_batch_size < rows:
        message = f"max_batch_size={max_batch_size}, but batch 0 has {rows} rows; raise it"
        raise ValueError(message)
    return Probe("batches", length, inferred, max_batch_size or max(rows, 1))


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
        self._read = getattr(self, f"_read_{recipe.kind}")(dataset)

    def fill(self) -> bool:
        """Fill the claim, recording what fails in its failure record; False when it was cancelled."""
        self._context.epoch = self._end.epoch
        before = enter(self._context)
        try:
            return self._read()  # type: ignore[no-any-return]
        finally:
            enter(before)

    def _failed(self, row: int, index: int, error: BaseException) -> None:  # noqa: ARG002 - the slot has the index
        if self._interruptible and isinstance(error, KeyboardInterrupt):
            raise error
        self._end.fail(row, encode(error))

    def _reseeded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self._recipe.reseed:
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
