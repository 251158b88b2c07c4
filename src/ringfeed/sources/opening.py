"""Decides once what a dataset is: see the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.data.arrays import ArraySource
from ringfeed.data.batches import BatchSource
from ringfeed.data.samples import SampleSource
from ringfeed.sources.kinds import Kind, kind_of

if TYPE_CHECKING:
    from ringfeed.data.base import Source
    from ringfeed.data.terms import Terms


def open_source(dataset: Any, terms: Terms, *functions: Any) -> Source:
    """Decide once what a dataset is, or say what is wrong with it; nothing is read before `Source.learn`.

    ``functions``: what the workers do with its samples, in the order of `Functions`; None: nothing.

    Raises TypeError for what is no dataset, ValueError for settings that do not fit it, SpecError for columns that are
    none.
    """
    if any(one is not None for one in functions):
        from ringfeed.transforms.opening import open_changed  # noqa: PLC0415 - its room

        return open_changed(dataset, terms, functions, open_source)
    if (of_own := getattr(type(dataset), "__ringfeed_source__", None)) is not None:
        own: Source = of_own(dataset, terms, open_source)
        return own
    kind, columns = kind_of(dataset, terms)
    if kind is Kind.COLUMNS:
        return ArraySource(dataset, columns, terms)
    elements = BatchSource if terms.batch_size is None else SampleSource
    if kind is Kind.ITERABLE:
        from ringfeed.iterables.streams import StreamSource  # noqa: PLC0415 - its room

        return StreamSource(dataset, terms, elements)
    if kind is Kind.AWAITED:
        from ringfeed.waiting.sources import of_elements  # noqa: PLC0415 - its room

        return of_elements(elements, dataset, terms)
    return elements(dataset, dataset, terms)


def with_weights(source: Source) -> Source:
    """Have samples come with their numbers and weights."""
    from ringfeed.transforms.draws import DrawSource  # noqa: PLC0415 - its room

    return DrawSource(source)


def open_readers(source: Source, concurrency: int, readers: int, max_attempts: int) -> None:
    """Have a worker read so many samples at a time, or some workers read for the others; 0: neither."""
    if concurrency:
        from ringfeed.waiting.reader import open_waiting  # noqa: PLC0415 - its room

        open_waiting(source, concurrency)
    if readers:
        from ringfeed.relay.choice import open_relay  # noqa: PLC0415 - its room

        open_relay(source, max_attempts)


def end_loop(source: Source) -> None:
    """End the event loop of an async dataset in this process."""
    if source.innermost.is_async:
        from ringfeed.waiting import event_loop  # noqa: PLC0415 - its room

        event_loop.end_loop(source.given)
