"""Ctrl-C at every point of `next` where Python may raise it.

It costs no batch, no error and no count.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest

import points
import ringfeed
from ahead import loader_with
from ringfeed.orders.prioritized import pack


class Numbers:
    """Samples that are their own index."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.int64(index)


def loader_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Make a loader that fills its batches itself, so that each life comes to the same points."""
    sizes = {} if "batch_sampler" in settings else {"batch_size": 4}
    how = {**sizes, "workers": 0, "timeout_s": 0.5, "spec": ringfeed.Array((), "int64"), **settings}
    return loader_with(dataset, **how)


class Dicts(Numbers):
    """Samples with a name."""

    def __getitem__(self, index: int) -> Any:
        return {"number": np.int64(index)}


class Gaps(Numbers):
    """The samples 1 and 3 raise, and all of the second batch."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        if index in {1, 3} or index // 4 == 1:
            raise ValueError(index)
        return super().__getitem__(index)


class Ended:
    """An iterable that an error ends, in the midst of a batch."""

    def __iter__(self) -> Any:
        yield from map(np.int64, range(5))
        raise ValueError(5)


class Broken(Numbers):
    """While sample 9 is read, what would end a pool of workers comes about."""

    loader: Any = None

    def __getitem__(self, index: int) -> Any:
        if index == 9:
            engine = self.loader()._runner.engine
            engine.pool.failure = ringfeed.WorkerError("all workers are gone")
            engine.ring.alarm()
        return super().__getitem__(index)


def broken() -> ringfeed.Loader:
    """Make a loader whose pool ends amid the epoch."""
    dataset = Broken()
    loader = loader_of(dataset)
    dataset.loader = weakref.ref(loader)
    return loader


class Nothing(Numbers):
    """Whole batches, some of them None."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return None if index % 5 == 1 else np.full((3,), index)


WHOLE = {"batch_size": None, "max_batch_size": 3}
LISTS = [[0, 1, 2], [5], [7, 7, 3, 2], [9, 8]]


def ended(count: int) -> Any:
    """Return iterables, all but one of which an error ends."""
    return ringfeed.datasets.Interleave([Ended] * count + [lambda: iter(map(np.int64, range(6)))])


def mix_of(**settings: Any) -> Any:
    """Mix three datasets."""
    return ringfeed.datasets.Mix([np.arange(7), np.arange(11), np.arange(5)], **settings)


CASES = {
    "in order": lambda: loader_of(Numbers()),
    "shuffled": lambda: loader_of(Numbers(), shuffle=True, slots=2),
    "a list as sampler": lambda: loader_of(Numbers(), sampler=[*range(24)]),
    "a sampler that is not pure": lambda: loader_of(
        Numbers(), sampler=lambda _: iter(range(24)), slots=2
    ),
    "lists as batches": lambda: loader_of(
        Numbers(), batch_sampler=LISTS, max_batch_size=4, slots=2
    ),
    "failed rows that are skipped": lambda: loader_of(Gaps(), on_error="skip"),
    "failed rows that are raised": lambda: loader_of(Gaps()),
    "failed rows, and no short batches": lambda: loader_of(
        Gaps(), on_error="skip", drop_remainder=True
    ),
    "batches of None": lambda: loader_of(Nothing(), spec=ringfeed.Array((), "int64"), **WHOLE),
    "an iterable": lambda: loader_of(lambda: iter(map(np.int64, range(22)))),
    "an iterable's error": lambda: loader_of(Ended(), on_error="skip"),
    "an iterable's error that is raised": lambda: loader_of(Ended()),
    "several iterables": lambda: loader_of(ended(1), on_error="skip", slots=2),
    "a rank of two": lambda: loader_of(
        Numbers(), sampler=[*range(21)], shard=ringfeed.Shard(1, 2), batch_size=3
    ),
    "a mix": lambda: loader_of(mix_of(weights=[3, 2, 1])),
    "a mix with quotas": lambda: loader_of(mix_of(weights=[3, 2, 1], per_batch=True)),
    "draws by priority": lambda: loader_of(
        Numbers(), sampler=ringfeed.orders.PrioritizedSampler(len(Numbers())), slots=2
    ),
    "a mix of changing weights": lambda: loader_of(
        mix_of(weights=lambda _, batch: [3, 1 + batch % 2, 1]), slots=2
    ),
}


def numbers(batch: Any) -> list[Any]:
    """Return what is in a batch of one leaf or of several."""
    return [leaf.tolist() for leaf in batch] if isinstance(batch, tuple) else batch.tolist()


LATER = [pytest.mark.once, pytest.mark.long]
ON_EACH_PYTHON = {"in order", "lists as batches", "failed rows that are skipped", "an iterable"}


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=[] if one in ON_EACH_PYTHON else LATER) for one in CASES]
)
def test_ctrl_c_at_any_point_of_next_changes_nothing(case: str) -> None:
    """All batches and errors come, in order, are counted once, and the state is as without it."""
    assert points.differing(CASES[case], numbers) == {}


WORKERS: dict[str, tuple[dict[str, Any], int]] = {
    "threads": ({"workers": 2, "backend": "thread"}, 1),
    "processes": ({"workers": 2, "backend": "fork"}, 5),
    "an epoch ahead": ({"workers": 1, "backend": "thread", "ahead": True, "slots": 4}, 1),
}


@pytest.mark.parametrize("how", WORKERS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_ctrl_c_beside_workers_changes_nothing(how: str, on_error: str) -> None:
    """Whatever fills the batches, they come once, with their errors."""
    settings, step = WORKERS[how]
    settings = {"on_error": on_error, "timeout_s": 60, **settings}
    assert points.differing(lambda: loader_of(Gaps(), **settings), np.ndarray.tolist, step) == {}


TOLD_AGAIN = {
    "an iterable's error that is raised"
}  # which ends it each time that it is read, to wherever it goes on


@pytest.mark.once
@pytest.mark.parametrize("case", sorted(CASES.keys() - TOLD_AGAIN))
def test_a_state_at_any_place_has_the_rest(case: str) -> None:
    """What was handed out or raised does not come again, all else does."""
    assert points.rests(CASES[case], numbers) == {}


def test_what_ends_the_workers_is_raised_once() -> None:
    """Ctrl-C while workers are ended does not make a broken epoch look like one that is over."""
    counting = points.Points()
    points.live(broken, np.ndarray.tolist, counting)
    wrong = {}
    for number in counting.moments():
        hit = points.Points(number)
        seen = points.live(broken, np.ndarray.tolist, hit).seen
        if seen.count("all workers are gone") != 1 or seen[:2] != [[0, 1, 2, 3], [4, 5, 6, 7]]:
            wrong[hit.where] = seen
    assert wrong == {}


BUILT = {
    "copies": (lambda: loader_of(Numbers(), copy=True), np.ndarray.tolist),
    "a dict": (
        lambda: loader_of(Dicts(), spec={"number": ringfeed.Array((), "int64")}),
        lambda batch: batch["number"].tolist(),
    ),
}


@pytest.mark.parametrize("case", BUILT)
def test_ctrl_c_in_a_builder_costs_no_batch(case: str) -> None:
    """What was taken and not handed out comes with the next call."""
    assert points.differing(*BUILT[case]) == {}


def rest_of(point: int, state: dict[str, Any]) -> tuple[points.Points, list[int]]:
    """Go on from a state; Ctrl-C comes at a point of the first `iter`.

    The second one goes on all the same.
    """
    hit = points.Points(point)
    with loader_of(Numbers()) as loader:
        loader.load_state_dict(state)
        try:
            with hit:
                batches = iter(loader)
        except KeyboardInterrupt:
            batches = iter(loader)
        return hit, [int(index) for batch in batches for index in batch]


def test_ctrl_c_in_iter_leaves_the_place_that_was_loaded() -> None:
    """An epoch whose iterator the user's code never got is not over, and its rest is not lost."""
    with loader_of(Numbers()) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    counting, expected = rest_of(points.ALL, state)
    assert expected == list(range(8, 24))
    wrong = {}
    for point in counting.moments():
        hit, found = rest_of(point, state)
        if found != expected:
            wrong[hit.where] = found[:4]
    assert wrong == {}


class Many(Numbers):
    """So many that a sum is added up anew only where a number below it has changed."""

    def __len__(self) -> int:
        return 400


UPDATES: list[Any] = [([7], [900.0]), ([203, 20], [900.0, 500.0])]


def many_drawn() -> ringfeed.orders.PrioritizedSampler:
    """Return a sampler of 24 of them."""
    return ringfeed.orders.PrioritizedSampler(len(Many()), num_samples=24)


def drawn_by(updates: list[Any]) -> list[int]:
    """Return the draws of an epoch that follows some updates."""
    sampler = many_drawn()
    for update in updates:
        sampler.update(*update)
    return sampler.bind(None, 0).epoch(0).take(len(sampler)).tolist()


def draws_about(point: int) -> tuple[points.Points, list[int], list[int]]:
    """Read an epoch with Ctrl-C at a point of its second `next`, between two updates of priorities.

    Returns the draws that came, and those that should: by the updates ahead of each.
    """
    hit, sampler = points.Points(point), many_drawn()
    found: list[Any] = []
    expected: list[int] = []
    with loader_of(Many(), sampler=sampler, slots=2, copy=True) as loader:
        batches = iter(loader)
        for count, update in enumerate(UPDATES):
            with suppress(KeyboardInterrupt), hit if count else nullcontext():
                found.append(next(batches)[1:])
            state = sampler.state_dict()
            made = int(state["first"]) + state["draws"].size
            expected += drawn_by(UPDATES[:count])[len(expected) : made]
            sampler.update(*update)
        found += [batch[1:] for batch in batches]
    draws = [draw for indices, weights in found for draw in pack(indices, weights).tolist()]
    return hit, draws, expected + drawn_by(UPDATES)[len(expected) :]


def test_an_update_between_ctrl_c_and_the_next_call() -> None:
    """Draws that were made by then come as they were made, and all others follow the update."""
    counting, found, expected = draws_about(points.ALL)
    assert found == expected
    wrong, made = {}, set()
    for point in counting.moments():
        hit, found, expected = draws_about(point)
        made.add(tuple(expected))
        if found != expected:
            wrong[hit.where] = found
    assert wrong == {}
    assert len(made) == 2
