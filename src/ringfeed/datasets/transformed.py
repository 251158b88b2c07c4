"""What workers do with the user's functions, to the samples that a source reads.

    samples ──▶ transform ──▶ their rows in the slot ──▶ batch_transform
    samples ──▶ transform ──▶ a list ──▶ collate_fn ──▶ the slot ──▶ batch_transform

    Transforms   opens this way, and knows what the first sample has shown: see `trial`
    Making       a step from the dataset to the writer: transform makes a new sample of each
    Collecting   a step that keeps the samples for collate_fn; their rows have no bytes

A transform that changes samples in place is given views of a row of the slot, which the writer has
written before (`RowWriter.change`). A batch that collate_fn makes is one ticket. Its samples are
read as for any other batch, so each sample is named, blamed, timed and left out in the same way.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import reworded
from ringfeed._classes import copied
from ringfeed._failure import NOT_CTRL_C, End
from ringfeed.datasets._changes import BatchWriter, RowTransform
from ringfeed.datasets.functions import of_one
from ringfeed.datasets.worker_info import worker_info
from ringfeed.errors import FunctionError, SpecError
from ringfeed.orders.rng import reseed
from ringfeed.spec.spec import Array, Spec, plain
from ringfeed.spec.values import OF_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.functions import Functions
    from ringfeed.datasets.reader import Fill, Reader

_NOTHING = np.empty(0, np.uint8)


class Transforms:
    """What workers do with the user's functions."""

    def __init__(self, source: Source, functions: Functions) -> None:
        """Make the source read by way of the functions."""
        self.in_place = self.copies = False
        self.has_batch_transform = functions.batch_transform is not None
        self.skips = source.terms.on_error == "skip"
        source.functions, source.transforms = functions, self
        source.collates = functions.collate_fn is not None and not source.whole
        source.at_once |= self.has_batch_transform or source.collates

    def learnt(self, source: Source) -> Self:
        """Return a copy that knows what the first sample has shown.

        SpecError for what cannot be changed in a slot.
        """
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
        """Call worker_init_fn once, in the worker's own thread, ahead of its first sample."""
        found, function = worker_info(), reader.functions.worker_init_fn
        if function is not None and found is not None:
            _call(function, found.id, lambda: f"worker_init_fn({found.id})")

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Return what fills the reader's claim from the dataset by way of the functions."""
        source, writer, address = reader.source, reader.writer, reader.end.claim_address
        apply, change = self._sample_change(reader), self._batch_change(reader)
        if source.collates:
            return self._open_collating(dataset, reader, apply, change)
        if apply is not None and self.in_place:
            writer.change = RowTransform(apply if source.runs_code else reader.reseeded(apply))
        elif apply is not None:
            reader.steps += (Making(reader, apply, copies=self.copies),)
        fill = source.open(dataset, reader)
        if change is None:
            return fill
        return partial(
            BatchWriter(writer).change,
            address,
            fill,
            change,
            source.whole,
            self.skips,
            reader.failed,
        )

    def _open_collating(self, dataset: Any, reader: Reader, apply: Any, change: Any) -> Fill:
        source, writer, collate = reader.source, reader.writer, reader.functions.collate_fn
        reader.writer = reader.writer_of(Spec(Array((0,), "uint8")), (0,))
        if apply is not None:
            apply = partial(_changed, apply) if self.in_place else apply
            reader.steps += (Making(reader, apply, copies=self.copies),)
        # An iterable may fill the same memory for its next element.
        copies = source.streams > 0 and not getattr(collate, "takes_as_given", False)
        collecting = Collecting(reader, skips=self.skips, copies=copies)
        reader.steps += (collecting,)
        return partial(
            BatchWriter(writer).collate,
            reader.end.claim_address,
            partial(collecting.begin, source.open(dataset, reader)),
            partial(_collated, of_one(collate), reader, collecting),
            change,
            source.rows,
            self.skips,
            collecting.batch_failed,
        )

    def _sample_change(self, reader: Reader) -> Callable[[int, Any], Any] | None:
        """Return what calls the function of each sample or whole batch; None: there is none."""
        source = reader.source
        name = "collate_fn" if source.whole else "transform"
        function = getattr(reader.functions, name)
        if function is None:
            return None
        call = of_one(function)
        return lambda index, sample: _call(
            call, sample, lambda: f"{source.describe(index)}: {name}"
        )

    def _batch_change(self, reader: Reader) -> Callable[[tuple[int, ...], Any], Any] | None:
        """Return what calls batch_transform(indices, batch); None where there is none."""
        if not self.has_batch_transform:
            return None
        source, call = reader.source, of_one(reader.functions.batch_transform)

        def where(indices: tuple[int, ...]) -> str:
            more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
            return f"the batch of {source.describe(indices[0])}{more}: batch_transform"

        def apply(indices: tuple[int, ...], batch: Any) -> Any:
            if not source.whole and not source.collates:  # whose random numbers go on
                _begin_batch(reader, indices)
            return _call(call, batch, lambda: where(indices))

        return apply


def _call(function: Callable[[Any], Any], given: Any, where: Callable[[], str]) -> Any:
    """Call a function of the user's; its error names the function and the samples."""
    try:
        return function(given)
    except NOT_CTRL_C as error:
        text = f"{where()} raised {type(error).__qualname__}: {error}".removesuffix(": ")
        raise FunctionError(text) from error


def _begin_batch(reader: Reader, indices: tuple[int, ...]) -> None:
    """Give the user's code the random numbers of a batch."""
    reader.context.index = indices
    if reader.source.reseed:
        reseed(reader.context)


class Making:
    """A step that makes a new sample of each, or a new whole batch."""

    def __init__(self, reader: Reader, apply: Callable[[int, Any], Any], *, copies: bool) -> None:
        """``copies``: the function gets a copy, since it may return what it was given."""
        self._source, self._context = reader.source, reader.context
        self._apply = apply
        self._copies = copies

    def _make(self, index: int, sample: Any) -> Any:
        whole = self._source.whole
        if whole and sample is None:
            return None
        made = self._apply(index, copied(sample) if self._copies else sample)
        if made is None and not whole:
            raise SpecError(
                f"{self._source.describe(index)}: transform returned None, expected a sample as "
                "of the first one; return it always, or never and change it in place"
            )
        return made

    def each(self, read: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return what reads a sample and makes a new one of it."""
        return lambda index: self._make(index, read(index))

    def many(self, read: Callable[[list[int]], Any]) -> Callable[[list[int]], Any]:
        """Return what reads many samples and makes a new one of each, with its random numbers."""
        return partial(self._many, read)

    def _many(self, read: Callable[[list[int]], Any], indices: list[int]) -> Iterator[Any]:
        samples = iter(read([*indices]))
        for index, sample in zip(indices, samples, strict=False):
            self._context.index = index
            try:
                made = self._make(index, sample)
            finally:
                self._context.index = None  # the next is read together with others
            yield made
        yield from samples  # more than were asked for


# ---- collate_fn ----


def refuse_made(error: SpecError, index: int, batch: str) -> None:
    """Reword an error: it names the batch, and collate_fn as its maker."""
    *parts, remedy = getattr(error, "parts", ("",))
    if remedy == OF_SAMPLES:
        vars(error)["parts"] = *parts, "return arrays with a row axis from __getitem__"
    reworded(error, index, batch, "collate_fn")


def _collated(
    call: Callable[[Any], Any], reader: Reader, collecting: Collecting, indices: tuple[int, ...]
) -> Any:
    samples = collecting.take()
    _begin_batch(reader, indices)
    return _call(call, samples, lambda: f"{reader.source.describe_batch(indices)}: collate_fn")


def _changed(apply: Callable[[int, Any], Any], index: int, sample: Any) -> Any:
    """Return a sample that a transform in place was given as arrays, for it to change."""
    given = _arrays(sample)
    made = apply(index, given)
    return given if made is None else made


def _arrays(sample: Any) -> Any:
    """Return a sample with new arrays for its leaves, numbers too."""
    sample = plain(sample)
    if isinstance(sample, dict):
        return {key: _arrays(child) for key, child in sample.items()}
    if isinstance(sample, tuple | list):
        parts = [_arrays(child) for child in sample]
        return sample._make(parts) if hasattr(sample, "_make") else type(sample)(parts)
    return np.array(sample)


class Collecting:
    """A step that keeps the samples of a claim, and what has failed until all are read."""

    def __init__(self, reader: Reader, *, skips: bool, copies: bool) -> None:
        """``copies``: a sample may share its memory with the next."""
        self._reader = reader
        self._record = reader.failed
        reader.failed = self._note  # type: ignore[method-assign]
        self._skips, self._copies = skips, copies
        self._samples: list[Any] = []
        self._faults: list[tuple[int, int, BaseException]] = []

    def begin(self, fill: Fill) -> bool:
        """Read the samples of a claim, then record why some failed: there is room for one reason.

        That is the end of an iterable, where the batch goes on without failed samples; else the
        first of these, and the next batch shows the end.
        """
        self._samples, self._faults = [], []
        is_read = fill()
        for fault in sorted(self._faults, key=lambda it: (type(it[2]) is End) != self._skips):
            self._record(*fault)
        return is_read

    def _note(self, row: int, index: int, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._faults.append((row, index, error))
        else:
            self._record(row, index, error)

    def batch_failed(self, row: int, index: int, error: BaseException) -> None:
        """Record why there is no batch."""
        if isinstance(error, SpecError):
            where = self._reader.source.describe_batch(self._reader.end.indices)
            refuse_made(error, index, where)
        self._record(row, index, error)

    def take(self) -> list[Any]:
        """Return the samples that were read, which are kept no longer."""
        samples, self._samples = self._samples, []
        return samples

    def each(self, read: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return what reads a sample and keeps it."""

        def collect(index: int) -> Any:
            sample = read(index)
            self._samples.append(copied(sample) if self._copies else sample)
            return _NOTHING

        return collect

    def many(self, read: Callable[[list[int]], Any]) -> Callable[[list[int]], Any]:
        """Return what reads many samples and keeps them, unless these are other than as many."""

        def collect(indices: list[int]) -> Any:
            samples = read(indices)
            if not isinstance(samples, list | tuple):
                samples = [*map(copied, samples)]  # a generator may fill the same memory for each
            if len(samples) == len(indices):
                self._samples += samples
            return [_NOTHING] * len(samples)

        return collect
