"""What workers do with the user's functions, to the samples that a source reads.

    samples ──▶ transform ──▶ their rows in the slot ──▶ batch_transform
    samples ──▶ transform ──▶ a list ──▶ collate_fn ──▶ the slot ──▶ batch_transform

A transform that makes new samples is called on their way to the writer (`Reader.make`). One that
changes samples in place is given views of a row of the slot, which the writer has written before
(`RowWriter.change`). A batch that collate_fn makes is one ticket: its samples are read as for any
other batch, so each is named, blamed, timed and left out in the same way, but the writer keeps them
(`SampleKeeper`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import reworded
from ringfeed._classes import copied
from ringfeed._failure import NOT_CTRL_C, is_raised_here
from ringfeed.datasets._changes import BatchWriter, RowTransform, fill_draws, keeper_of
from ringfeed.datasets.functions import Functions, of_one
from ringfeed.errors import FunctionError, SpecError
from ringfeed.orders.rng import reseed
from ringfeed.spec.spec import Array, Spec, plain
from ringfeed.spec.values import OF_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ringfeed.datasets.reader import Fill, Reader


def begin_worker(functions: Functions, number: int) -> None:
    """Call worker_init_fn once, in the worker's own thread, ahead of its first sample."""
    if functions.worker_init_fn is not None:
        _call(functions.worker_init_fn, number, lambda: f"worker_init_fn({number})")


def open_changed(dataset: Any, reader: Reader) -> Fill:
    """Return what fills the reader's claim from the dataset, with all that is done to samples."""
    source = reader.source
    if not source.has_weights:
        return _open(dataset, reader)
    *offsets, index_at, weight_at = reader.port.offsets
    reader.writer = reader.writer_of(Spec(source.spec.tree[0]), tuple(offsets))
    fill = _open(dataset, reader)
    return partial(fill_draws, reader.end.claim_address, index_at, weight_at, fill)


def _open(dataset: Any, reader: Reader) -> Fill:
    """Return what fills the claim by way of the user's functions."""
    source, functions, writer = reader.source, reader.functions, reader.writer
    if functions is None:
        return source.open(dataset, reader)
    change, collates = _change(reader), source.collates
    if change is not None and source.in_place and not collates:
        writer.change = RowTransform(change if source.runs_code else reader.reseeded(change))
    elif change is not None:
        reader.make = partial(
            _made, reader, partial(_changed, change) if source.in_place else change
        )
    if not (collates or source.has_batch_transform):
        return source.open(dataset, reader)
    keeper = None
    if collates:
        # An iterable may fill the same memory for its next element.
        takes_as_given = getattr(functions.collate_fn, "takes_as_given", False)
        reader.writer = reader.writer_of(Spec(Array((0,), "uint8")), (0,))
        keeper = keeper_of(reader.writer, copies=source.streams > 0 and not takes_as_given)
    return partial(
        BatchWriter(writer, keeper).fill,
        reader.end.claim_address,
        source.open(dataset, reader),
        partial(_collated, reader, of_one(functions.collate_fn)) if collates else None,
        _batch_change(reader) if source.has_batch_transform else None,
        source,
        partial(_batch_failed, reader) if collates else reader.failed,
    )


def _call(function: Callable[[Any], Any], given: Any, where: Callable[[], str]) -> Any:
    """Call a function of the user's; its error names the function and the samples."""
    try:
        return function(given)
    except NOT_CTRL_C as error:
        if isinstance(error, SpecError) and is_raised_here(error):
            raise  # of what `Pack` makes of samples, which names them itself
        text = f"{where()} raised {type(error).__qualname__}: {error}".removesuffix(": ")
        raise FunctionError(text) from error


# ---- transform ----


def _change(reader: Reader) -> Callable[[int, Any], Any] | None:
    """Return what calls the function of each sample or whole batch; None: there is none."""
    source, function = reader.source, reader.functions.of_each(whole=reader.source.whole)
    if function is None:
        return None
    call, name = of_one(function), "collate_fn" if source.whole else "transform"
    return lambda index, sample: _call(call, sample, lambda: f"{source.describe(index)}: {name}")


def _made(reader: Reader, change: Callable[[int, Any], Any], index: int, sample: Any) -> Any:
    """Return the new sample, or the new whole batch, that a function makes."""
    source = reader.source
    if source.whole and sample is None:
        return None
    made = change(index, copied(sample) if source.copies else sample)
    if made is None and not source.whole:
        raise SpecError(
            f"{source.describe(index)}: transform returned None, expected a sample as "
            "of the first one; return it always, or never and change it in place"
        )
    return made


def many_made(reader: Reader, read: Callable[[list[int]], Any], indices: list[int]) -> Any:
    """Read many samples, and return what becomes of them on their way to the writer."""
    samples = read([*indices])
    is_list = isinstance(samples, list | tuple)
    if is_list and reader.make is None:
        return samples
    # A generator may fill the same memory for each.
    return _each_made(reader, samples, indices, is_kept=reader.source.collates and not is_list)


def _each_made(
    reader: Reader, found: Iterable[Any], indices: list[int], *, is_kept: bool
) -> Iterator[Any]:
    """Make a new sample of each, with its own random numbers."""
    samples = iter(found)
    for index, sample in zip(indices, samples, strict=False):
        made = copied(sample) if is_kept else sample
        if reader.make is not None:
            reader.context.index = index
            try:
                made = reader.make(index, made)
            finally:
                reader.context.index = None  # the next is read together with others
        yield made
    yield from samples  # more than were asked for


def _changed(change: Callable[[int, Any], Any], index: int, sample: Any) -> Any:
    """Return a sample that a transform in place was given as arrays, for it to change."""
    given = _arrays(sample)
    made = change(index, given)
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


# ---- batch_transform and collate_fn ----


def _begin_batch(reader: Reader, indices: tuple[int, ...]) -> None:
    """Give the user's code the random numbers of a batch."""
    reader.context.index = indices
    if reader.source.reseed:
        reseed(reader.context)


def _batch_change(reader: Reader) -> Callable[[tuple[int, ...], Any], Any]:
    """Return what calls batch_transform(indices, batch)."""
    source, call = reader.source, of_one(reader.functions.batch_transform)

    def where(indices: tuple[int, ...]) -> str:
        more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
        return f"the batch of {source.describe(indices[0])}{more}: batch_transform"

    def change(indices: tuple[int, ...], batch: Any) -> Any:
        if not source.whole and not source.collates:  # whose random numbers go on
            _begin_batch(reader, indices)
        return _call(call, batch, lambda: where(indices))

    return change


def _collated(
    reader: Reader, call: Callable[[Any], Any], indices: tuple[int, ...], samples: list[Any]
) -> Any:
    _begin_batch(reader, indices)
    return _call(call, samples, lambda: f"{reader.source.describe_batch(indices)}: collate_fn")


def _batch_failed(reader: Reader, row: int, index: int, error: BaseException) -> None:
    """Record why there is no batch."""
    if isinstance(error, SpecError):
        refuse_made(error, index, reader.source.describe_batch(reader.end.indices))
    reader.failed(row, index, error)


def refuse_made(error: SpecError, index: int, batch: str) -> None:
    """Reword an error: it names the batch, and collate_fn as its maker."""
    *parts, remedy = getattr(error, "parts", ("",))
    if remedy == OF_SAMPLES:
        vars(error)["parts"] = *parts, "return arrays with a row axis from __getitem__"
    reworded(error, index, batch, "collate_fn")
