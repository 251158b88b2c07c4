"""Iterables as datasets: what counts as one, and how a worker reads its elements by their numbers.

An element's number is its place in its iterable; with k of them, interleaved, element p of number r is p * k + r. A
reader asked for the next one goes on; for an earlier one, after a worker's death, it starts anew and skips.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from ringfeed.ring.failure import End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


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
            message = "Interleave() got no iterables; give at least one"
            raise ValueError(message)
        for number, iterable in enumerate(self.iterables):
            if isinstance(iterable, Interleave) or not is_iterable(iterable):
                message = (
                    f"Interleave() got a {type(iterable).__name__} as number {number}, expected an object with "
                    f"__iter__ and no __getitem__, an iterator, or a function that returns an iterable"
                )
                raise TypeError(message)


class Once:
    """An iterator, and what was read of it ahead of its epoch."""

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
        """Return all there is, once: who has lost his place cannot find it again."""
        if self._begun:
            message = f"an iterator ({type(self._iterator).__name__}) was interrupted, and cannot be read again"
            raise ValueError(message)
        self._begun = True
        first, self._first = self._first, []
        return chain(first, self._iterator)


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset has no elements by number, but some in order; or is a function that returns such."""
    kind = type(dataset)
    if isinstance(dataset, Interleave) or _is_torch_iterable(kind):
        return True
    if callable(getattr(kind, "__getitem__", None)):
        return False
    return callable(getattr(kind, "__iter__", None)) or callable(dataset)


def _is_torch_iterable(kind: type) -> bool:
    """Torch's IterableDataset inherits a __getitem__ that only raises."""
    return any(base.__name__ == "IterableDataset" and base.__module__.startswith("torch.") for base in kind.__mro__)


def iterables_of(dataset: Any) -> tuple[Any, ...]:
    """Return the iterables of a dataset; none where its elements have numbers."""
    if isinstance(dataset, Interleave):
        return dataset.iterables
    return (dataset,) if is_iterable(dataset) else ()


def is_iterator(iterable: Any) -> bool:
    """Whether it can be read but once, as generators, files, zip() and map() can."""
    return callable(getattr(type(iterable), "__next__", None)) and callable(getattr(type(iterable), "__iter__", None))


def keep(dataset: Any) -> Any:
    """Return the dataset with its iterators wrapped, so that what is read of them to learn the spec is not lost."""
    if isinstance(dataset, Interleave):
        return Interleave(map(keep, dataset.iterables))
    return Once(dataset) if is_iterator(dataset) else dataset


def ahead_of(iterable: Any) -> Iterator[Any]:
    """Return an iterator over what an epoch to come will read."""
    return iterable.peek() if isinstance(iterable, Once) else _opened(iterable)


def _opened(iterable: Any) -> Iterator[Any]:
    found = iterable if hasattr(type(iterable), "__iter__") else iterable()
    if not hasattr(type(found), "__iter__") and not hasattr(type(found), "__getitem__"):
        message = f"the dataset is a function that returned a {type(found).__name__}, expected an iterable"
        raise TypeError(message)
    return iter(found)


class Readers:
    """The iterables of a dataset, read by the numbers of their elements; one per worker thread."""

    def __init__(
        self,
        dataset: Any,
        epoch: Callable[[], int],
        prepare: Callable[[int], object],
        bars: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Read nothing yet; ``prepare(number)`` is called ahead of each element that is read.

        ``bars``: epoch and number of elements that others could not read and live (see `bar`).
        """
        self._iterables = iterables_of(dataset)
        self._epoch = epoch
        self._prepare = prepare
        self._bars = bars
        self._begun: int | None = None
        self._readers: list[_Reader] = []

    def __getitem__(self, number: int) -> Any:
        """Return an element; End at the end, whose ``__cause__`` is what has ended the iterable before its time."""
        return self._reader(number).element(number // len(self._iterables))

    def bar(self, number: int) -> None:
        """End before an element that ends the process of whoever reads it."""
        self._reader(number).bar(number // len(self._iterables))

    def forget(self) -> None:
        """Begin all of them anew, for who does not know how far they were read."""
        self._begun = None

    def _reader(self, number: int) -> _Reader:
        count = len(self._iterables)
        if self._begun != self._epoch():
            self._begun = self._epoch()
            self._readers = [_Reader(one, count, place, self._prepare) for place, one in enumerate(self._iterables)]
            for epoch, barred in self._bars:
                if epoch == self._begun:
                    self._readers[barred % count].bar(barred // count)
        return self._readers[number % count]


class _Reader:
    """One iterable, being read."""

    def __init__(self, iterable: Any, count: int, place: int, prepare: Callable[[int], object]) -> None:
        self._iterable = iterable
        self._count, self._place = count, place  # among those that are interleaved
        self._prepare = prepare
        self._bar: int | None = None
        self._restart()

    def _restart(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._asked = 0  # elements, the end included
        self._ended = False
        self._error: BaseException | None = None  # that ended it

    def bar(self, position: int) -> None:
        self._bar = position

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
        if self._ended or (self._bar is not None and position >= self._bar):
            raise End from self._error
        return self._next()

    def _next(self) -> Any:
        position, self._asked = self._asked, self._asked + 1
        if position == self._bar:
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
