"""What the user's functions make of samples, in the workers.

    Trial             what `transform` does, seen with the first sample: it returns a new one, or changes it in place
    AsIs              the same of a `collate_fn` for whole batches: it returns a new one
    TransformSource   the source of a dataset with the functions, around the source of the dataset

A transform that changes samples in place is given views of a row of the slot, which the writer has written before
(`RowWriter.transform`). One that returns new samples stands between the dataset and the writer (`Between`). What
collate_fn makes of several samples: see `collating`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ringfeed._classes import copied
from ringfeed._failure import NOT_CTRL_C
from ringfeed.datasets._changes import BatchWriter, RowTransform
from ringfeed.datasets.base import packages_in
from ringfeed.datasets.functions import Composed, of_one
from ringfeed.datasets.rows import Rows
from ringfeed.datasets.terms import Preview
from ringfeed.datasets.worker_info import worker_info
from ringfeed.datasets.wrapped import WrappedSource
from ringfeed.errors import FunctionError, SpecError
from ringfeed.orders.rng import reseed
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.functions import Functions
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.spec._rows import RowWriter


# ---- what they do, seen in the consumer ----

_BOTH = "transform returned None, and a new sample for one that is made of arrays; return a new one always"


class Trial(Preview):
    """Has a transform make a first sample, and keeps how it does it."""

    def __init__(self, transform: Any) -> None:
        """Call nothing yet."""
        self.call = of_one(transform)

    def __call__(self, sample: Any) -> Any:
        """Return what the spec of its samples can be learnt from; the dataset's own sample stays as it was."""
        self.packages |= packages_in(sample)
        given = copied(sample)
        try:
            made = self.call(given)
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
            given = spec.unflatten([np.array(value) if leaf.form is None else value for leaf, value in leaves])
            made = self.call(given)
        except Exception as error:  # noqa: BLE001 - it is told of
            objection = TypeError(
                f"transform returned None, so it is given samples as arrays over the slot, numbers too, and that "
                f"raised {type(error).__qualname__}: {error}; return a new sample instead"
            )
            objection.__cause__ = error
            return objection
        return None if made is None or made is given else TypeError(_BOTH)


class AsIs(Preview):
    """Has a function make a first whole batch, of which it never changes one in place."""

    in_place = False

    def __init__(self, function: Any) -> None:
        """Call nothing yet."""
        self.call = of_one(function)

    def __call__(self, batch: Any) -> Any:
        """Return what it makes of a batch that is not None."""
        self.packages |= packages_in(batch)
        return None if batch is None else self.call(batch)


def _is_whole(given: Any, sample: Any) -> bool:
    """Whether a transform left all leaves of a container where they were, at most with another content."""
    if isinstance(sample, dict):
        return given.keys() == sample.keys() and all(_is_whole(given[key], sample[key]) for key in sample)
    if isinstance(sample, tuple | list):
        return len(given) == len(sample) and all(map(_is_whole, given, sample))
    return type(given) is type(sample) and (
        not isinstance(given, np.ndarray) or (given.dtype, given.shape) == (sample.dtype, sample.shape)
    )


# ---- the source ----


class TransformSource(WrappedSource):
    """A dataset whose samples the user's functions change, and whose workers they prepare."""

    def __init__(self, inner: Source, functions: Functions) -> None:
        """Compose the dataset and the functions."""
        super().__init__(inner)
        self.dataset = Composed(inner.dataset, functions)
        self.in_place = self.copies = False
        self.each = "collate_fn" if self.whole else "transform"  # is called with each of what the dataset gives
        self.has_transform = getattr(functions, self.each) is not None
        self.has_batch_transform = functions.batch_transform is not None
        self.at_once |= self.has_batch_transform
        self.skips = self.terms.on_error == "skip"
        self.runs_code = inner.runs_code or self.has_transform

    def hold(self, dataset: Composed) -> None:
        """Read this dataset, by these functions, from now on."""
        self.dataset, functions, terms = dataset, dataset.functions, self.terms
        self.inner.hold(dataset.dataset)
        if terms.trial is not None:
            terms.trial.call = of_one(getattr(functions, self.each))
        if terms.collate is not None:
            terms.collate.call = of_one(functions.collate_fn)

    def learn_inner(self) -> None:
        """Have the inner source learn."""
        functions = self.dataset.functions
        super().learn_inner()
        self.dataset = Composed(self.dataset, functions)

    def learn(self) -> None:
        """Set the spec: that of the samples as the transform leaves them."""
        self.learn_inner()
        self.accept(self.inner.spec, self.inner.rows)
        trial = self.terms.trial
        if trial is None or trial.in_place is None:
            return
        self.in_place, self.copies = trial.in_place, trial.copies
        if trial.packages:
            self.packages = trial.packages | (self.packages or frozenset())
        if self.in_place:
            _refuse_cast(self.spec)

    def users_own(self, dataset: Any) -> Any:
        """Return the user's dataset in what was sent to a worker."""
        return super().users_own(dataset.dataset)

    def begin_worker(self, reader: Reader) -> None:
        """Have the user's function prepare the worker."""
        found = worker_info()
        function = reader.dataset.functions.worker_init_fn
        if function is None or found is None:
            return
        try:
            function(found.id)
        except NOT_CTRL_C as error:
            raise failed(f"worker_init_fn({found.id})", error) from error

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Have samples transformed in their rows, or on their way there; then the batch."""
        writer, fill = reader.writer, self._open_samples(dataset, reader)
        if not self.has_batch_transform:
            return fill
        apply = partial(self._apply_to_batch, of_one(dataset.functions.batch_transform), reader)
        address = reader.end.claim_address
        return partial(BatchWriter(writer).change, address, fill, apply, self.whole, self.skips, reader.failed)

    def _open_samples(self, dataset: Any, reader: Reader) -> Fill:
        if not self.has_transform:
            return self.inner.open(dataset.dataset, reader)
        apply = partial(self._apply, of_one(getattr(dataset.functions, self.each)))
        if not self.in_place:
            return self.open_between(dataset.dataset, reader, Between(reader.writer, partial(self.made, apply)))
        reader.writer.change = RowTransform(reader.reseeded(apply) if self.inner.has_columns else apply)
        return self.inner.open(dataset.dataset, reader)

    def open_between(self, dataset: Any, reader: Reader, between: Between) -> Fill:
        """Have the samples of the dataset go another way than into their rows."""
        if self.inner.has_columns:
            rows = Rows(dataset, copied=True)
            return reader.by(between.samples, reader.reseeded(rows.__getitem__))
        reader.writer = cast("RowWriter", between)
        return self.inner.open(dataset, reader)

    def _apply_to_batch(self, call: Callable[[Any], Any], reader: Reader, indices: tuple[int, ...], batch: Any) -> Any:
        if not self.whole and not self.collates:  # whose random numbers go on
            reader.context.index = indices
            if self.reseed:
                reseed(reader.context)
        try:
            return call(batch)
        except NOT_CTRL_C as error:
            more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
            raise failed(f"the batch of {self.describe(indices[0])}{more}: batch_transform", error) from error

    def _apply(self, call: Callable[[Any], Any], index: int, sample: Any) -> Any:
        try:
            return call(sample)
        except NOT_CTRL_C as error:
            raise failed(f"{self.describe(index)}: {self.each}", error) from error

    def made(self, apply: Callable[[int, Any], Any], index: int, sample: Any) -> Any:
        """Return what a function that makes new samples makes of one, or of a whole batch; None for no batch."""
        made = apply(index, copied(sample) if self.copies else sample)
        if made is None and not self.whole:
            message = (
                f"{self.describe(index)}: transform returned None, expected a sample as of the first one; return it "
                f"always, or never and change it in place"
            )
            raise SpecError(message)
        return made


def failed(what: str, error: BaseException) -> FunctionError:
    """Say which function of the user's has raised, for which samples."""
    return FunctionError(f"{what} raised {type(error).__qualname__}: {error}".removesuffix(": "))


def _refuse_cast(spec: Spec) -> None:
    """Refuse to convert what a transform changes in the slot."""
    for leaf in spec.leaves:
        if leaf.cast is not None:
            message = (
                f"{leaf.path} is converted by its Array, but transform changes it in the slot, where it is float32 "
                f"already; return a new sample, or leave scale=, offset=, mean=, std= and layout= out"
            )
            raise SpecError(message)


class Between:
    """A RowWriter whose samples come by way of a function of their number and themselves."""

    def __init__(self, writer: RowWriter, make: Callable[[int, Any], Any]) -> None:
        self._writer = writer
        self._make = make
        self.rows = self.gather = None  # which write without a sample

    def samples(self, claim_address: int, getitem: Callable[[int], Any], context: Any, on_error: Any) -> bool:
        """Fill the claim with what is made of getitem(index)."""
        make = self._make
        return self._writer.samples(claim_address, lambda index: make(index, getitem(index)), context, on_error)

    def batch(  # as `RowWriter.batch`
        self, claim_address: int, getitem: Callable[[int], Any], most: int, context: Any, on_error: Any
    ) -> bool:
        """Fill the slot with what is made of the whole batch getitem(index), unless that is None."""

        def made(index: int) -> Any:
            batch = getitem(index)
            return None if batch is None else self._make(index, batch)

        return self._writer.batch(claim_address, made, most, context, on_error)

    def bulk(self, claim_address: int, getitems: Callable[[list[int]], Any], context: Any, on_error: Any) -> bool:
        """Fill the claim with what is made of getitems(indices)."""
        return self._writer.bulk(claim_address, partial(self.many, getitems, context), context, on_error)

    def many(self, getitems: Callable[[list[int]], Any], context: Any, indices: Sequence[int]) -> Iterator[Any]:
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
