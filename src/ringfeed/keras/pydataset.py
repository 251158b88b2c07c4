"""A Keras dataset, whose items are whole batches, and the loader that reads it.

No framework is imported here.

dataset ──> DatasetFeed ── begin ──> RingPass ──> the batches of one pass
                 ▲
                 └── run_hook, where Keras runs the dataset's hooks
"""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ringfeed._classes import keeps_state
from ringfeed.datasets.base import HOOKS
from ringfeed.datasets.indexed import IndexedSource, batches_in
from ringfeed.datasets.passes import Passes, PassOrder
from ringfeed.engine.hooks import Hooks
from ringfeed.errors import RingfeedError, SpecError, WorkerError
from ringfeed.keras.objects import ObjectBatches, holds_objects
from ringfeed.loader import Loader, runner_of, stream_of
from ringfeed.transport.copied import of_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from ringfeed.engine._iterator import BatchIterator, Progress
    from ringfeed.engine.engine import Engine
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.spec.builder import BuildBatch

    Count = Callable[[], int | None]
    Draw = Callable[[int | None, int], Sequence[int]]
    MadeOf = Callable[[Any], Any]
    """Makes a batch of what its slot holds."""

DRAWS = (np.random.Generator, np.random.RandomState, random.Random)
"""What a dataset may have of its own to draw from."""
PROCESSES = ("process", "spawn", "fork")
"""The loader's backends whose workers have a dataset of their own."""
MOST_LOOKED_AT = 1000  # batches, to find one that is not None


class DatasetFeed:
    """A Keras dataset and its loader, pass by pass.

    The dataset is asked for its length anew at each pass, which begins by comparing all of it with
    what worker processes have. What `run_hook` changes reaches the workers with the next batch, and
    what others change with the next epoch of Keras, also where a pass goes on over several.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        count: Count | None = None,
        draw: Draw | None = None,
        begin: int = 0,
        **settings: Any,
    ) -> None:
        """Take the parameters of `Loader`, and those of `PassOrder` and `Passes`."""
        self.dataset = dataset
        self.has_processes = (
            settings.get("backend", "process") in PROCESSES and settings.get("workers") != 0
        )
        count = count or partial(batches_in, dataset)
        self._order = PassOrder(count, draw, begin, shuffle=settings.get("shuffle", False))
        self.loader = Loader(Passes(dataset, self._order), batch_size=None, **settings)
        self._stream, self._runner = stream_of(self.loader), runner_of(self.loader)
        hooked = _HookedBatches(dataset, dataset, self._runner.source.terms)
        hooked.order = self._order
        # Keras calls what an object has of its own, too.
        hooked.hooks |= {
            name for name in HOOKS if callable(getattr(dataset, "__dict__", {}).get(name))
        }
        self.has_hooks = bool(hooked.hooks)
        self.hooks = Hooks(hooked, self.loader.timeout_s)
        """Counts the hooks, which Keras runs."""
        self._error: RingfeedError | None = None  # of what a hook has changed
        self._rest_at: int | None = (
            None  # where the pass goes on, while what was planned of it is withdrawn
        )
        self._failed_at: int | None = None

    @property
    def stream(self) -> BatchStream:
        """The loader as frameworks take it. Made for each, since this must not refer to itself."""
        return replace(
            self._stream, epoch=cast("Any", self.begin)
        )  # Keras asks for no more of an iterator

    def begin(self, build: BuildBatch | None = None) -> RingPass:
        """Begin the next pass over the dataset as it is now."""
        self._error, self._failed_at = None, None
        batches = self._stream.epoch(build)
        self._failed_at, self._rest_at = 0, None
        return RingPass(self, batches)

    def __iter__(self) -> RingPass:
        """Begin the next pass."""
        return self.begin()

    @property
    def position(self) -> int:
        """How many batches of the pass were taken.

        For a dataset without end it is the number of the next batch.
        """
        return self._order.now.given - self._waiting() if self._rest_at is None else self._rest_at

    def rest(self) -> Iterator[int] | None:
        """Give the numbers of the batches still to come after an error, from the failed one on.

        None where no pass has begun: then all of one is to come.
        """
        return None if self._failed_at is None else self._order.now.rest(self._failed_at)

    def run_hook(self, name: str) -> None:
        """Call a hook of the dataset, if it has it; the workers see what it changed.

        That holds amid a pass, too.
        """
        hook = getattr(self.dataset, name, None)
        if hook is not None:
            hook()
        self.hooks.count(name)
        if self.has_hooks or name == "on_epoch_begin":  # callbacks have run since the last epoch
            self.reload()

    def _waiting(self) -> int:
        """Return how many batches the order has given that were not taken."""
        engine = self._runner.engine
        return 0 if engine is None else engine.waiting

    def reload(self) -> None:
        """Have what was not taken yet read from the dataset as it is now."""
        if not self.loader.plan.workers:
            return
        runner = self._runner
        with runner.lock:
            engine = runner.engine
            is_over = not self._waiting() and runner.unfinished is None
            if engine is None or engine.pool.failure is not None or is_over:
                return
            if runner.unfinished is None and self.has_processes and self._is_unchanged(engine):
                return
            runner.unfinished = (
                self._plan_rest
            )  # first: what Ctrl-C leaves of it comes ahead of the next batch
            self._plan_rest()

    def _is_unchanged(self, engine: Engine) -> bool:
        """Whether the workers have the dataset as it is."""
        try:
            return engine.pool.change(self.dataset) is None
        except RingfeedError:  # which is raised in its place
            return False

    def _plan_rest(self) -> None:
        """Plan the rest of the pass under way anew.

        It begins again from the start where Ctrl-C has broken it off.
        """
        runner, order = self._runner, self._order
        engine, now = runner.engine, runner.position.running
        if engine is None or engine.pool.failure is not None or now is None:
            return
        engine.ring.begin(0)  # nothing is taken meanwhile
        if self._rest_at is None:
            self._rest_at = self.position
        engine.cancel()
        order.go_to(self._rest_at)
        self._rest_at = None  # from here on the position is what the order gives
        try:
            changed = engine.pool.change(runner.source.dataset)
            if changed is not None:
                engine.update(changed)
        except RingfeedError as error:
            self._error = error  # the next batch says so
        done = order.now.given - now.begun.samples
        engine.begin(
            order.now, now.begun.epoch, runner.epoch_id, now.progress, pure=order.pure, done=done
        )
        runner.unfinished = None

    def state(self) -> dict[str, Any] | None:
        """Return what the hooks have done to the dataset, for JSON.

        That is the state which the dataset gives, or how often the hooks have run.
        """
        if not keeps_state(self.dataset):
            return self.hooks.now()
        state = self.dataset.state_dict()
        try:
            return {
                "dataset": json.loads(json.dumps(state))
            }  # which the dataset may go on changing
        except TypeError as error:
            message = (
                f"state_dict() of the dataset (a {type(self.dataset).__name__}) holds what JSON "
                f"has not ({error}); return numbers, strings, lists and dicts of them"
            )
            raise TypeError(message) from None

    def take(self, batches: BatchIterator) -> Any:
        """Take the next batch of a pass, and remember where it failed."""
        before = self.position
        changed, self._error = self._error, None
        try:
            if changed is not None:  # by a hook, and the workers could not be sent it
                raise changed
            return next(batches)
        except RingfeedError as error:
            taken = isinstance(error, (SpecError, WorkerError)) and batches.failure is None
            self._failed_at = self.position - 1 if taken else before
            raise
        finally:
            del changed  # its traceback has this frame

    def close(self) -> None:
        """End the workers and give the memory back."""
        self.loader.close()


class Fed:
    """What `feed` returns: Keras reads its batches, and the user its loader."""

    dataset_feed: DatasetFeed

    @property
    def loader(self) -> Loader:
        """The loader that runs: its ``stats()``, ``plan``, ``memory``."""
        return self.dataset_feed.loader

    def close(self) -> None:
        """End the workers and give the memory back."""
        self.dataset_feed.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close it."""
        self.close()


class _HookedBatches(IndexedSource):
    """A Keras dataset, whose hooks are run once more with all that they draw from."""

    def run_hook(self, name: str) -> bool:
        """Call a hook, if the dataset has it; the order of an epoch is drawn ahead of its end."""
        if name == "on_epoch_end":
            self.order.epoch(0)  # orders that are drawn from global random numbers are of no number
        return super().run_hook(name)


class RingPass:
    """One pass over a dataset."""

    def __init__(self, feed: DatasetFeed, batches: BatchIterator) -> None:
        self._feed = feed
        self._batches = batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._feed.take(self._batches)

    @property
    def epoch_id(self) -> int:
        """The number of the loader's iterator."""
        return self._batches.epoch_id

    @property
    def progress(self) -> Progress:
        """How many batches were taken, with those of None."""
        return self._batches.progress

    def count_alone(self) -> Progress:
        """Return the progress, which the caller keeps up to date."""
        return self._batches.count_alone()


def open_feed(dataset: Any, options: dict[str, Any]) -> tuple[DatasetFeed, MadeOf]:
    """Return the feed of a dataset, and what makes a batch of what its slot holds."""
    try:
        return DatasetFeed(dataset, **options), _as_it_is
    except SpecError:
        objects = None if options["spec"] is not None else _objects_of(dataset, options)
        if objects is None:
            raise
    options |= {"spec": objects.spec, "max_batch_size": 1}
    return DatasetFeed(objects, **options), objects.take


def _as_it_is(batch: Any) -> Any:
    return batch


def _objects_of(dataset: Any, options: dict[str, Any]) -> ObjectBatches | None:
    """Return a dataset of such batches as one of arrays; None for any other."""
    sends = options["backend"] in PROCESSES
    first = (
        of_copy(dataset, _first_of)
        if sends and options["backend"] != "fork"
        else _first_of(dataset)
    )
    return ObjectBatches(dataset, first, sends=sends) if holds_objects(first) else None


def _first_of(dataset: Any) -> Any:
    """Return the first batch that is not None."""
    count = batches_in(dataset)
    numbers = range(MOST_LOOKED_AT if count is None else min(count, MOST_LOOKED_AT))
    return next((batch for batch in map(dataset.__getitem__, numbers) if batch is not None), None)


def check_dataset(dataset: Any) -> None:
    """Refuse what is no dataset of batches, or has none."""
    if not callable(getattr(type(dataset), "__getitem__", None)) or isinstance(
        dataset, (tuple, list, dict)
    ):
        message = (
            f"a {type(dataset).__name__} is no Keras dataset, expected a keras.utils.PyDataset or "
            "an object whose __getitem__ gives batches; give arrays and samples to ringfeed.Loader"
        )
        raise TypeError(message)
    if batches_in(dataset) == 0:
        message = f"the dataset (a {type(dataset).__name__}) has length 0, expected a batch or more"
        raise ValueError(message)


@contextmanager
def draws_kept(dataset: Any) -> Iterator[None]:
    """Undo what reading a batch here does to random numbers, global ones and the dataset's.

    Keras would read no batch here.
    """
    own = [draws for draws in getattr(dataset, "__dict__", {}).values() if isinstance(draws, DRAWS)]
    undo = [*map(_restorer, (random, np.random, *own))]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _restorer(draws: Any) -> Callable[[], object]:
    """Return what puts random numbers back to where they are now."""
    if isinstance(draws, np.random.Generator):
        return partial(setattr, draws.bit_generator, "state", draws.bit_generator.state)
    if hasattr(draws, "getstate"):  # Python's
        return partial(draws.setstate, draws.getstate())
    return partial(draws.set_state, draws.get_state())
