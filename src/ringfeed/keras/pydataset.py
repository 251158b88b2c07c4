"""A Keras dataset, whose items are whole batches, and the loader that reads it.

No framework is imported here.

dataset ──> DatasetFeed ── loader, stream ──> passes
                 ▲
                 └── run_hook, where Keras runs the dataset's hooks
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ringfeed._classes import keeps_state
from ringfeed.datasets.base import HOOKS
from ringfeed.datasets.indexed import IndexedSource, batches_in
from ringfeed.datasets.passes import Passes, PassOrder
from ringfeed.engine.hooks import Hooks
from ringfeed.errors import RingfeedError, SpecError
from ringfeed.keras.objects import ObjectBatches, holds_objects
from ringfeed.loader import Loader, runner_of, stream_of
from ringfeed.system.machine import HAS_PROCESSES
from ringfeed.transport.copied import of_copy, random_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from ringfeed.engine.engine import Engine


DRAWS = (np.random.Generator, np.random.RandomState, random.Random)
"""What a dataset may have of its own to draw from."""
PROCESSES = ("process", "spawn", "fork") if HAS_PROCESSES else ()
"""The loader's backends whose workers have a dataset of their own."""
MOST_LOOKED_AT = 1000  # batches, to find one that is not None


class DatasetFeed:
    """A Keras dataset and its loader, pass by pass.

    The dataset is asked for its length anew at each pass, which begins by comparing all of it with
    what worker processes have. What `run_hook` changes reaches the workers with the next batch, and
    what others change with the next epoch of Keras, also where a pass goes on over several.
    """

    def __init__(self, dataset: Any, order: PassOrder | None = None, /, **settings: Any) -> None:
        """Take the parameters of `Loader`; ``order``: in the place of what ``shuffle`` says."""
        self.dataset = dataset
        self._order = order or PassOrder(
            partial(batches_in, dataset), shuffle=settings.get("shuffle", False)
        )
        self.loader = Loader(Passes(dataset, self._order), batch_size=None, **settings)
        self.stream, self._runner = stream_of(self.loader), runner_of(self.loader)
        options = self._runner.options
        self.has_processes = options.sends and options.remote is None
        hooked = _HookedBatches(dataset, dataset, self._runner.source.terms)
        hooked.order = self._order
        # Keras calls what an object has of its own, too.
        hooked.hooks |= {
            name for name in HOOKS if callable(getattr(dataset, "__dict__", {}).get(name))
        }
        self.hooks = Hooks(hooked, self.loader.timeout_s)
        """Counts the hooks, which Keras runs."""

    def rest(self, done: int | None) -> Iterator[int] | None:
        """Give the numbers of the pass under way after ``done`` that this run has taken.

        None where no pass has begun: then all of one is to come.
        """
        return None if done is None else self._order.now.rest(done)

    def run_hook(self, name: str) -> None:
        """Call a hook of the dataset, if it has it; the workers see what it changed.

        That holds amid a pass, too.
        """
        hook = getattr(self.dataset, name, None)
        if hook is not None:
            hook()
        # Callbacks have run since the last epoch.
        self.count(name, reloads=name == "on_epoch_begin")

    def count(self, name: str, *, reloads: bool = False) -> None:
        """Count a hook that has run, and have what was not taken yet read from the dataset anew.

        ``reloads``: where the dataset has no hooks, too.
        """
        self.hooks.count(name)
        if not ((self.hooks or reloads) and self.loader.plan.workers):
            return
        runner = self._runner
        with runner.lock:
            engine, pending = runner.engine, runner.unfinished
            if pending is not None:
                pending()
            elif engine is not None and engine.waiting and not self._is_unchanged(engine):
                self._plan_rest()

    def _is_unchanged(self, engine: Engine) -> bool:
        """Whether worker processes have the dataset as it is; threads may have read it before."""
        try:
            return self.has_processes and engine.pool.change(self.dataset) is None
        except RingfeedError:  # which is raised in its place
            return False

    def _plan_rest(self, done: int | None = None) -> None:
        """Plan the pass under way anew after so many batches of this rank, or after the last taken.

        What Ctrl-C leaves of it comes ahead of the next batch.
        """
        runner, numbers = self._runner, self._order.now
        engine, now, shard = runner.engine, runner.position.running, runner.position.shard
        if engine is None or engine.pool.failure is not None or now is None:
            return
        if done is None:
            done = engine.ring.plan_taken - now.progress.planned_before
            done -= engine.intake.kept is not None
        runner.unfinished = partial(self._plan_rest, done)
        engine.ring.begin(0)  # nothing is taken meanwhile
        engine.cancel()
        numbers.go_to(done * shard.step)
        now.progress.planned_before = engine.ring.plan_taken - done
        runner.unfinished = self._plan_rest  # from here on the ring counts what is taken
        try:
            changed = engine.pool.change(runner.source.dataset)
            if changed is not None:
                engine.update(changed)
        except RingfeedError as error:  # the next batch says so
            engine.intake.error, engine.intake.error_epoch_id = error, runner.epoch_id
        engine.begin(
            shard.part_of(numbers),
            now.begun.epoch,
            runner.epoch_id,
            now.progress,
            pure=self._order.pure,
            done=done,
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
            raise TypeError(
                f"state_dict() of the dataset (a {type(self.dataset).__name__}) holds what JSON "
                f"has not ({error}); return numbers, strings, lists and dicts of them"
            ) from None

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


def open_feed(
    dataset: Any, order: PassOrder, options: dict[str, Any]
) -> tuple[DatasetFeed, Callable[[Any], Any]]:
    """Return the feed of a dataset, and what makes a batch of what its slot holds."""
    try:
        return DatasetFeed(dataset, order, **options), lambda batch: batch
    except SpecError:
        if options["spec"] is not None:
            raise
        backend = options["backend"]
        look = of_copy if backend in PROCESSES[:2] else lambda given, use: use(given)
        first = look(dataset, _first_of)
        if not holds_objects(first):
            raise
    objects = ObjectBatches(dataset, first, sends=backend in PROCESSES)
    options |= {"spec": objects.spec, "max_batch_size": 1}
    return DatasetFeed(objects, order, **options), objects.take


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
        raise TypeError(
            f"a {type(dataset).__name__} is no Keras dataset, expected a keras.utils.PyDataset or "
            "an object whose __getitem__ gives batches; give arrays and samples to ringfeed.Loader"
        )
    if batches_in(dataset) == 0:
        raise ValueError(
            f"the dataset (a {type(dataset).__name__}) has length 0, expected a batch or more"
        )


def draws_kept(dataset: Any) -> AbstractContextManager[None]:
    """Undo what reading a batch here does to random numbers, global ones and the dataset's."""
    own = getattr(dataset, "__dict__", {}).values()
    return random_kept(*(draws for draws in own if isinstance(draws, DRAWS)))
