"""What is learnt from the first element of a dataset, which is read before any worker starts.

first_of             the first element that can be read, as the user's function makes it
learn_from_batch     the spec of the batch that `collate_fn` makes of the first samples
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ringfeed._classes import copied
from ringfeed.errors import SpecError, StallError, WorkerError
from ringfeed.orders.rng import SampleContext, installed
from ringfeed.spec.spec import Spec, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.datasets.base import Source

MAX_NOTHING = 1000  # batches of None that are read to find one that is none
MAX_FAILED = 32  # elements that fail before one does not
_BOTH = (
    "transform returned None, and a new sample for one that is made of arrays; return a new one "
    "always"
)
_T = TypeVar("_T")


def first_of(source: Source, look: Callable[[Any, int], _T]) -> _T:
    """Return what ``look`` sees of element 0 and its index, to learn the spec from.

    Whole batches of None are passed over and, with ``on_error="skip"``, elements that fail, up to
    `MAX_FAILED`.
    """
    length, failed = source.length(), list[Exception]()
    if length == 0:
        raise SpecError(
            "the dataset is empty, so there is no sample to infer the spec from; give spec="
        )
    last = MAX_NOTHING if length is None else min(length, MAX_NOTHING)
    for index in range(last):
        try:
            element = read(source, index)
            if element is not None or not source.whole:
                return look(element, index)
        except Exception as error:
            if not source.skips or isinstance(error, StallError):
                raise
            failed.append(error)
            if len(failed) == MAX_FAILED:
                break
    if failed:
        raise SpecError(_cannot_skip(source, failed)) from failed[0]
    raise SpecError(f"the dataset gives None in the place of its first {last} batches; give spec=")


def read(source: Source, index: int) -> Any:
    """Return an element of the dataset, to learn the spec from, with its own random numbers."""
    with _sample_context(source, index, f"{source.describe(index)}, read for the spec,"):
        element = source.element(index)
        if source.function is None or (source.whole and element is None):
            return element
        return _made(source, element)


@contextmanager
def _sample_context(source: Source, index: Any, what: str) -> Iterator[None]:
    """Give the user's code the random numbers of a sample or batch; its SystemExit ends nothing."""
    context, before = SampleContext(source.seed, index=index), installed.context
    try:
        installed.context = context
        yield
    except (SystemExit, GeneratorExit) as error:
        # It would end the training here, as if it were done, though only a sample's code asked for
        # an end.
        raise WorkerError(_raised_text(what, error)) from error
    finally:
        installed.context = before


def _raised_text(what: str, error: BaseException) -> str:
    """Say that something has raised an error."""
    return f"{what} raised {type(error).__name__}: {error}".removesuffix(": ")


def _cannot_skip(source: Source, failed: list[Exception]) -> str:
    first = source.describe(0)
    why, known = "for the spec", "the spec is known: give spec="
    if source.whole:
        known += " and max_batch_size="
    if source.terms.spec is not None:
        why = "to see what the functions given to the loader make of it"
        known = "that is known: put a good one first"
    raised = _raised_text(f"{first}, read {why},", failed[0])
    if len(failed) > 1:
        raised += f", and the {len(failed) - 1} read after it failed, too"
    return f"{raised}; on_error='skip' leaves none out before {known}"


def packages_in(sample: object) -> frozenset[str]:
    """Name the packages whose objects a sample holds."""
    sample = plain(sample)
    if not isinstance(sample, tuple | list | dict):
        # One needs the other.
        return frozenset([type(sample).__module__.partition(".")[0].replace("jaxlib", "jax")])
    children = sample.values() if isinstance(sample, dict) else sample
    return frozenset[str]().union(*map(packages_in, children))


# ---- transform, and the collate_fn of whole batches ----


def _made(source: Source, sample: Any) -> Any:
    """Return what the user's function makes of an element, which stays as it was.

    The source notes how transform does it: whether it changes samples in place, whose leaves are
    all arrays in a slot, and whether it returns the very sample that it was given.
    """
    from ringfeed.datasets.functions import of_one  # noqa: PLC0415 - only where needed

    source.note_packages(sample)
    call = of_one(source.function)
    if source.whole:
        return call(sample)
    given = copied(sample)
    try:
        made = call(given)
    except (TypeError, AttributeError):  # perhaps of a number, which is an array in a slot
        if _objection(call, sample) is not None:
            raise
        made = None
    changed = made is None or (made is given and _is_whole(given, sample))
    objection = _objection(call, sample) if changed else None
    if made is None and objection is not None:
        raise objection
    if source.in_place is None:
        source.in_place = changed and objection is None
        source.copies = made is given and not source.in_place
    return sample if made is None or (changed and source.in_place) else made


def _objection(call: Callable[[Any], Any], sample: Any) -> Exception | None:
    """Say why a transform cannot change samples in place."""
    try:
        spec = Spec.infer(sample, 0, strings=True)
        leaves = zip(spec.leaves, spec.flatten(sample, 0), strict=True)
        given = spec.unflatten(
            [np.array(value) if leaf.form is None else value for leaf, value in leaves]
        )
        made = call(given)
    except Exception as error:  # noqa: BLE001 - it is told of
        objection = TypeError(
            "transform returned None, so it is given samples as arrays over the slot, numbers "
            f"too, and that raised {type(error).__qualname__}: {error}; return a new sample "
            "instead"
        )
        objection.__cause__ = error
        return objection
    return None if made is None or made is given else TypeError(_BOTH)


def _is_whole(given: Any, sample: Any) -> bool:
    """Whether transform changed at most the content of the leaves, and no container."""
    if isinstance(sample, dict):
        return given.keys() == sample.keys() and all(
            _is_whole(given[key], sample[key]) for key in sample
        )
    if isinstance(sample, tuple | list):
        return len(given) == len(sample) and all(map(_is_whole, given, sample))
    return type(given) is type(sample) and (
        not isinstance(given, np.ndarray)
        or (given.dtype, given.shape) == (sample.dtype, sample.shape)
    )


# ---- collate_fn ----


def learn_from_batch(source: Source) -> None:
    """Set spec, rows and packages of a source from its first batch, if no spec is given."""
    terms, spec = source.terms, source.terms.given_spec()
    if spec is not None:
        if source.reads_first():
            first_of(source, lambda sample, _: sample)
        source.accept(spec, terms.max_batch_size or source.indices)
        return
    from ringfeed.datasets.transformed import refuse_made  # noqa: PLC0415 - only where needed

    samples = _first_samples(source)
    where = source.describe_batch([*samples])
    batch = _first_batch(source, samples, where)
    if batch is None:
        raise SpecError(
            f"{where}: collate_fn returned None, so there is no batch to infer the spec from; "
            "give spec="
        )
    try:
        spec, rows = Spec.infer_batch(batch, 0)
    except SpecError as error:
        refuse_made(error, 0, where)
        raise
    if terms.max_batch_size is not None and terms.max_batch_size < rows:
        raise ValueError(
            f"max_batch_size={terms.max_batch_size}, but {where} has {rows} rows; raise it"
        )
    source.note_packages((batch, *samples.values()))
    # A batch of fewer samples does not show how many rows a full one has.
    least = 0 if len(samples) == source.indices else source.indices
    source.accept(spec, terms.max_batch_size or max(rows, least))


def _first_samples(source: Source) -> dict[int, Any]:
    """Return the first batch's samples by index; fewer where some fail or are missing."""
    length = source.length()
    first, sample = first_of(source, lambda sample, index: (index, sample))
    samples, end = {first: sample}, first + source.indices
    for index in range(first + 1, end if length is None else min(end, length)):
        try:
            samples[index] = read(source, index)
        except Exception as error:
            if length is None and isinstance(error, SpecError):
                break  # an iterable has ended
            if not source.skips:
                raise
    return samples


def _first_batch(source: Source, samples: dict[int, Any], where: str) -> Any:
    from ringfeed.datasets.functions import of_one  # noqa: PLC0415 - only where needed

    assert source.functions is not None
    what = f"{where}, made for the spec: collate_fn"
    try:
        with _sample_context(source, tuple(samples), what):
            return of_one(source.functions.collate_fn)([*samples.values()])
    except Exception as error:
        if not source.skips or isinstance(error, WorkerError):
            raise
        raise SpecError(
            f"{_raised_text(what, error)}; on_error='skip' cannot leave it out before the spec "
            "is known: give spec="
        ) from error
