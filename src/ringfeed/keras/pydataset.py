"""A loader of a Keras dataset, whose items are whole batches; no framework is imported here.

    numbers      0 1 2 3 4 5 6 7      the batches of one pass, in its order
    given out    0 1 2 3 4            to the ring, as far as it plans ahead
    taken        0 1                  the rest can begin anew from here, over the dataset as it is now

The dataset's hooks are not the loader's to run: Keras says when.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ringfeed.data.rng import SampleContext, enter
from ringfeed.data.sampler import Custom, Shuffled
from ringfeed.errors import RingfeedError, SpecError, WorkerError
from ringfeed.loader import Loader
from ringfeed.spec.spec import Spec
from ringfeed.transport.opened import as_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ringfeed.data.sampler import Sampler
    from ringfeed.engine.batches import BatchIterator
    from ringfeed.spec.builder import BuildBatch


def count_of(dataset: Any) -> int | None:
    """The batches of one pass over a Keras dataset as it is now; None where it has no end."""
    if hasattr(type(dataset), "num_batches"):
        count: int | None = dataset.num_batches
        return count
    return len(dataset)


def form_of(batches: Sequence[Any], dataset: Any) -> tuple[Spec, int]:
    """The spec that all of the first few batches have, and the rows to make room for.

    ``batch_size``, where a dataset has such an attribute, may be more than any of these batches has.
    """
    spec, rows = Spec.infer_batch(batches[0], 0)
    for number, batch in enumerate(batches[1:], start=1):
        other, more = Spec.infer_batch(batch, number)
        if other != spec:
            raise SpecError(f"batch {number} is {other!r}, and batch 0 is {spec!r}; give all batches one form")
        rows = max(rows, more)
    said = getattr(dataset, "batch_size", None)
    if isinstance(said, int) and not isinstance(said, bool):
        rows = max(rows, said)
    return spec, max(rows, 1)


class Order:
    """The numbers of the batches of one pass; without end where there are none to say."""

    def __init__(self, numbers: Sequence[int] | None, begin: int = 0) -> None:
        self._numbers = numbers
        self._begin = begin
        self._given = 0

    def __iter__(self) -> Iterator[int]:
        """Give the numbers out, and count them."""
        for number in self.rest(0):
            self._given += 1
            yield int(number)

    def rest(self, taken: int) -> Iterable[int]:
        """The numbers behind those that were taken."""
        if self._numbers is None:
            return itertools.count(self._begin + taken)
        return self._numbers[self._begin + taken :]

    def after(self, taken: int) -> Order:
        """The same order behind those that were taken."""
        return Order(self._numbers, self._begin + taken)

    def taken(self, waiting: int) -> int:
        """How many were taken, where so many of those given out are not."""
        return self._given - waiting


class DatasetLoader(Loader):
    """Feeds the batches of a Keras dataset.

    The dataset is asked for its length anew at each pass. What its hooks change reaches the workers with the next
    batch after one has run (see `changed`); what others change, with the next pass if the dataset has hooks or
    ``compares``: each pass is then begun by comparing all of the dataset with what the workers have.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int = 0,
        draw: Callable[[int], Sequence[int]] | None = None,
        compares: bool = False,
        **settings: Any,
    ) -> None:
        """Take the parameters of `Loader`; ``draw(count)`` makes the order of each pass, instead of ``shuffle``."""
        self._draw = draw
        self._shuffles = shuffle
        self._order = Order(())
        self._resumed: Order | None = None
        self._stale = False
        self._failed_at = 0
        super().__init__(dataset, batch_size=None, seed=seed, **settings)
        self._hooked = self._changes
        self._source.hooks = frozenset()  # Keras runs them
        self._changes = compares or self._hooked

    # ---- what Keras knows and does better ----

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._shuffles

    @property
    def is_in_order(self) -> bool:
        """Whether every pass comes in the dataset's own order, and has an end."""
        return not self._shuffles and self._draw is None and count_of(self._dataset) is not None

    @property
    def backend(self) -> str:
        """What the workers are: "process" or "thread"."""
        return self._settings.backend

    def __len__(self) -> int:
        """Return the batches of a pass over the dataset as it is now; TypeError where it has no end."""
        count = self.count()
        if count is None:
            message = "the length of this loader is unknown: its dataset has no end"
            raise TypeError(message)
        return count

    def count(self) -> int | None:
        """Return the batches of a pass over the dataset as it is now; None where it has no end."""
        with self._as_before():
            return count_of(self._dataset)

    def _make_sampler(self) -> Sampler:
        return Custom(self._order_of, None)  # the length may change in each pass

    # ---- the order, and where in it a pass is ----

    def _order_of(self, epoch: int) -> Order:
        if self._resumed is not None:
            self._order, self._resumed = self._resumed, None
            return self._order
        count = self.count()
        if count is None:
            numbers: Any = None
        elif self._draw is not None:
            numbers = self._draw(count)
        elif self._shuffles:
            numbers = Shuffled(count, self._seed).epoch(epoch).take(count)
        else:
            numbers = range(count)
        self._order = Order(numbers)
        return self._order

    def rest(self) -> Iterable[int]:
        """The numbers of the batches still to come after an error, the one that failed included."""
        return self._order.rest(self._failed_at)

    def _taken(self) -> int:
        waiting = 0 if self._engine is None else self._engine._waiting  # noqa: SLF001 - it counts, and changes nothing
        return self._order.taken(waiting)

    # ---- a dataset that changes ----

    def _begin_epoch(self, build: BuildBatch | None = None, *, wait_for_slots: bool = False) -> BatchIterator:
        """Begin the next pass over the dataset as it is now."""
        self._stale = False
        return super()._begin_epoch(build, wait_for_slots=wait_for_slots)

    def changed(self) -> None:
        """Have the workers look at the dataset anew, in the midst of a pass too: one of its hooks has run."""
        self._stale = self._hooked and self._settings.workers > 0
        self._recall_stale()

    def _recall_stale(self) -> None:
        """Have no batches come that `_next` does not see, as long as it is to bind them anew."""
        engine = self._engine
        if self._stale and engine is not None:
            engine.taker.recall()

    def _next(self, turn: int, build: BuildBatch | None, *, patient: bool) -> Any:
        if self._stale:
            self._resume(turn)
        before = self._taken()
        try:
            return super()._next(turn, build, patient=patient)
        except RingfeedError as error:
            took = isinstance(error, (SpecError, WorkerError)) and self._engine is not None
            self._failed_at = self._taken() - 1 if took else before
            raise
        finally:
            self._recall_stale()  # a hook may have run meanwhile, in another thread

    def _resume(self, turn: int) -> None:
        """Bind what is not taken yet anew, over the dataset as it is now."""
        with self._lock:
            if turn == self._turn and self._engine is not None and self._engine.pool.failure is None:
                self._stale = False
                self._resumed = self._order.after(self._taken())
                self._engine.update(self._dataset)
                number = self._next_epoch - 1
                self._engine.begin(self._sampler.epoch(number), number, pure=self._sampler.pure)


# ---- what users give ----


def loader_for(dataset: Any, settings: dict[str, Any]) -> DatasetLoader:
    """A loader with the settings that `feed` was given, and what the dataset says of the others."""
    for name in ("batch_size", "sampler"):
        if name in settings:
            message = (
                f"{name}= is not for feed(): the dataset says what a batch is and how many there are; leave it out"
            )
            raise TypeError(message)
    with as_before(dataset):
        check_dataset(dataset)
    workers, spec, most = (settings.pop(name) for name in ("workers", "spec", "max_batch_size"))
    if workers is None and getattr(dataset, "_workers", 1) > 1:
        workers = dataset.workers
    if spec is None:
        with as_before(dataset):
            spec, rows = form_of([_first_batch(dataset, settings["seed"])], dataset)
        most = rows if most is None else most
    return DatasetLoader(dataset, workers=workers, spec=spec, max_batch_size=most, **settings)


def check_dataset(dataset: Any) -> None:
    """Refuse what is no dataset of batches, or has none."""
    if not callable(getattr(type(dataset), "__getitem__", None)) or isinstance(dataset, (tuple, list, dict)):
        message = (
            f"a {type(dataset).__name__} is no Keras dataset, expected a keras.utils.PyDataset or an object whose "
            f"__getitem__ gives batches; give arrays and samples to ringfeed.Loader"
        )
        raise TypeError(message)
    if count_of(dataset) == 0:
        message = f"the dataset (a {type(dataset).__name__}) has length 0, expected a batch or more"
        raise ValueError(message)


def _first_batch(dataset: Any, seed: int) -> Any:
    """Batch 0, with the random numbers that `ringfeed.rng` gives it in the first epoch."""
    before = enter(SampleContext(seed))
    try:
        return dataset[0]
    finally:
        enter(before)


def run_hook(loader: DatasetLoader, name: str) -> None:
    """Call a hook of the loader's dataset, if it has it, and have the workers see what it changed."""
    hook = getattr(loader.dataset, name, None)
    if hook is not None:
        hook()
        loader.changed()
