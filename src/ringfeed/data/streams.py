"""Iterables as datasets: each is a stream, which one worker reads in order, by the numbers of its elements.

An element's number is its place in its iterable; with k of them, interleaved, element p of number r is p * k + r. A
reader asked for the next one goes on; for an earlier one, after a worker's death, it starts anew and skips.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from ringfeed._classes import class_names
from ringfeed.data.base import Source
from ringfeed.errors import SpecError
from ringfeed.orders.rng import reseed
from ringfeed.ring.failure import End, Kind, encode, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ringfeed.data.base import Bars, Delivery, Fill, Reader, Terms
    from ringfeed.data.round_robin import RoundRobinEpoch
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler
    from ringfeed.ring._ring import Lease


class Interleave:
    """Several iterables as one dataset: each is read by one worker, all of them side by side.

    Batch 0 comes from the first, batch 1 from the second, and so on in turn, whatever the number of workers. One that
    has ended leaves the rotation, after a last batch that may be shorter; the epoch is over when all have. Each may
    be whatever `Loader` takes as an iterable.
    """

    def __init__(self, iterables: Iterable[Any]) -> None:
        """Refuse what is no iterable, by TypeError, and no iterables at all, by ValueError."""
        self.iterables = (*iterables,)
        if not self.iterables:
            raise ValueError("Interleave() got no iterables; give at least one")
        for number, iterable in enumerate(self.iterables):
            if isinstance(iterable, Interleave) or not is_iterable(iterable):
                message = (
                    f"Interleave() got a {type(iterable).__name__} as number {number}, expected an object with "
                    f"__iter__ and no __getitem__, an iterator, or a function that returns an iterable"
                )
                raise TypeError(message)


class PeekableIterator:
    """An iterator, and the elements that were read of it ahead of its epoch."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        """Read nothing yet."""
        self._iterator = iterator
        self._first: list[Any] = []
        self._begun = False

    def peek(self) -> Iterator[Any]:
        """Read the first elements, which the epoch will have nevertheless."""
        for element in self._iterator:
            self._first.append(element)
            yield element

    def __iter__(self) -> Iterator[Any]:
        """Return all elements, once: an iterator that was interrupted cannot go back."""
        if self._begun:
            message = f"an iterator ({type(self._iterator).__name__}) was interrupted, and cannot be read again"
            raise ValueError(message)
        self._begun = True
        first, self._first = self._first, []
        return chain(first, self._iterator)


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset has no elements by number, but some in order; or is a function that returns such."""
    # Torch's IterableDataset inherits a __getitem__ that only raises.
    if isinstance(dataset, Interleave) or "torch.IterableDataset" in class_names(dataset):
        return True
    if callable(getattr(type(dataset), "__getitem__", None)):
        return False
    return callable(getattr(type(dataset), "__iter__", None)) or callable(dataset)


def _iterables_of(dataset: Any) -> tuple[Any, ...]:
    return dataset.iterables if isinstance(dataset, Interleave) else (dataset,)


def is_iterator(iterable: Any) -> bool:
    """Whether it can be read but once, as generators, files, zip() and map() can."""
    return callable(getattr(type(iterable), "__next__", None)) and callable(getattr(type(iterable), "__iter__", None))


def _peekable(dataset: Any) -> Any:
    """Return the dataset with its iterators wrapped, so that elements that were read to learn the spec stay."""
    if isinstance(dataset, Interleave):
        return Interleave(map(_peekable, dataset.iterables))
    return PeekableIterator(dataset) if is_iterator(dataset) else dataset


def _opened(iterable: Any) -> Iterator[Any]:
    found = iterable if hasattr(type(iterable), "__iter__") else iterable()
    if not hasattr(type(found), "__iter__") and not hasattr(type(found), "__getitem__"):
        message = f"the dataset is a function that returned a {type(found).__name__}, expected an iterable"
        raise TypeError(message)
    return iter(found)


class StreamSource(Source):
    """A dataset of iterables, whose elements are samples or whole batches."""

    def __init__(self, given: Any, terms: Terms, element_kind: type[Source]) -> None:
        """Keep what is read of iterators to learn the spec; ``element_kind``: what knows a dataset of such elements."""
        super().__init__(given, _peekable(given), terms)
        self.iterables = _iterables_of(given)
        self.element_kind = element_kind
        self.streams = len(self.iterables)
        self.local_only = any(map(is_iterator, self.iterables))

    def sampler(self, *, shuffle: bool | int, sampler: Any) -> Sampler:
        """Return the order of the streams; ValueError for any other: elements come in their own."""
        if shuffle or sampler is not None:
            parameter = f"shuffle={shuffle!r}" if shuffle else getattr(sampler, "parameter", "sampler=")
            message = (
                f"{parameter} needs a dataset whose samples have numbers, and an iterable comes in its own order; "
                f"shuffle inside the iterable, or give a dataset with __len__ and __getitem__"
            )
            raise ValueError(message)
        from ringfeed.data.round_robin import RoundRobinSampler  # noqa: PLC0415 - no worker needs it

        return RoundRobinSampler(self.iterables, self.indices)

    def check_sendable(self) -> None:
        """Refuse a dataset of TensorFlow."""
        if "tensorflow.DatasetV2" in class_names(self.given):
            message = (
                "a tf.data.Dataset cannot be sent to a worker process; give the arrays or files that it is made of, "
                "or use backend='thread' to have it read here"
            )
            raise TypeError(message)

    def learn(self) -> None:
        """Set the spec, from the first element of the first iterable unless it is given."""
        first = _First(_iterables_of(self.dataset)[0])
        self.elements = found = self.element_kind(None, first, self.terms._replace(on_error="raise"))
        found.learn()
        found.dataset = None  # and the iterator with it, which may have a file open
        self.spec, self.rows, self.has_gaps, self.packages = found.spec, found.rows, found.has_gaps, found.packages

    def cut(self, indices: Indices, workers: int) -> Iterable[tuple[Indices, int]]:
        """Have each batch filled by the worker that reads its stream."""
        if self.streams == 1:
            return super().cut(indices, workers)
        batches = (indices[first : first + self.indices] for first in range(0, len(indices), self.indices))
        return ((batch, int(batch[0]) % self.streams % max(workers, 1) + 1) for batch in batches)

    def settle(self, lease: Lease, rows: int, epoch: RoundRobinEpoch | None) -> Delivery:
        """Say what has become of the elements; take a stream that has ended in this batch out of the rotation."""
        found = self.elements.settle(lease, rows, epoch)
        record = next((record for _, record in lease.failures() if kind_of(record) is Kind.END), None)
        if record is None or epoch is None:
            return found
        index = lease.failed_rows(self.indices)[-1][1]
        by_error = epoch.end(index) and len(record) > 1
        return found._replace(ended=(self._stream(index), record) if by_error else None, is_over=epoch.is_over)

    def barred(self, bars: Bars, epoch: int, index: int) -> Bars:
        """Return the elements of this epoch that no worker can read, this one included."""
        return [*(bar for bar in bars if bar[0] == epoch), (epoch, index)]

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Read all streams by the numbers of their elements."""
        return _Streams(self, dataset, reader).read_claim

    def note_failure(self, reader: Reader, row: int, index: int, error: BaseException) -> None:
        """Cut the claim off where a stream has ended; record other errors in the words of an iterable."""
        if type(error) is not End:
            if isinstance(error, SpecError):
                error.args = (str(error).replace(f"dataset[{index}]", self.describe(index), 1),)
            super().note_failure(reader, row, index, error)
        elif reader.end.cut(row):  # only the first row that the iterable does not have counts
            cause = error.__cause__
            reader.end.fail(row, encode(End()) + (encode(cause)[1:] if cause is not None else b""))

    def describe(self, index: int) -> str:
        """Say which element an index means."""
        return f"element {index // self.streams} of {self._stream(index)}"

    def describe_all(self, indices: list[int]) -> str:
        """Say at which elements some workers are."""
        return ", ".join(map(self.describe, indices)) or "the iterable"

    def _stream(self, index: int) -> str:
        return "the iterable" if self.streams == 1 else f"iterable {index % self.streams}"


class _First:
    """The first elements of an iterable, as those of a dataset that is asked for one after another."""

    def __init__(self, iterable: Any) -> None:
        self._iterator = iterable.peek() if isinstance(iterable, PeekableIterator) else _opened(iterable)

    def __getitem__(self, index: int) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            found = f"gives None in the place of all its {index} batches" if index else "is empty"
            message = f"the iterable {found}, so there is no element to infer the spec from; give spec="
            raise SpecError(message) from None


class _Streams:
    """The elements of all iterables, by their numbers."""

    def __init__(self, source: StreamSource, dataset: Any, reader: Reader) -> None:
        self._source, self._reader = source, reader
        self._iterables = _iterables_of(dataset)
        self._epoch: int | None = None  # that the streams are read for
        self._streams: list[_Stream] = []
        whole = reader.by(reader.writer.batch, self._element, source.rows)
        self._fill = whole if source.whole else reader.by(reader.writer.samples, self._element)

    def read_claim(self) -> bool:
        if (row := self._reader.end.killed) is not None:
            number = self._reader.end.indices[row]
            self._stream(number).bar = number // len(self._iterables)  # before an element that ends each process
        try:
            return self._fill()
        except KeyboardInterrupt:
            self._epoch = None  # how far the streams were read is unknown: begin them anew
            raise

    def _element(self, number: int) -> Any:
        """Return an element; End at the end, whose ``__cause__`` is what has ended the iterable before its time."""
        return self._stream(number).element(number // len(self._iterables))

    def _stream(self, number: int) -> _Stream:
        count, epoch = len(self._iterables), self._reader.context.epoch
        if self._epoch != epoch:
            self._epoch = epoch
            self._streams = [_Stream(one, count, place, self._prepare) for place, one in enumerate(self._iterables)]
            for at, barred in self._reader.port.bars:
                if at == epoch:
                    self._streams[barred % count].bar = barred // count
        return self._streams[number % count]

    def _prepare(self, number: int) -> None:
        """Have the random numbers be those of an element; also of one that is only skipped."""
        self._reader.context.index = number
        if self._source.reseed:
            reseed(self._reader.context)


class _Stream:
    """One iterable, being read."""

    def __init__(self, iterable: Any, count: int, place: int, prepare: Callable[[int], object]) -> None:
        self.bar: int | None = None  # the position of an element that is not to be read
        self._iterable = iterable
        self._count, self._place = count, place  # among those that are interleaved
        self._prepare = prepare  # is called with the number of each element ahead of its reading
        self._restart()

    def _restart(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._asked = 0  # elements, the end included
        self._ended = False
        self._error: BaseException | None = None  # that ended it

    def element(self, position: int) -> Any:
        if position < self._asked:
            self._restart()
        while self._asked < position and not self._ended:
            try:
                self._next()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                raise End from self._error
        if self._ended or (self.bar is not None and position >= self.bar):
            raise End from self._error
        return self._next()

    def _next(self) -> Any:
        position, self._asked = self._asked, self._asked + 1
        if position == self.bar:
            self._ended = True
            self._error = RuntimeError("what comes after an element that ended its workers cannot be read")
            raise End
        self._prepare(position * self._count + self._place)
        try:
            if self._iterator is None:
                self._iterator = _opened(self._iterable)
            return next(self._iterator)
        except StopIteration:
            self._ended = True
            raise End from None
        except BaseException as error:
            self._ended, self._error = True, error
            raise
