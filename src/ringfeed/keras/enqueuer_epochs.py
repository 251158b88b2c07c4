"""What runs from the `start()` of an enqueuer to its `stop()`: a loader, and the order of its epochs.

Order           which batch comes when, over all starts of an enqueuer; drawn as Keras draws it
Batches         a Keras dataset as the loader's workers see it
OrderedStream   the batches of a dataset, epoch after epoch
Failed          the error that kept an enqueuer from starting
"""

from __future__ import annotations

import itertools
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ringfeed.loader import Loader
from ringfeed.spec._fields import Fields
from ringfeed.spec.array import copy_of
from ringfeed.spec.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringfeed.data.sampler import Epoch, Sampler
    from ringfeed.engine.batches import BatchIterator
    from ringfeed.ring._ring import Lease


class Over(Exception):  # noqa: N818 - no error
    """There are no more batches."""


class Stream(Protocol):
    """What an enqueuer asks of what it has started."""

    @property
    def loader(self) -> Loader | None:
        """The loader that runs, if one does."""

    def take(self) -> Any:
        """Return the next batch; Over where there is none."""


def batches_in(dataset: Any) -> int | None:
    """Return how many batches an epoch has; None: without end. Keras 3 says it by ``num_batches``, Keras 2 by len."""
    count = dataset.num_batches if hasattr(type(dataset), "num_batches") else len(dataset)
    if count == 0:
        raise ValueError(
            f"the {type(dataset).__name__} has no batches (its length is 0), expected 1 or more; look at what it was "
            f"made of"
        )
    return count if count is None else int(count)


class Order:
    """Epochs as Keras orders them: each start shuffles 0, 1, 2, ... by ``random``, each further epoch the last order.

    A dataset without end goes on at its next start behind the last batch that was handed out.
    """

    def __init__(self, dataset: Any, *, shuffle: bool) -> None:
        self._dataset = dataset
        self._shuffle = shuffle
        self._drawn: list[Iterable[int]] = []  # and not yet begun
        self._indices: list[int] = []
        self._passed = 0  # of a dataset without end
        self.count: int | None = None  # batches in the epoch
        self.epochs = 0  # begun, over all starts

    def begin(self) -> None:
        """Draw the first epoch of a start."""
        self._indices = []
        self._drawn = [self._draw()]

    def __call__(self, number: int) -> Iterable[int]:
        """Return the order of the next epoch: the loader asks for each once, whatever its ``number``."""
        if self.count is not None:
            self.epochs = number + 1
        return self._drawn.pop() if self._drawn else self._draw()

    def _draw(self) -> Iterable[int]:
        self.count = batches_in(self._dataset)
        if self.count is None:
            return itertools.count(self._passed)
        if len(self._indices) != self.count:
            self._indices = list(range(self.count))
        if self._shuffle:
            random.shuffle(self._indices)
        return self._indices

    def passed(self, batches: int) -> None:
        """Note that so many batches of this start are done with."""
        if self.count is None:
            self._passed += batches


class Failed:
    """What could not be started."""

    def __init__(self, error: Exception) -> None:
        self.loader: Loader | None = None
        self._error = error

    def take(self) -> Any:
        """Raise what it was."""
        raise self._error


class _Ahead:
    """An order that may be read ahead of what is handed out, since it was drawn as a whole."""

    pure = True

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    def length(self) -> int | None:
        return self._sampler.length

    def epoch(self, number: int) -> Epoch:
        return self._sampler.epoch(number)


class OrderedLoader(Loader):
    """A loader that fills a slot again as soon as its batch was handed out, in spite of an order from outside."""

    def _make_sampler(self) -> Sampler:
        return _Ahead(super()._make_sampler())


class Batches:
    """A dataset that the loader reads in the enqueuer's order; what Keras' enqueuer does not call, this hides."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        """Return a whole batch."""
        return self._dataset[index]

    @property
    def num_batches(self) -> int | None:
        """Batches in an epoch; None: without end."""
        return batches_in(self._dataset)

    def on_epoch_end(self) -> None:
        """Run the dataset's own hook; the loader then sends the workers what it changed."""
        hook = getattr(self._dataset, "on_epoch_end", None)
        if hook is not None:
            hook()


class Maker(BatchBuilder):
    """Makes of a slot what is handed out, and remembers which batch it was."""

    def __init__(self, loader: Loader, *, copy: bool) -> None:
        self._fields = Fields(loader.spec, loader.plan.layout.offsets)
        self._unflatten = loader.spec.unflatten
        self._copy = copy
        self.batch = -1  # of the loader, over all its epochs

    def __call__(self, lease: Lease, rows: int) -> Any:
        """Return the batch, as copies or as views that hold the slot."""
        if self._copy:
            return self.private(lease, rows)
        self.batch = lease.batch
        return self._unflatten(self._fields.views(lease, rows))

    def private(self, lease: Lease, rows: int) -> Any:
        """Return the batch as copies."""
        self.batch = lease.batch
        return self._unflatten([*map(copy_of, self._fields.views(lease, rows))])


class OrderedStream:
    """One epoch after another; ``eager`` ends each with its last batch, else the call after it does."""

    def __init__(self, loader: Loader, order: Order, *, copy: bool, eager: bool) -> None:
        self.loader = loader
        self._order = order
        self._eager = eager
        self._make = Maker(loader, copy=copy)
        self._taking = threading.RLock()  # a signal handler may come in again
        self._before = 0  # batches of the epochs before this one
        self._given = -1  # the last that was handed out, as the loader counts
        self._pending: list[Any] = []  # the last of an epoch, while that is being ended
        self._error: Exception | None = None  # of the hook, for the call after the last batch
        self._batches: BatchIterator | None = self._begun()

    def take(self) -> Any:
        """Return the next batch, of the next epoch where this one is over."""
        with self._taking:
            while not self._pending:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                self._advance()
            return self._pending.pop()

    def _advance(self) -> None:
        """Have a batch pending, or the next epoch begun."""
        if self._batches is None:
            self._batches = self._begun()
        batch = next(self._batches, None)
        if batch is None:
            self._end()
            return
        self._pending.append(batch)
        self._pass()

    def _pass(self) -> None:
        """Note which batch was taken, and end the epoch where it was the last."""
        batch = self._make.batch
        self._order.passed(batch - self._given)
        self._given = batch
        if self._eager and self._order.count is not None and batch + 1 == self._before + self._order.count:
            self._end_early()

    def _begun(self) -> BatchIterator:
        return self.loader._begin_epoch(self._make)  # noqa: SLF001 - as its own adapters do

    def _end(self) -> None:
        """Leave an epoch that the loader has ended."""
        assert self._order.count is not None
        if self._given < self._before:
            raise ValueError(
                f"an epoch of {self._order.count} batches was None throughout, so that there is nothing to hand out; "
                f"return a batch from __getitem__"
            )
        self._before += self._order.count
        self._batches = None

    def _end_early(self) -> None:
        """End an epoch and begin the next; what goes wrong waits until the last batch has been handed out."""
        assert self._batches is not None
        try:
            next(self._batches, None)  # runs the hook
            self._end()
            self._batches = self._begun()
        except Exception as error:  # noqa: BLE001 - whatever the hook raises
            self._error = error


def open_ordered(dataset: Any, order: Order, options: dict[str, Any], *, copy: bool, eager: bool) -> OrderedStream:
    """Start a loader over a dataset, which may be another than at the last start."""
    order.begin()
    with random_states_kept():
        loader = OrderedLoader(Batches(dataset), batch_size=None, sampler=order, **options)
    loader.set_epoch(order.epochs)
    return OrderedStream(loader, order, copy=copy, eager=eager)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Undo what reading a batch in this process does to the global random states, which orders are drawn from."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's dataset may use it
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - as above
