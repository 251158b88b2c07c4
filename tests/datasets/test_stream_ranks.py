"""Iterables that several ranks share.

Each has its rows of every global batch, and as many batches as the others.
"""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from numbered import (
    MADE,
    ByNumber,
    Numbers,
    die,
    drawn,
    fail,
    numbers,
    taken,
    until_it_fails,
)
from ringfeed import Loader, Shard
from ringfeed.datasets import Interleave
from watching import PATIENCE_S, inside, lose_patience, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "thread": {"workers": 1, "backend": "thread"},
    "spawn": {"workers": 1, "backend": "spawn"},
    "fork": {"workers": 1, "backend": "fork"},
    "process": {"workers": 1, "backend": "process"},
}
UNEVEN = ["pad", "drop", "keep"]
pytestmark = pytest.mark.usefixtures("closed")


class Measured(Numbers):
    """Says how many it has, or another number."""

    def __init__(self, stop: int, says: int | None = None, **deed: Any) -> None:
        super().__init__(stop, **deed)
        self.says = stop if says is None else says

    def __len__(self) -> int:
        return self.says


def loaders(
    world_size: int, dataset: Any, way: str = "here", uneven: Any = "pad", **parameters: Any
) -> list[Loader]:
    """Return the loaders of all ranks."""
    given = {"batch_size": 4, "timeout_s": PATIENCE_S, **WAYS[way], **parameters}
    made = [
        Loader(dataset, shard=Shard(rank, world_size, uneven), **given)
        for rank in range(world_size)
    ]
    MADE.extend(made)
    return made


# ---- as a dataset with numbers ----


@pytest.mark.parametrize("stop", [36, 37, 41, 47, 3])
@pytest.mark.parametrize("uneven", UNEVEN)
def test_a_length_plans_what_each_rank_has(uneven: str, stop: int) -> None:
    """All ranks have the batches and random numbers that samples with numbers give them."""
    ours, theirs = (
        loaders(3, Measured(stop), uneven=uneven),
        loaders(3, ByNumber(stop), uneven=uneven),
    )
    for loader, other in zip(ours, theirs, strict=True):
        assert (len(loader), loader.remaining, loader.padding) == (
            len(other),
            other.remaining,
            other.padding,
        )
        for _ in range(2):
            assert taken(loader) == taken(other)


@pytest.mark.parametrize("stop", [36, 37, 47, 48, 3, 0])
def test_without_a_length_the_last_global_batch_is_full_or_left_out(stop: int) -> None:
    """Whoever of the ranks has had its rows already: all have as many batches."""
    spec = (ringfeed.Array((), "int64"), ringfeed.Array((), "float32"))
    ours = [numbers(loader) for loader in loaders(3, Numbers(stop), uneven="drop", spec=spec)]
    full = stop // 12
    assert [*map(len, ours)] == [full] * 3
    assert [*chain(*(ours[rank][batch] for batch in range(full) for rank in range(3)))] == [
        *range(full * 12)
    ]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "here"])
@pytest.mark.parametrize("dataset", [Measured(41), Numbers(41)])
def test_workers_give_the_same(dataset: Any, way: str) -> None:
    """With a transform that draws, too: where the elements are read changes nothing."""
    settings: dict[str, Any] = {"uneven": "drop", "transform": drawn}
    here = [taken(loader) for loader in loaders(2, dataset, **settings)]
    assert [taken(loader) for loader in loaders(2, dataset, way, **settings)] == here
    alone = loaders(1, ByNumber(41), batch_size=8, drop_remainder=True, transform=drawn)[0]
    for parts, batch in zip(zip(*here, strict=True), taken(alone), strict=True):
        assert [[*chain(*leaves)] for leaves in zip(*parts, strict=True)] == batch


@pytest.mark.parametrize("uneven", UNEVEN)
def test_an_element_that_comes_twice_is_the_same_both_times(uneven: str) -> None:
    """Though a transform draws more random numbers for it, and changes it."""

    def changed(sample: Any) -> Any:
        return sample[0], sample[1] + ringfeed.rng().random()

    def rows(loader: Loader) -> list[Any]:
        return [row for batch in taken(loader) for row in zip(*batch, strict=True)]

    alone = dict(rows(loaders(1, Measured(37), transform=changed)[0]))
    for loader in loaders(3, Measured(37), uneven=uneven, transform=changed):
        assert all(alone[number] == value for number, value in rows(loader))


def test_legacy_states_are_those_of_the_element() -> None:
    """With reseed=True.

    What a transform draws depends on the element alone, however far the rank had to read.
    """

    def legacy(sample: Any) -> Any:
        return sample[0], np.random.random()  # noqa: NPY002

    def found(world_size: int) -> dict[int, float]:
        made = loaders(world_size, Numbers(24), uneven="drop", transform=legacy, reseed=True)
        return {
            row[0]: row[1]
            for loader in made
            for batch in taken(loader)
            for row in zip(*batch, strict=True)
        }

    assert found(2) == found(3)


# ---- batches of other kinds ----


class Batches:
    """Whole batches."""

    def __iter__(self) -> Iterator[Any]:
        return iter(np.full(3, number) for number in range(7))


def test_whole_batches_are_shared_out_in_turn() -> None:
    """With batch_size=None a global batch is one element for each rank."""
    made = loaders(2, Batches, batch_size=None, uneven="drop")
    assert [[batch[0].item() for batch in loader] for loader in made] == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("dataset", [Measured(21), Numbers(21)])
def test_functions_of_batches(dataset: Any) -> None:
    """A collate_fn and a batch_transform are given the rows of their rank."""

    def summed(samples: Any) -> Any:
        return (np.array([sum(sample[0] for sample in samples)]),)

    def doubled(batch: Any) -> None:
        batch[0][...] *= 2

    collated = loaders(2, dataset, uneven="drop", collate_fn=summed)
    assert [[batch[0].item() for batch in loader] for loader in collated] == [[6, 38], [22, 54]]
    changed = loaders(2, dataset, uneven="drop", batch_transform=doubled)
    assert numbers(changed[1]) == [[8, 10, 12, 14], [24, 26, 28, 30]]


def test_an_iterator_is_shared_out() -> None:
    """A thread of each process reads it."""
    made = [Loader(zip(range(20)), batch_size=4, shard=Shard(rank, 2, "drop")) for rank in range(2)]
    MADE.extend(made)
    assert [numbers(loader) for loader in made] == [
        [[0, 1, 2, 3], [8, 9, 10, 11]],
        [[4, 5, 6, 7], [12, 13, 14, 15]],
    ]


# ---- what goes wrong ----

EARLY = (
    "the iterable ended after 29 elements, and len() says 40, by which the batches of all ranks "
    "were planned; correct len(), or leave __len__ out and give drop_remainder=True"
)


@pytest.mark.parametrize("way", ["here", "spawn"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_one_that_ends_early_is_an_error_on_each_rank(on_error: str, way: str) -> None:
    """Whether its last elements are of this rank or of another: no rank ends in silence."""
    for rank, loader in enumerate(loaders(2, Measured(29, says=40), way, on_error=on_error)):
        given, errors = until_it_fails(loader)
        own = [[*range(8 * batch + 4 * rank, 8 * batch + 4 * rank + 4)] for batch in range(3)]
        last = {"skip": [[[24, 25, 26, 27]], [[28]]], "raise": [[[24, 25, 26, 27]], []]}[on_error][
            rank
        ]
        assert given == own + last
        assert errors == [EARLY]


def test_one_that_has_more_than_it_says_is_read_as_far_as_planned() -> None:
    """By all ranks alike."""
    assert [numbers(loader) for loader in loaders(2, Measured(90, says=8))] == [
        [[0, 1, 2, 3]],
        [[4, 5, 6, 7]],
    ]


@pytest.mark.parametrize("kind", [Measured, Numbers])
def test_an_exception_comes_on_each_rank(kind: Any) -> None:
    """The error names its element, in its own place or in another rank's next batch."""
    for rank, loader in enumerate(loaders(2, kind(40, at=21, deed=fail), uneven="drop")):
        given, errors = until_it_fails(loader)
        ahead = 2 + (rank == 0 and kind is Measured)  # rank 0 has had the rows ahead of the element
        assert [batch[0] for batch in given] == [8 * number + 4 * rank for number in range(ahead)]
        assert [error.partition(" (")[0] for error in errors] == [
            "element 21 of the iterable raised KeyError: 'no more of this'"
        ]


@pytest.mark.parametrize("kind", [Measured, Numbers])
@pytest.mark.parametrize("at", [21, 38])
def test_an_exception_is_not_skipped(kind: Any, at: int) -> None:
    """It comes out in the last planned batch, too, which the other rank has had by then."""
    for rank, loader in enumerate(
        loaders(2, kind(40, at=at, deed=fail), uneven="drop", on_error="skip")
    ):
        given, errors = until_it_fails(loader)
        is_past = kind is Measured and (at, rank) == (38, 0)
        assert [error.endswith("KeyError: 'no more of this'") for error in errors] == [True][
            is_past:
        ]
        assert [*chain(*given)] == [n for n in [*chain(*given)] if n < at]


def test_what_has_no_plan_is_refused() -> None:
    """The message says what to give; see also `test_shards`."""
    with pytest.raises(ValueError, match="rank 1 of 2") as raised:
        Loader(
            Interleave([Numbers(9), Numbers(9), Numbers(9)]), shard=Shard(1, 2, "drop"), workers=0
        )
    assert str(raised.value) == (
        "rank 1 of 2 of 3 iterables in turn: only reading all of them shows which have ended; "
        "give each rank its own of them, leave shard= out, and count the steps of an epoch with "
        "repeat()"
    )


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("at", [17, 21])
@pytest.mark.parametrize("kind", [Measured, Numbers])
def test_after_ctrl_c_nothing_is_lost(kind: Any, at: int, on_error: str) -> None:
    """It comes out where this process reads; then the batch is read again."""
    presses = iter([KeyboardInterrupt])

    def press() -> None:
        for error in presses:
            raise error

    for rank in range(2):
        loader = loaders(2, kind(43, at=at, deed=press), uneven="drop", on_error=on_error)[rank]
        given, batches, presses = list[int](), iter(loader), iter([KeyboardInterrupt])
        while (batch := _next(batches)) is not None:
            given += batch[0].tolist() if batch else []
        assert given == [n for n in range(40) if n // 4 % 2 == rank]


def _next(batches: Iterator[Any]) -> Any:
    """Return a batch; nothing in it where Ctrl-C came, None at the end."""
    try:
        return next(batches, None)
    except KeyboardInterrupt:
        return ()


class DyingOnce(Numbers):
    """Ends the first process that reads the element called ``at``."""

    def __init__(self, stop: int, at: int, mark: Path) -> None:
        super().__init__(stop, at, self.die_once)
        self.mark = mark

    def die_once(self) -> None:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class DyingMeasured(DyingOnce):
    """Says how many it has."""

    def __len__(self) -> int:
        return self.stop


@pytest.mark.parametrize("at", [17, 21])
@pytest.mark.parametrize("kind", [DyingOnce, DyingMeasured])
def test_a_killed_reader_is_replaced(kind: Any, at: int, tmp_path: Path) -> None:
    """Whether it read an element of its own or of the other rank.

    Nothing is lost, nothing comes twice.
    """
    made = [
        loaders(2, kind(43, at, tmp_path / str(rank)), "fork", uneven="drop")[rank]
        for rank in range(2)
    ]
    found = [numbers(loader) for loader in made]
    assert [*chain(*(found[rank][batch] for batch in range(5) for rank in range(2)))] == [
        *range(40)
    ]
    assert [loader.stats().restarts for loader in made] == [1, 1]


@pytest.mark.parametrize(
    ("kind", "at", "rank", "given", "where"),
    [
        (Numbers, 21, 0, 2, "one of elements 16 to 23 of the iterable"),
        (Numbers, 17, 1, 2, "one of elements 16 to 23 of the iterable"),
        (Measured, 21, 0, 3, "one of elements 20 to 24 of the iterable"),
        (Measured, 21, 1, 2, "element 21 of the iterable"),
    ],
)
def test_an_element_that_ends_every_reader(
    kind: Any, at: int, rank: int, given: int, where: str
) -> None:
    """Whichever rank it is of.

    Where other ranks' elements are read it is one of these, and that is said.
    """
    loader = loaders(2, kind(43, at=at, deed=die), "fork", uneven="drop")[rank]
    found, errors = until_it_fails(loader)
    assert len(found) == given
    assert errors == [
        f"{where} ended 3 workers; the last one was killed by SIGKILL; try it with workers=0"
    ]


@pytest.mark.parametrize("kind", [Measured, Numbers])
def test_a_transform_that_ends_every_worker_is_in_its_place(kind: Any) -> None:
    """The element was read, and so is named."""

    def deadly(sample: Any) -> Any:
        if sample[0] == 22:
            die()
        return sample

    given, errors = until_it_fails(loaders(2, kind(43), "fork", uneven="drop", transform=deadly)[1])
    assert [batch[0] for batch in given[:2]] == [4, 12]
    assert errors[0] == (
        "element 22 of the iterable ended 3 workers; the last one was killed by SIGKILL; try it "
        "with workers=0"
    )


def test_a_stuck_reader_is_shown() -> None:
    """With the element of its row, and that it may read those of other ranks."""
    loader = loaders(2, Measured(43, at=17, deed=partial(time.sleep, PATIENCE_S)), "fork")[1]
    batches = iter(loader)
    assert [next(batches)[0].tolist() for _ in range(2)] == [[4, 5, 6, 7], [12, 13, 14, 15]]
    wait_until(lambda: inside(loader) == [20])
    lose_patience(loader, 0.1)
    text = (
        "no batch for 0.1 s: 1 of 1 workers inside element 20 of the iterable, or those of other "
        "ranks around; raise"
    )
    with pytest.raises(ringfeed.StallError, match=text):
        next(batches)


# ---- going on ----


@pytest.mark.parametrize("kind", [Measured, Numbers])
def test_two_ranks_become_three(kind: Any) -> None:
    """Amid the epoch: their states are equal, and each element comes once."""
    seen, made = list[int](), loaders(2, kind(101), uneven="drop")
    iterators = [iter(loader) for loader in made]
    for _ in range(3):
        seen += chain(*(next(batches)[0].tolist() for batches in iterators))
    states = [loader.state_dict() for loader in made]
    assert states[0] == states[1]
    for loader in (others := loaders(3, kind(101), batch_size=5, uneven="drop")):
        loader.load_state_dict(json.loads(json.dumps(states[0])))
    rest = [numbers(loader) for loader in others]
    assert [*map(len, rest)] == [5, 5, 5]
    assert [*seen, *chain(*(rest[rank][batch] for batch in range(5) for rank in range(3)))] == [
        *range(24 + 75)
    ]


def test_skip_leaves_out_global_batches() -> None:
    """As with samples that have numbers."""
    made = loaders(2, Measured(30))
    for loader in made:
        loader.skip(batches=2)
    assert [numbers(loader) for loader in made] == [
        [[16, 17, 18, 19], [24, 25, 26]],
        [[20, 21, 22, 23], [27, 28, 29]],
    ]
