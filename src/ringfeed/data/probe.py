"""What a dataset is: its kind, its length, and, from its first sample or batch, its spec."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ringfeed.data.iterables import ahead_of, iterables_of
from ringfeed.data.rng import SampleContext, enter
from ringfeed.data.source import leaf_arrays
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Spec
from ringfeed.transport.framework_stubs import of_framework

if TYPE_CHECKING:
    import numpy as np

MAX_ROWS = 2**32 - 1  # of a batch: the shared memory counts them in 32 bits
MAX_NOTHING = 1000  # batches of None that are read to find one that is none


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
    tensors: frozenset[str] | None = None
    """The frameworks whose tensors the samples hold; None where no sample was read."""

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
    on_error: str = "raise",
) -> Probe:
    """Find out what a dataset is, reading sample 0 where the spec is not given.

    What sample 0 raises comes out as it is, or, where ``on_error`` is "skip", as a SpecError that asks for a spec.
    Raises TypeError for what is no dataset, ValueError for settings that do not fit it, SpecError for its samples.
    """
    if max_batch_size is not None and batch_size is not None:
        message = f"max_batch_size={max_batch_size} is for datasets of whole batches; with batch_size= leave it out"
        raise ValueError(message)
    arrays = leaf_arrays(dataset)
    if arrays is not None:
        return _probe_arrays(dataset, arrays, batch_size, spec)
    iterables = iterables_of(dataset)
    if iterables:
        return _probe_iterables(iterables, batch_size, spec, max_batch_size, seed)
    _check_indexable(dataset)
    if length is None and isinstance(dataset, tuple | dict):
        length = len(dataset)  # of samples, as it turned out
    given = None if spec is None else spec if isinstance(spec, Spec) else Spec(spec)
    _refuse_variable(given, batch_size)
    read = _Explained(dataset, batch_size) if on_error == "skip" else dataset
    if batch_size is None:
        return _probe_batches(read, given, max_batch_size, length, seed)
    _refuse_keras_batches(dataset, batch_size)
    # A class may take what it inherits back by setting it to None.
    kind = "read_into" if callable(getattr(dataset, "read_into", None)) else "samples"
    if kind == "samples" and callable(getattr(dataset, "__getitems__", None)) and not reseed:
        kind = "bulk"
    if kind == "read_into":
        _refuse_cast(given)
    if given is not None:
        return Probe(kind, length, given, batch_size)
    first = _first(read, length, seed)
    return Probe(kind, length, Spec.infer(first, 0), batch_size, tensors=tensors_in(first))


def _probe_iterables(
    iterables: tuple[Any, ...], batch_size: int | None, spec: object, max_batch_size: int | None, seed: int
) -> Probe:
    first = _Ahead(iterables[0])
    if batch_size is None:
        given = None if spec is None else spec if isinstance(spec, Spec) else Spec(spec)
        found = _probe_batches(first, given, max_batch_size, None, seed)
        return replace(found, readers=len(iterables))
    if spec is None:
        element = _first(first, None, seed)
        return Probe("samples", None, Spec.infer(element, 0), batch_size, len(iterables), tensors=tensors_in(element))
    given = spec if isinstance(spec, Spec) else Spec(spec)
    _refuse_variable(given, batch_size)
    return Probe("samples", None, given, batch_size, len(iterables))


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


class _Explained:
    """A dataset whose errors say what it was read for."""

    def __init__(self, dataset: Any, batch_size: int | None) -> None:
        self._dataset = dataset
        self._remedy = "spec= and max_batch_size=" if batch_size is None else "spec="

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            raised = f"{type(error).__name__}: {error}".removesuffix(": ")
            message = (
                f"dataset[{index}], read for the spec, raised {raised}; on_error='skip' cannot leave it out before the "
                f"spec is known: give {self._remedy}"
            )
            raise SpecError(message) from error


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


def _refuse_cast(given: Spec | None) -> None:
    """Refuse to convert what a dataset itself writes into the slot."""
    for leaf in given.leaves if given is not None else ():
        if leaf.cast is not None:
            message = (
                f"{leaf.path} is converted by its Array, but read_into writes into the slot itself; write float32 "
                f"there and leave scale=, offset=, mean=, std= and layout= out, or take read_into out of the dataset"
            )
            raise SpecError(message)


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
    most = max_batch_size or max(rows, 1)
    return Probe("batches", length, inferred, most, has_gaps=index > 0, tensors=tensors_in(batch))


def tensors_in(sample: object) -> frozenset[str]:
    """Name the frameworks whose tensors a sample holds."""
    if isinstance(sample, tuple | list | dict):
        return frozenset().union(*map(tensors_in, sample.values() if isinstance(sample, dict) else sample))
    module = type(sample).__module__
    return frozenset((module.partition(".")[0],)) if of_framework(module) else frozenset()


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


def _probe_arrays(dataset: Any, arrays: list[np.ndarray[Any, Any]], batch_size: int | None, spec: object) -> Probe:
    if batch_size is None:
        message = "batch_size=None is for datasets of whole batches; arrays hold samples: give a batch_size"
        raise ValueError(message)
    if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        message = f"the arrays of a dataset must be equally long, but their shapes are {shapes}; cut them to one length"
        raise SpecError(message)
    inferred, length = Spec.infer_batch(dataset, 0)
    given = inferred if spec is None else spec if isinstance(spec, Spec) else Spec(spec)
    if inferred != given.before_cast():
        remedy = "leave spec= out" if given is given.before_cast() else "it converts uint8 arrays of the samples' shape"
        message = f"spec= says {spec!r}, but the arrays are {inferred!r}; {remedy}"
        raise SpecError(message)
    return Probe("arrays", length, given, batch_size)
