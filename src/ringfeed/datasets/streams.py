"""Iterables as datasets: each is a stream, which one worker reads in order.

An element's number is its place in its iterable; with k of them, interleaved, element p of number r
is p * k + r. `stream_reader` reads them in a worker.
"""

from __future__ import annotations

from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any

from ringfeed._classes import class_names, is_iterable, length_of
from ringfeed._failure import Kind, kind_of
from ringfeed.datasets.base import Bars, Source
from ringfeed.datasets.peekable import Peekable, begin, has_state, is_iterator
from ringfeed.datasets.states import KeptStreams, states_size
from ringfeed.errors import SpecError
from ringfeed.orders.rng import has_drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Delivery, Kept, Terms
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler
    from ringfeed.ring._ring import Lease


class Interleave:
    """Several iterables as one dataset: each is read by one worker, all at the same time.

    Whole batches come in turn: batch 0 from the first iterable, batch 1 from the second, and so on,
    for any number of workers. An iterable that ends leaves the rotation, after a last batch that
    may be shorter; the epoch ends with the last iterable. Each may be whatever `Loader` takes as an
    iterable. docs/streams.md has other ways to combine iterables.
    """

    def __init__(self, iterables: Iterable[Any]) -> None:
        """Refuse what is no iterable, by TypeError, and no iterables at all, by ValueError."""
        self.iterables = (*iterables,)
        if not self.iterables:
            raise ValueError("Interleave() got no iterables; give at least one")
        for number, iterable in enumerate(self.iterables):
            if isinstance(iterable, Interleave) or not is_iterable(iterable):
                raise TypeError(
                    f"Interleave() got a {type(iterable).__name__} as number {number}, expected an "
                    "object with __iter__ and no __getitem__, an iterator, or a function that "
                    "returns an iterable"
                )


def _iterables_of(dataset: Any) -> tuple[Any, ...]:
    return dataset.iterables if isinstance(dataset, Interleave) else (dataset,)


def _peekable(dataset: Any) -> Any:
    """Wrap the iterators of a dataset, so that elements read to learn the spec are kept."""
    if isinstance(dataset, Interleave):
        return Interleave(map(_peekable, dataset.iterables))
    return Peekable(dataset) if is_iterator(dataset) else dataset


class StreamSource(Source):
    """A dataset of iterables, whose elements are samples or whole batches."""

    # Of an element, where one process reads them for all workers.
    size_of: Callable[[Any, int], int] | None = None

    def __init__(self, given: Any, terms: Terms) -> None:
        """Keep what is read of iterators to learn the spec."""
        super().__init__(given, _peekable(given), terms)
        self.iterables = _iterables_of(given)
        self.part = terms.part
        if self.part is not None:
            from ringfeed.datasets.stream_reader import check_part  # noqa: PLC0415 - ranks

            check_part(self.part, self.iterables)
        self.is_planned = self.part is not None and length_of(self.iterables[0]) is not None
        self.at_once |= self.part is not None  # a batch of one rank may have an element twice
        self.streams = len(self.iterables)
        self.local_only = any(map(is_iterator, self.iterables))
        self.element_size = 0

    def sampler(self, order: Sampler) -> Sampler:
        """Return the order of the streams; ValueError for any other: elements come in their own."""
        from ringfeed.datasets.round_robin import RoundRobinSampler  # noqa: PLC0415 - no worker
        from ringfeed.orders.sampler import Sequential  # noqa: PLC0415 - not for workers

        if type(order) is not Sequential:
            raise ValueError(
                f"{order.given_as} needs a dataset whose samples have numbers, and an iterable "
                "comes in its own order; shuffle inside the iterable, or give a dataset with "
                "__len__ and __getitem__"
            )
        return RoundRobinSampler(self.iterables, self.indices, is_planned=self.is_planned)

    def check_sendable(self) -> None:
        """Refuse a dataset of TensorFlow."""
        if "tensorflow.DatasetV2" in class_names(self.given):
            raise TypeError(
                "a tf.data.Dataset cannot be sent to a worker process; give the arrays or files "
                "that it is made of, or use backend='thread' to have it read here"
            )

    def learn(self) -> None:
        """Set the spec, from the first element of the first iterable unless it is given."""
        from ringfeed.datasets.indexed import IndexedSource  # noqa: PLC0415 - not for workers

        iterables = _iterables_of(self.dataset)
        first = _First(iterables[0], self.size_of, self.streams)
        found = IndexedSource(None, first, self.terms._replace(on_error="raise"))
        found.functions = self.functions
        found.learn()
        self.in_place, self.copies = found.in_place, found.copies
        if self._may_lose(iterables[0]):
            begun = first.begun()
            is_one = not isinstance(self.dataset, Interleave)
            self.dataset = begun if is_one else Interleave((begun, *iterables[1:]))
        keeps = first.has_state or any(map(has_state, self.iterables))
        self.states_size = states_size(self.streams, keeps=keeps)
        self.element_size = first.size
        self.has_gaps, self.packages = found.has_gaps, found.packages
        self.accept(found.spec, found.rows)

    def _may_lose(self, iterable: Any) -> bool:
        """Whether an element that was read to learn the spec might not come again.

        Not where it is a copy's, or where what an epoch gives depends on its number.
        """
        own = self.iterables[0]
        return iterable is own and not (self.has_hooks or self.reseed or hasattr(own, "set_epoch"))

    def users_own(self, dataset: Any) -> Any:
        """Return the user's dataset in what a worker reads."""
        if isinstance(dataset, Interleave):
            return Interleave(map(self.users_own, dataset.iterables))
        return dataset.iterable if isinstance(dataset, Peekable) else dataset

    def keep(self, store: Any, *, shared: bool) -> Kept:
        """Reserve memory for the states of the streams."""
        return KeptStreams(self, store, shared=shared)

    def cut(self, indices: Indices, workers: int) -> Iterable[tuple[Indices, int]]:
        """Give each batch to the worker that reads its iterable: they are a stream of the ring."""
        if self.streams == 1:
            return super().cut(indices, workers)
        batches = (
            indices[first : first + self.indices] for first in range(0, len(indices), self.indices)
        )
        return ((batch, int(batch[0]) % self.streams % max(workers, 1) + 1) for batch in batches)

    def delivery(self, lease: Lease, rows: int, epoch: Any) -> Delivery:
        """Say which elements are missing; a stream that has ended leaves the rotation."""
        found = super().delivery(lease, rows, epoch)
        ends = (record for _, record in lease.failures() if kind_of(record) is Kind.END)
        if (record := next(ends, None)) is None:
            return found
        index = lease.failed_rows(self.indices)[-1][1]
        # None: the only stream is planned to the end that len() says.
        order = None if epoch is None else epoch.whole
        is_first = order is None or order.end(index)
        ended = (self.describe_stream(index), record) if is_first and len(record) > 1 else None
        return found._replace(ended=ended, is_over=order is None or order.is_over)

    def barred(self, bars: Bars, epoch: int, row: int, index: int) -> Bars:
        """Return the elements of this epoch that no worker can read, with the first suspect."""
        if self.size_of is not None:
            return bars  # the worker that has died did not read it
        # None, where the element was read and what is made of it is to blame.
        first = self._suspects(row, index)[:1]
        return [*(bar for bar in bars if bar[0] == epoch), *((epoch, number) for number in first)]

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Read all streams by the numbers of their elements."""
        return reader.open_stream(self, _iterables_of(dataset))

    def _suspects(self, row: int, index: int) -> range:
        """Return the numbers of the elements that may be read while a worker is at a row."""
        if self.part is None:
            return range(index, index + 1)
        from ringfeed.datasets.stream_reader import suspects  # noqa: PLC0415 - of several ranks

        return suspects(self.part, row, index, reads_on=not self.is_planned)

    def describe_read(self, row: int, index: int, epoch: int | None = None) -> str:  # noqa: ARG002
        """Say which elements may be read while a worker is at a row of its batch."""
        found = self._suspects(row, index)
        if len(found) > 1:
            return f"one of elements {found[0]} to {found[-1]} of the iterable"
        return self.describe(index)

    def describe(self, index: int, epoch: int | None = None) -> str:  # noqa: ARG002 - see pack
        """Say which element an index means."""
        return f"element {index // self.streams} of {self.describe_stream(index)}"

    def describe_all(self, indices: list[int]) -> str:
        """Say at which elements some workers are."""
        more = "" if self.part is None or not indices else ", or those of other ranks around"
        return (", ".join(map(self.describe, indices)) or "the iterable") + more

    def describe_stream(self, index: int) -> str:
        """Say which iterable an index means."""
        return "the iterable" if self.streams == 1 else f"iterable {index % self.streams}"


class _First:
    """The first elements of an iterable, as a dataset that is read in order."""

    def __init__(
        self, iterable: Any, size_of: Callable[[Any, int], int] | None, parts: int
    ) -> None:
        self._iterable = iterable
        self._size_of = size_of
        self._parts = parts
        self.size = 0
        """The bytes of the largest element that was read, where processes send elements."""
        self._begun: Peekable | None = None
        self._has_drawn = False
        self.has_state = not isgeneratorfunction(iterable)
        """Whether what is read has states of its own, or may have some."""

    def _begin(self) -> Peekable:
        if isinstance(self._iterable, Peekable):
            self.has_state = self._iterable.has_state
            return self._iterable
        iterator, owner = begin(self._iterable)
        self.has_state = owner is not None
        return Peekable(self._iterable, iterator)

    def __getitem__(self, index: int) -> Any:
        if self._begun is None:
            self._begun = self._begin()
        try:
            element = self._begun.peek()
        except StopIteration:
            found = f"gives None in the place of all its {index} batches" if index else "is empty"
            one, remedy = (
                ("the iterable", "")
                if self._parts == 1
                else ("iterable 0 of Interleave()", "leave it out, or ")
            )
            raise SpecError(
                f"{one} {found}, so there is no element to infer the spec from; {remedy}give spec="
            ) from None
        if self._size_of is not None:
            self.size = max(self.size, self._size_of(element, index))
        self._has_drawn |= has_drawn()
        return element

    def begun(self) -> Any:
        """Return the iterable with what was read of it, or the iterable where it is to begin anew.

        That is where it has states, or has drawn the random numbers of one epoch.
        """
        begins_anew = self.has_state or self._has_drawn
        return self._iterable if begins_anew or self._begun is None else self._begun
