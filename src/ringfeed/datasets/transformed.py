"""What the user's functions make of samples, in the workers.

    Trial        what `transform` does, seen with the first sample: it returns a new one, or changes it in place
    Transforms   what a worker does with the functions, to the samples that a source reads

A transform that changes samples in place is given views of a row of the slot, which the writer has
written before (`RowWriter.transform`). One that returns new samples stands between the dataset and
the writer (`Between`). What collate_fn makes of several samples: see `collating`.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import copied
from ringfeed._failure import NOT_CTRL_C
from ringfeed.datasets._changes import BatchWriter, RowTransform
from ringfeed.datasets.arrays import Rows
from ringfeed.datasets.first import packages_in
from ringfeed.datasets.functions import of_one
from ringfeed.datasets.worker_info import worker_info
from ringfeed.errors import FunctionError, SpecError
from ringfeed.orders.rng import reseed
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.functions import Functions
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.spec._rows import RowWriter


# ---- what they do, seen in the consumer ----

_BOTH = (
    "transform returned None, and a new sample for one that is made of arrays; return a new one "
    "always"
)


class Trial:
    """Has a function make a first sample, or a first whole batch, and keeps how it does it."""

    def __init__(self, functions: Functions, name: str) -> None:
        """Call nothing yet; ``name``: "transform", or "collate_fn", which never changes whole batches in place."""
        self._name = name
        self.in_place: bool | None = None if name == "transform" else False
        """Whether it changes samples in place; None: it was not called yet."""
        self.copies = False
        """Whether it returns the very sample that it is given otherwise, so that it must have a copy."""
        self.packages = frozenset[str]()
        """Whose objects are in the samples that it was given."""
        self.functions = functions

    def _call(self, sample: Any) -> Any:
        return of_one(getattr(self.functions, self._name))(sample)

    def __call__(self, sample: Any) -> Any:
        """Return what the spec of its samples can be learnt from; the dataset's own sample stays as it was."""
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
        """Say why it cannot change samples in place whose leaves are arrays, numbers too, as they are in a slot."""
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
    """Whether a transform left all leaves of a container where they were, at most with another content."""
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


# ---- what a worker does with them ----


class Transforms:
    """What workers do with the user's functions: samples are changed in their rows or on their way there."""

    def __init__(self, source: Source, functions: Functions) -> None:
        """Have the source be read by way of the functions."""
        self.in_place = self.copies = False
        self.each = (
            "collate_fn" if source.whole else "transform"
        )  # is called with each of what the dataset gives
        self.has_transform = getattr(functions, self.each) is not None
        self.has_batch_transform = functions.batch_transform is not None
        self.skips = source.terms.on_error == "skip"
        source.functions, source.transforms = functions, self
        source.at_once |= self.has_batch_transform

    def learnt(self, source: Source) -> Self:
        """Return the same with what the first sample has shown; SpecError for what cannot be changed in a slot."""
        trial, made = source.terms.trial, copy(self)
        if trial is None or trial.in_place is None:
            return made
        made.in_place, made.copies = trial.in_place, trial.copies
        if source.collates:  # what the slot holds was made of the samples
            return made
        if trial.packages:
            source.packages = trial.packages | (source.packages or frozenset())
        for leaf in source.spec.leaves if made.in_place else ():
            if leaf.cast is not None:
                raise SpecError(
                    f"{leaf.path} is converted by its Array, but transform changes it in the slot, "
                    "where it is float32 already; return a new sample, or leave scale=, offset=, "
                    "mean=, std= and layout= out"
                )
        return made

    def begin_worker(self, reader: Reader) -> None:
        """Have the user's function prepare the worker; in its own thread, once, ahead of the first sample."""
        found, function = worker_info(), reader.functions.worker_init_fn
        if function is None or found is None:
            return
        try:
            function(found.id)
        except NOT_CTRL_C as error:
            raise failed(f"worker_init_fn({found.id})", error) from error

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Have samples transformed in their rows, or on their way there; then the batch."""
        writer, fill = reader.writer, self._open_samples(dataset, reader)
        change = self.batch_change(reader)
        if change is None:
            return fill
        address, whole = reader.end.claim_address, reader.source.whole
        return partial(
            BatchWriter(writer).change, address, fill, change, whole, self.skips, reader.failed
        )

    def _open_samples(self, dataset: Any, reader: Reader) -> Fill:
        apply = self.sample_change(reader)
        if apply is None:
            return reader.source.open(dataset, reader)
        if not self.in_place:
            return open_between(
                dataset, reader, Between(reader.writer, partial(self.made, reader.source, apply))
            )
        reader.writer.change = RowTransform(
            reader.reseeded(apply) if reader.source.has_columns else apply
        )
        return reader.source.open(dataset, reader)

    def sample_change(self, reader: Reader) -> Callable[[int, Any], Any] | None:
        """Return what calls the user's function with a sample of a number; None where there is no function."""
        if not self.has_transform:
            return None
        source, call = reader.source, of_one(getattr(reader.functions, self.each))

        def apply(index: int, sample: Any) -> Any:
            try:
                return call(sample)
            except NOT_CTRL_C as error:
                raise failed(f"{source.describe(index)}: {self.each}", error) from error

        return apply

    def batch_change(self, reader: Reader) -> Callable[[tuple[int, ...], Any], Any] | None:
        """Return what calls batch_transform with a batch of samples of these numbers; None where there is none."""
        if not self.has_batch_transform:
            return None
        source, call = reader.source, of_one(reader.functions.batch_transform)

        def apply(indices: tuple[int, ...], batch: Any) -> Any:
            if not source.whole and not source.collates:  # whose random numbers go on
                reader.context.index = indices
                if source.reseed:
                    reseed(reader.context)
            try:
                return call(batch)
            except NOT_CTRL_C as error:
                more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
                raise failed(
                    f"the batch of {source.describe(indices[0])}{more}: batch_transform", error
                ) from error

        return apply

    def made(
        self, source: Source, apply: Callable[[int, Any], Any], index: int, sample: Any
    ) -> Any:
        """Return what a function that makes new samples makes of one, or of a whole batch; None for no batch."""
        made = apply(index, copied(sample) if self.copies else sample)
        if made is None and not source.whole:
            raise SpecError(
                f"{source.describe(index)}: transform returned None, expected a sample as of the "
                "first one; return it always, or never and change it in place"
            )
        return made


def open_between(dataset: Any, reader: Reader, between: Between) -> Fill:
    """Have the samples of the dataset go another way than into their rows."""
    if reader.source.has_columns:
        return reader.by(between.samples, reader.reseeded(Rows(dataset, copied=True).__getitem__))
    reader.writer = between
    return reader.source.open(dataset, reader)


def failed(what: str, error: BaseException) -> FunctionError:
    """Say which function of the user's has raised, for which samples."""
    return FunctionError(f"{what} raised {type(error).__qualname__}: {error}".removesuffix(": "))


class Between:
    """A RowWriter whose samples come by way of a function of their number and themselves."""

    def __init__(self, writer: RowWriter, make: Callable[[int, Any], Any]) -> None:
        self._writer = writer
        self._make = make
        self.rows = self.gather = None  # which write without a sample

    def samples(
        self, claim_address: int, getitem: Callable[[int], Any], context: Any, on_error: Any
    ) -> bool:
        """Fill the claim with what is made of getitem(index)."""
        make = self._make
        return self._writer.samples(
            claim_address, lambda index: make(index, getitem(index)), context, on_error
        )

    def batch(  # as `RowWriter.batch`
        self,
        claim_address: int,
        getitem: Callable[[int], Any],
        most: int,
        context: Any,
        on_error: Any,
    ) -> bool:
        """Fill the slot with what is made of the whole batch getitem(index), unless that is None."""

        def made(index: int) -> Any:
            batch = getitem(index)
            return None if batch is None else self._make(index, batch)

        return self._writer.batch(claim_address, made, most, context, on_error)

    def bulk(
        self, claim_address: int, getitems: Callable[[list[int]], Any], context: Any, on_error: Any
    ) -> bool:
        """Fill the claim with what is made of getitems(indices)."""
        return self._writer.bulk(
            claim_address, partial(self.many, getitems, context), context, on_error
        )

    def many(
        self, getitems: Callable[[list[int]], Any], context: Any, indices: Sequence[int]
    ) -> Iterator[Any]:
        """Give what is made of each sample, with its own random numbers; then those that were not asked for."""
        samples = iter(getitems([*indices]))
        for index, sample in zip(indices, samples, strict=False):
            context.index = index
            try:
                made = self._make(index, sample)
            finally:
                context.index = None  # the next is read together with others
            yield made
        yield from samples  # more than were asked for
