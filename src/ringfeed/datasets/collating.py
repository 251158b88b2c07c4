"""`collate_fn`: one worker makes a whole batch of a list of samples, with as many rows as it likes.

    FirstBatch   the first batch that it makes, in the consumer: the spec is learnt from it
    Collating    what a worker does with the functions, to the samples that a source reads

    samples ──▶ transform ──▶ a list (`_Collector`) ──▶ collate_fn ──▶ the slot ──▶ batch_transform

A batch is one ticket. Its samples are read as for a plain batch, one by one or many at once, by a
RowWriter that writes rows of no bytes: so each sample is named, blamed, timed and left out as ever.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import reworded
from ringfeed._classes import copied
from ringfeed._failure import NOT_CTRL_C, End, Kind, kind_of
from ringfeed.datasets._changes import BatchWriter
from ringfeed.datasets.first import first_of, packages_in, read
from ringfeed.datasets.functions import of_one
from ringfeed.datasets.transformed import Between, Transforms, failed, open_between
from ringfeed.errors import SpecError, WorkerError
from ringfeed.orders.rng import SampleContext, installed, reseed
from ringfeed.spec.spec import Array, Spec, plain
from ringfeed.spec.values import OF_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.functions import Functions
    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Delivery
    from ringfeed.ring._ring import Lease
    from ringfeed.spec._rows import RowWriter

NAMED = 8  # samples of a batch
_NOTHING = np.empty(0, np.uint8)


def _batch_of(source: Source, indices: Sequence[int]) -> str:
    """Say which samples a batch is made of."""
    more = f" and {len(indices) - NAMED} more" if len(indices) > NAMED else ""
    return f"the batch of {source.describe_all([*indices[:NAMED]])}{more}"


def _in_words(error: SpecError, index: int, batch: str) -> None:
    """Have an error say which batch it is of, and that collate_fn makes it."""
    *parts, remedy = getattr(error, "parts", ("",))
    if remedy == OF_SAMPLES:
        vars(error)["parts"] = *parts, "return arrays with a row axis from __getitem__"
    reworded(error, index, batch, "collate_fn")


# ---- the first batch, in the consumer ----


class FirstBatch:
    """Has a collate_fn make a first batch."""

    def __init__(self, functions: Functions) -> None:
        """Call nothing yet."""
        self.functions = functions

    def learn(self, source: Source) -> None:
        """Set spec, rows and packages of a source of samples, from its first batch unless the spec is given."""
        terms, spec = source.terms, source.terms.given_spec()
        if spec is not None:
            if terms.trial is not None and terms.reads_first(source.length()):
                first_of(source, lambda sample, _: sample)
            source.accept(spec, terms.max_batch_size or source.indices)
            return
        read = self._read(source)
        samples, where = [*read.values()], _batch_of(source, [*read])
        batch = self._made(source, read, where)
        if batch is None:
            raise SpecError(
                f"{where}: collate_fn returned None, so there is no batch to infer the spec from; "
                "give spec="
            )
        try:
            spec, rows = Spec.infer_batch(batch, 0)
        except SpecError as error:
            _in_words(error, 0, where)
            raise
        if terms.max_batch_size is not None and terms.max_batch_size < rows:
            raise ValueError(
                f"max_batch_size={terms.max_batch_size}, but {where} has {rows} rows; raise it"
            )
        source.packages = packages_in(batch).union(*map(packages_in, samples))
        is_full = len(samples) == source.indices
        source.accept(
            spec, terms.max_batch_size or (rows if is_full else max(rows, source.indices))
        )

    def _read(self, source: Source) -> dict[int, Any]:
        """Return the samples of the first batch by their indices; fewer where some fail, or there are no more."""
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
        before = installed.context
        try:
            installed.context = SampleContext(source.seed, index=tuple(samples))
            return of_one(self.functions.collate_fn)([*samples.values()])
        except (SystemExit, GeneratorExit) as error:
            raise WorkerError(
                str(failed(f"{where}, made for the spec: collate_fn", error))
            ) from error
        except Exception as error:
            if source.terms.on_error != "skip":
                raise
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise SpecError(
                f"{where}, made for the spec: collate_fn raised {text}; on_error='skip' cannot "
                "leave it out before the spec is known: give spec="
            ) from error
        finally:
            installed.context = before


# ---- in the consumer, of each batch ----


def settle(source: Source, lease: Lease, epoch: Any) -> Delivery:
    """Say what has become of the samples; a batch that was made of the others has no gaps."""
    kinds, read = {kind_of(record) for _, record in lease.failures()}, source.indices
    if Kind.END in kinds:
        read = lease.failed_rows(read)[-1][0]
    found = source.settle(lease, read, epoch)._replace(is_whole=True)
    return (
        found._replace(failed=[], is_none=True, keeps_others=False)
        if Kind.NOTHING in kinds
        else found
    )


# ---- in a worker ----


class Collating(Transforms):
    """What workers do with the user's functions, of which one makes batches of samples."""

    def __init__(self, source: Source, functions: Functions) -> None:
        """Have one worker make all of each batch."""
        super().__init__(source, functions)
        source.at_once = source.collates = True

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Have samples collected, a batch made of them, and then changed."""
        source, collate, writer = reader.source, reader.functions.collate_fn, reader.writer
        rows = reader.writer_of(Spec(Array((0,), "uint8")), (0,))
        take = self._taken(reader)
        if source.streams and not getattr(collate, "takes_as_given", False):
            take = partial(_kept, take)
        collector = _Collector(rows, take, skips=self.skips)
        fill = open_between(dataset, reader, collector)
        return partial(
            BatchWriter(writer).collate,
            reader.end.claim_address,
            partial(collector.begin, fill),
            partial(_collated, of_one(collate), reader, collector),
            self.batch_change(reader),
            source.rows,
            self.skips,
            partial(_batch_failed, reader),
        )

    def _taken(self, reader: Reader) -> Callable[[int, Any], Any]:
        """Return what makes of a sample the one that collate_fn is given."""
        apply = self.sample_change(reader)
        if apply is None:
            return lambda _, sample: sample
        return (
            partial(_changed, apply) if self.in_place else partial(self.made, reader.source, apply)
        )


def _collated(
    call: Callable[[Any], Any], reader: Reader, collector: _Collector, indices: tuple[int, ...]
) -> Any:
    samples = collector.take()
    reader.context.index = indices
    if reader.source.reseed:
        reseed(reader.context)
    try:
        return call(samples)
    except NOT_CTRL_C as error:
        raise failed(f"{_batch_of(reader.source, indices)}: collate_fn", error) from error


def _batch_failed(reader: Reader, row: int, index: int, error: BaseException) -> None:
    if isinstance(error, SpecError):
        _in_words(error, index, _batch_of(reader.source, reader.end.indices))
    reader.failed(row, index, error)


def _kept(make: Callable[[int, Any], Any], index: int, element: Any) -> Any:
    """Return a copy of what is made of an iterable's element: the iterable may fill the same memory for the next."""
    return copied(make(index, element))


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


class _Collector(Between):
    """Keeps the samples that a RowWriter is to write."""

    def __init__(self, writer: RowWriter, make: Callable[[int, Any], Any], *, skips: bool) -> None:
        """``writer``: of rows of no bytes."""
        super().__init__(writer, make)
        self._skips = skips
        self._collected: list[Any] = []
        self._faults: list[tuple[int, int, Exception]] = []

    def begin(self, fill: Fill) -> bool:
        """Have the samples of a claim read, and then record what has failed: a claim has room for one reason alone.

        That is the end of an iterable, where the batch goes on without failed samples; else the
        first of these, and the next batch shows the end.
        """
        self._collected, self._faults = [], []
        is_read = fill()
        ends = [fault for fault in self._faults if type(fault[2]) is End]
        others = [fault for fault in self._faults if type(fault[2]) is not End]
        for fault in ends + others if self._skips else others or ends:
            self._on_error(*fault)
        return is_read

    def _note(self, row: int, index: int, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._faults.append((row, index, error))
        else:
            self._on_error(row, index, error)

    def take(self) -> list[Any]:
        """Return the samples that were read, which are kept no longer."""
        found, self._collected = self._collected, []
        return found

    def samples(
        self, claim_address: int, getitem: Callable[[int], Any], context: Any, on_error: Any
    ) -> bool:
        """Collect getitem(index) for each row of the claim."""

        def collect(index: int) -> Any:
            self._collected.append(self._make(index, getitem(index)))
            return _NOTHING

        self._on_error = on_error
        return self._writer.samples(claim_address, collect, context, self._note)

    def bulk(
        self, claim_address: int, getitems: Callable[[list[int]], Any], context: Any, on_error: Any
    ) -> bool:
        """Collect getitems(indices) for all rows of the claim."""

        def listed(indices: list[int]) -> Any:
            given = getitems(indices)  # a generator may fill the same memory for each
            return given if isinstance(given, list | tuple) else [*map(copied, given)]

        self._on_error = on_error
        return super().bulk(claim_address, listed, context, self._note)

    def many(  # type: ignore[override]
        self, getitems: Callable[[list[int]], Any], context: Any, indices: Sequence[int]
    ) -> list[Any]:
        """Collect getitems(indices), unless these are other than as many."""
        found = [*super().many(getitems, context, indices)]
        if len(found) == len(indices):
            self._collected += found
        return [_NOTHING] * len(found)
