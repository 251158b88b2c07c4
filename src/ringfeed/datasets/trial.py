"""What the user's functions make of the first samples; the consumer learns from it.

Trial        whether `transform` returns a new sample, or changes its own in place
FirstBatch   the first batch that `collate_fn` makes of samples: the spec is learnt from it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import copied
from ringfeed.datasets.first import first_of, packages_in, raised_text, read, sample_context
from ringfeed.datasets.functions import of_one
from ringfeed.datasets.transformed import refuse_made
from ringfeed.errors import SpecError, WorkerError
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.functions import Functions

_BOTH = (
    "transform returned None, and a new sample for one that is made of arrays; return a new one "
    "always"
)


class Trial:
    """Has a function make a first sample, or a first whole batch, and keeps how it does it."""

    def __init__(self, functions: Functions, name: str) -> None:
        """Call nothing yet.

        ``name``: "transform", or "collate_fn", which never changes whole batches in place.
        """
        self._name = name
        self.in_place: bool | None = None if name == "transform" else False
        """Whether it changes samples in place; None: it was not called yet."""
        self.copies = False
        """Whether it returns the very sample that it was given, and so must have a copy."""
        self.packages = frozenset[str]()
        """Whose objects are in the samples that it was given."""
        self.functions = functions

    def _call(self, sample: Any) -> Any:
        return of_one(getattr(self.functions, self._name))(sample)

    def __call__(self, sample: Any) -> Any:
        """Return what the spec can be learnt from; the dataset's own sample stays as it was."""
        self.packages |= packages_in(sample)
        if self._name == "collate_fn":
            return None if sample is None else self._call(sample)
        given = copied(sample)
        try:
            made = self._call(given)
        except (TypeError, AttributeError):  # perhaps of a number, which is an array in a slot
            if self._objection(sample) is not None:
                raise
            made = None
        changed = made is None or (made is given and _is_whole(given, sample))
        objection = self._objection(sample) if changed else None
        if made is None and objection is not None:
            raise objection
        if self.in_place is None:
            self.in_place = changed and objection is None
            self.copies = made is given and not self.in_place
        return sample if made is None or (changed and self.in_place) else made

    def _objection(self, sample: Any) -> Exception | None:
        """Say why it cannot change samples in place, whose leaves are all arrays in a slot."""
        try:
            spec = Spec.infer(sample, 0, strings=True)
            leaves = zip(spec.leaves, spec.flatten(sample, 0), strict=True)
            given = spec.unflatten(
                [np.array(value) if leaf.form is None else value for leaf, value in leaves]
            )
            made = self._call(given)
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
    """Whether a transform changed at most the content of the leaves, and no container."""
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


class FirstBatch:
    """Has a collate_fn make a first batch."""

    def __init__(self, functions: Functions) -> None:
        """Call nothing yet."""
        self.functions = functions

    def learn(self, source: Source) -> None:
        """Set spec, rows and packages of a source from its first batch, if no spec is given."""
        terms, spec = source.terms, source.terms.given_spec()
        if spec is not None:
            if terms.trial is not None and terms.reads_first(source.length()):
                first_of(source, lambda sample, _: sample)
            source.accept(spec, terms.max_batch_size or source.indices)
            return
        samples = self._read(source)
        where = source.describe_batch([*samples])
        batch = self._made(source, samples, where)
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
        source.packages = packages_in((batch, *samples.values()))
        # A batch of fewer samples does not show how many rows a full one has.
        least = 0 if len(samples) == source.indices else source.indices
        source.accept(spec, terms.max_batch_size or max(rows, least))

    def _read(self, source: Source) -> dict[int, Any]:
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
                if source.terms.on_error != "skip":
                    raise
        return samples

    def _made(self, source: Source, samples: dict[int, Any], where: str) -> Any:
        what = f"{where}, made for the spec: collate_fn"
        try:
            with sample_context(source, tuple(samples), what):
                return of_one(self.functions.collate_fn)([*samples.values()])
        except Exception as error:
            if source.terms.on_error != "skip" or isinstance(error, WorkerError):
                raise
            raise SpecError(
                f"{raised_text(what, error)}; on_error='skip' cannot leave it out before the spec "
                "is known: give spec="
            ) from error
