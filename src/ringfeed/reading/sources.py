"""Which datasets may wait, and how many of their samples are in flight.

AwaitedSamples, AwaitedBatches   datasets with an ``async def __getitem__``
concurrency_of                   the loader's parameter, checked
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ringfeed._checks import check_count
from ringfeed.datasets.batches import BatchSource
from ringfeed.datasets.samples import SampleSource
from ringfeed.reading.event_loop import completed, end_loop

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.terms import Terms

DEFAULT_MOST = 100  # in flight for an async dataset whose user says nothing, and no more than two batches
MOST = 10_000


class AwaitedSamples(SampleSource):
    """A dataset whose ``await dataset[i]`` is one sample."""

    is_async = True

    def end_reading(self) -> None:
        """End the event loop of the dataset in this process."""
        end_loop(self.dataset)

    def element(self, index: int) -> Any:
        """Return an element of the dataset, awaited in its event loop."""
        return completed(self, index)


class AwaitedBatches(BatchSource):
    """A dataset whose ``await dataset[i]`` is a whole batch."""

    is_async = True

    def end_reading(self) -> None:
        """End the event loop of the dataset in this process."""
        end_loop(self.dataset)

    def element(self, index: int) -> Any:
        """Return an element of the dataset, awaited in its event loop."""
        return completed(self, index)


AWAITED: dict[type[Source], type[Source]] = {SampleSource: AwaitedSamples, BatchSource: AwaitedBatches}


def of_elements(kind: type[Source], dataset: Any, terms: Terms) -> Source:
    """Return the source of a dataset with an index; TypeError where the wrong method is async."""
    _refuse_async_methods(dataset)
    if inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None)):
        kind, terms = AWAITED[kind], terms._replace(waits=True)
    return kind(dataset, dataset, terms)


def _refuse_async_methods(dataset: Any) -> None:
    for name in ("read_into", "__getitems__"):
        if inspect.iscoroutinefunction(getattr(type(dataset), name, None)):
            message = (
                f"{name} of {type(dataset).__name__} is async def, and only __getitem__ may be; leave {name} out, and "
                f"give concurrency= samples that are awaited at a time"
            )
            raise TypeError(message)


def concurrency_of(source: Source, asked: object, workers: int, *, is_auto: bool) -> int:
    """Return how many samples are in flight in all workers together; 0 where each worker reads one at a time.

    Raises TypeError for what is no int and for async datasets in others, ValueError for what does not fit.
    """
    concurrency = check_count("concurrency", asked, 1, MOST)
    _refuse_async_members(source)
    if concurrency is None:
        if not source.is_async:
            return 0
        concurrency = max(workers, min(2 * source.indices, DEFAULT_MOST))
    why = _misfit(source, asked, concurrency, workers, is_auto=is_auto)
    if why:
        raise ValueError(why)
    return concurrency


def _misfit(source: Source, asked: object, concurrency: int, workers: int, *, is_auto: bool) -> str:
    """Say why so many samples cannot be in flight; empty where they can."""
    given = "an async __getitem__" if asked is None else f"concurrency={concurrency}"
    if type(source) not in {*AWAITED, *AWAITED.values()}:
        return f"{given} is for a dataset whose __getitem__ waits, and {_kind(source)}; leave concurrency= out"
    if is_auto:
        return f"{given} with workers='auto': each worker has its part of the samples in flight; give a number"
    if source.reseed:
        return (
            f"reseed=True with {given}: it seeds states that all samples in flight share; draw from ringfeed.rng(), "
            f"and leave reseed= out"
        )
    if concurrency < workers:
        return (
            f"concurrency={concurrency} with {workers} workers: it counts the samples in flight in all of them, and "
            f"each has one at least; raise it, or give workers={concurrency}"
        )
    return ""


def _kind(source: Source) -> str:
    """Say why a source has nothing that could wait beside other samples."""
    if source.streams:
        return "an iterable is read one element after another (Interleave reads several side by side)"
    if not source.runs_code:
        return "of arrays no code runs"
    return f"{type(source.given).__name__} reads its datasets itself"


def _refuse_async_members(source: Source) -> None:
    """Raise TypeError for an async dataset within Mix or Pack, whose rows are read by plain calls."""
    members = [*getattr(source, "members", ()), *filter(None, [getattr(source, "inner", None)])]
    if any(member.is_async for member in members):
        message = (
            f"{type(source.given).__name__} of a dataset with an async def __getitem__, which it cannot await; give "
            f"that dataset to a loader of its own"
        )
        raise TypeError(message)
