"""What the user's functions make of the first samples; the consumer learns from it.

made_of             a sample as `transform` makes it, or a whole batch as `collate_fn` does
learn_from_batch    the spec of the first batch that `collate_fn` makes of samples
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import copied
from ringfeed.datasets.first import first_of, raised_text, read, sample_context
from ringfeed.datasets.functions import of_one
from ringfeed.datasets.transformed import refuse_made
from ringfeed.errors import SpecError, WorkerError
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source

_BOTH = (
    "transform returned None, and a new sample for one that is made of arrays; return a new one "
    "always"
)


# ---- transform, and the collate_fn of whole batches ----


def made_of(source: Source, sample: Any) -> Any:
    """Return what the user's function makes of an element, which stays as it was.

    The source notes how transform does it: whether it changes samples in place, whose leaves are
    all arrays in a slot, and whether it returns the very sample that it was given.
    """
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
    assert source.functions is not None
    what = f"{where}, made for the spec: collate_fn"
    try:
        with sample_context(source, tuple(samples), what):
            return of_one(source.functions.collate_fn)([*samples.values()])
    except Exception as error:
        if not source.skips or isinstance(error, WorkerError):
            raise
        raise SpecError(
            f"{raised_text(what, error)}; on_error='skip' cannot leave it out before the spec "
            "is known: give spec="
        ) from error
