"""Loaders of several ranks.

What they hand out, how many batches they have, and what cannot be shared out.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.orders.permutation import Shuffled

pytestmark = pytest.mark.once

ROWS = np.arange(37)
UNEVEN = ["pad", "drop", "keep"]


def loaders(
    world_size: int = 3, dataset: Any = (ROWS,), uneven: Any = "pad", **parameters: Any
) -> list[ringfeed.Loader]:
    """Return the loaders of all ranks, which fill in this process unless told otherwise."""
    given = {"batch_size": 4, "workers": 0, "slots": 3, "timeout_s": 120, **parameters}
    return [
        ringfeed.Loader(dataset, shard=ringfeed.Shard(rank, world_size, uneven), **given)
        for rank in range(world_size)
    ]


def batches(loader: ringfeed.Loader) -> list[list[int]]:
    """Return the batches of the next epoch."""
    return [rows.tolist() for (rows,) in loader]


# ---- what comes ----


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("uneven", UNEVEN)
def test_the_ranks_have_each_epoch_between_them(uneven: str, workers: int) -> None:
    """With shuffling: batches of one number are, rank by rank, a global batch of the order."""
    made = loaders(shuffle=True, seed=7, uneven=uneven, workers=workers, backend="thread")
    for epoch in range(2):
        order = Shuffled().bind(37, 7).epoch(epoch).take(37).tolist()
        taken = [batches(loader) for loader in made]
        for number in range(3):
            assert [*chain(*(one[number] for one in taken))] == order[
                12 * number : 12 * number + 12
            ]
        rest = [one[3:] for one in taken]
        assert (
            rest
            == {"pad": [[order[36:]]] * 3, "drop": [[]] * 3, "keep": [[order[36:]], [], []]}[uneven]
        )
        assert [*map(len, made)] == [*map(len, taken)]


def test_four_ranks_and_one_process_see_the_same_samples() -> None:
    """A quarter of the batch size on each rank gives the batches of one loader, in four parts."""
    alone = ringfeed.Loader((ROWS,), batch_size=16, shuffle=True, workers=0)
    taken = [batches(loader) for loader in loaders(4, shuffle=True, uneven="keep")]
    assert [[*chain(*parts)] for parts in zip(*taken, strict=True)] == batches(alone)


def test_whole_batches_are_shared_out_by_number() -> None:
    """With batch_size=None a global batch is a batch of the dataset for each rank."""

    class Batches:
        """Five batches of two rows."""

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return (np.full(2, index),)

    made = loaders(2, Batches(), batch_size=None)
    assert [batches(loader) for loader in made] == [
        [[0, 0], [2, 2], [4, 4]],
        [[1, 1], [3, 3], [4, 4]],
    ]
    assert [*map(len, made)] == [3, 3]
    kept = loaders(2, Batches(), batch_size=None, uneven="keep")
    assert [*map(len, kept)] == [len(batches(loader)) for loader in kept] == [3, 2]
    assert [*map(len, loaders(2, Batches(), batch_size=None, drop_remainder=True))] == [2, 2]


def test_a_hook_that_changes_the_length_changes_all_ranks_alike() -> None:
    """The ranks share out the epoch as it is when it begins."""

    class Growing:
        """One row more at each epoch."""

        def __init__(self) -> None:
            self.rows = 8

        def __len__(self) -> int:
            return self.rows

        def __getitem__(self, index: int) -> Any:
            return (np.array(index),)

        def on_epoch_begin(self) -> None:
            self.rows += 1

    made = [
        ringfeed.Loader(Growing(), batch_size=2, shard=ringfeed.Shard(rank, 2), workers=0)
        for rank in range(2)
    ]
    assert [batches(loader) for loader in made] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [8]]]
    assert [batches(loader) for loader in made] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]
    assert [*map(len, made)] == [3, 3]


def test_a_sampler_of_the_users_is_shared_out() -> None:
    """Its numbers are the global order, also where it does not say how many there are."""
    made = loaders(2, sampler=lambda epoch: iter(range(epoch, 20, 2)))
    assert [batches(loader) for loader in made] == [[[0, 2, 4, 6], [16]], [[8, 10, 12, 14], [18]]]
    with pytest.raises(TypeError, match=r"sampler has no len\(\)"):
        len(made[0])


def test_one_rank_alone_is_not_shown() -> None:
    """It is the default."""
    assert "rank" not in repr(ringfeed.Loader((ROWS,), workers=0, shard=ringfeed.Shard(0, 1)))


# ---- what is known of it ----


@pytest.mark.parametrize(
    ("parameters", "fixed", "count"),
    [
        ({}, None, 4),
        ({"uneven": "keep"}, None, 3),
        ({"uneven": "drop"}, 4, 3),
        ({"drop_remainder": True}, 4, 3),
        ({"drop_remainder": True, "uneven": "keep"}, 4, 3),
    ],
)
def test_frameworks_know_the_shapes_of_a_rank(
    parameters: dict[str, Any], fixed: int | None, count: int
) -> None:
    """The length is exact, and rows are fixed where no batch is shorter."""
    loader = loaders(**parameters)[-1]
    stream = loader._stream
    lengths = stream.length, stream.exact_length
    assert (stream.info.fixed_rows, stream.info.max_rows, *lengths) == (fixed, 4, count, count)
    assert loader.is_in_order
    assert len(batches(loader)) == count


def test_dropping_what_is_uneven_holds_for_one_rank_too() -> None:
    """Otherwise the samples of an epoch would depend on the number of processes."""
    loader = ringfeed.Loader((ROWS,), batch_size=12, workers=0, shard=ringfeed.Shard(0, 1, "drop"))
    assert (len(loader), len(batches(loader)), loader.drop_remainder) == (3, 3, True)


def test_the_rank_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what has said it, where it was found; with one process, too."""
    assert "batches of 4, rank 1 of 3, no workers" in repr(loaders()[1])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    found = ringfeed.Loader((ROWS,), batch_size=4, workers=0, shard="auto")
    assert "batches of 4, rank 0 of 1 (torchrun), no workers" in repr(found)


# ---- what is refused ----


class DistributedSampler:
    """Named as torch's is."""

    __module__ = "torch.utils.data.distributed"

    def __iter__(self) -> Any:
        return iter(range(3))


class Ours(DistributedSampler):
    """A sampler that is one of torch's."""

    __module__ = "user"


@pytest.mark.parametrize(
    ("dataset", "parameters", "kind", "text"),
    [
        (
            (ROWS,),
            {"shard": ringfeed.Shard(2, 2)},
            ValueError,
            "rank=2 with world_size=2; ranks go from 0 to 1",
        ),
        (
            (ROWS,),
            {"shard": ringfeed.Shard(rank=True, world_size=2)},
            TypeError,
            "rank=True must be an int",
        ),
        (
            (ROWS,),
            {"shard": ringfeed.Shard(0, 2), "shuffle": True, "seed": None},
            ValueError,
            "seed=None draws a seed, and each rank of 2 another; give all of them one number",
        ),
        ((ROWS,), {"shard": ringfeed.Shard(0, 0)}, ValueError, "world_size=0 must be at least 1"),
        (
            (ROWS,),
            {"shard": ringfeed.Shard(0, 2, "wrap")},
            ValueError,
            "uneven='wrap'; choose one of 'pad', 'drop', 'keep'",
        ),
        (
            lambda: iter(ROWS),
            {"shard": ringfeed.Shard(1, 2)},
            ValueError,
            "rank 1 of 2 of an iterable without len(): where it ends is only seen when the "
            "batches before were handed out, too late for uneven='pad'; give drop_remainder=True, "
            "which leaves out a last global batch that is not full, or give the iterable __len__",
        ),
        (
            (ROWS,),
            {"shard": ringfeed.Shard(1, 2), "sampler": Ours()},
            ValueError,
            "sampler is a Ours, which gives the samples of one process, and rank 1 of 2 would get "
            "a part of these; leave it out and give shuffle=True, or leave shard= out",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    dataset: Any, parameters: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """The message says what to do."""
    with pytest.raises(kind) as raised:
        ringfeed.Loader(dataset, workers=0, **parameters)
    assert str(raised.value) == text


def test_one_process_takes_a_distributed_sampler() -> None:
    """It is a sampler like others where nothing shares it out again."""
    assert batches(ringfeed.Loader((ROWS,), workers=0, sampler=DistributedSampler())) == [[0, 1, 2]]


# ---- going on with other ranks ----


def handed_out(made: list[ringfeed.Loader], steps: int) -> list[int]:
    """Return the samples that so many steps of all ranks get from the epoch that comes next."""
    iterators = [iter(loader) for loader in made]
    parts = [next(batches)[0].tolist() for _ in range(steps) for batches in iterators]
    states = [loader.state_dict() for loader in made]
    assert all(state == states[0] for state in states)
    assert states[0]["world_size"] == len(made)
    return [*chain(*parts)]


def after(state: dict[str, Any], made: list[ringfeed.Loader]) -> list[ringfeed.Loader]:
    """Have the loaders go on from a state."""
    for loader in made:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert {**loader.state_dict(), "batch_size": 0, "world_size": 0} == {
            **state,
            "batch_size": 0,
            "world_size": 0,
        }
    return made


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True, "seed": 5},
    "windows": {"shuffle": 20},
    "array": {"sampler": np.arange(101)[::-1].copy()},
    "subset": {"sampler": ringfeed.orders.SubsetSampler(range(101))},
    "strata": {"sampler": ringfeed.orders.StratifiedSampler(np.arange(101) % 3)},
    "weights": {"sampler": ringfeed.orders.WeightedSampler(np.arange(1, 102), replacement=False)},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("uneven", UNEVEN)
def test_four_ranks_become_two_and_three(uneven: str, order: str) -> None:
    """With other batch sizes: each sample of the epoch comes once.

    All states are equal on the way.
    """
    rows = (np.arange(101),)
    four = loaders(4, rows, batch_size=5, uneven=uneven, **ORDERS[order])
    seen = handed_out(four, 2)
    two = after(
        four[3].state_dict(), loaders(2, rows, batch_size=7, uneven=uneven, **ORDERS[order])
    )
    assert [loader.remaining for loader in two] == [{"pad": 5, "drop": 4, "keep": 5}[uneven]] * 2
    seen += handed_out(two, 2)
    three = after(
        two[0].state_dict(), loaders(3, rows, batch_size=4, uneven="keep", **ORDERS[order])
    )
    rest = [batches(loader) for loader in three]
    seen += chain(*chain(*rest))
    assert sorted(seen) == [*range(101)]
    assert {loader.state_dict()["epoch"] for loader in three} == {1}


def test_a_rank_without_a_last_batch_is_where_the_others_are() -> None:
    """With uneven="keep" it may have one batch less.

    Until its loop has ended, its state is that of all.
    """
    made = loaders(3, uneven="keep")
    iterators = [iter(loader) for loader in made]
    for batches_ in iterators * 3:
        next(batches_)
    assert [loader.state_dict()["samples"] for loader in made] == [36] * 3
    assert [loader.remaining for loader in made] == [1, 0, 0]
    again = after(made[1].state_dict(), loaders(3, uneven="keep"))
    assert [batches(loader) for loader in again] == [[[36]], [], []]
    assert next(iterators[0])[0].tolist() == [36]
    for batches_ in iterators:
        assert next(batches_, None) is None
    assert [
        (state["epoch"], state["samples"]) for state in (loader.state_dict() for loader in made)
    ] == [(1, 0)] * 3


def test_skip_leaves_out_global_batches() -> None:
    """Also the last, which is not full: the state is that of the end, and can be loaded."""
    made = loaders()
    for loader in made:
        loader.skip(batches=3)
        assert (loader.state_dict()["samples"], loader.remaining) == (36, 1)
        loader.skip(batches=1)
        assert (loader.state_dict()["samples"], loader.remaining) == (37, 0)
    assert [batches(loader) for loader in after(made[0].state_dict(), loaders())] == [[], [], []]


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_state_after_the_last_batch_can_be_loaded(world_size: int) -> None:
    """A dataset with a hook stays in its epoch until the loop asks for more.

    No samples are left of it then.
    """

    class Hooked:
        """It notes nothing."""

        def __len__(self) -> int:
            return 37

        def __getitem__(self, index: int) -> Any:
            return (np.array(index),)

        def on_epoch_end(self) -> None:
            pass

    made = [
        ringfeed.Loader(Hooked(), batch_size=4, shard=ringfeed.Shard(r, world_size), workers=0)
        for r in range(world_size)
    ]
    iterators = [iter(loader) for loader in made]
    for batches_ in iterators * len(made[0]):
        next(batches_)
    assert [
        (state["epoch"], state["samples"]) for state in (loader.state_dict() for loader in made)
    ] == [(0, 37)] * len(made)
    again = after(made[-1].state_dict(), made)
    assert [batches(loader) for loader in again] == [[]] * len(made)


# ---- padding ----


def test_the_loader_tells_padding() -> None:
    """Without it, each sample of the epoch comes once; it is known before, and after the end."""
    made = loaders()
    assert [loader.padding for loader in made] == [0, 1, 1]
    taken = []
    for loader in made:
        for number, batch in enumerate(batches(loader), 1):
            taken += batch[: len(batch) - loader.padding] if number == len(loader) else batch
    assert sorted(taken) == [*range(37)]
    assert [loader.padding for loader in made] == [0, 1, 1]


def test_padding_is_that_of_the_rest_of_an_epoch() -> None:
    """An epoch that goes on with other ranks may have another."""
    state = {**loaders(3, (np.arange(38),))[0].state_dict(), "samples": 3}
    made = after(state, loaders(3, (np.arange(38),)))
    assert [loader.padding for loader in made] == [0, 0, 1]
    iterators = [iter(loader) for loader in made]
    assert [loader.padding for loader in made] == [0, 0, 1]
    assert [[rows.tolist() for (rows,) in one][-1] for one in iterators] == [
        [27, 28, 29, 30],
        [31, 32, 33, 34],
        [35, 36, 37, 27],
    ]
    assert [(iter(loader), loader.padding)[1] for loader in made] == [0, 0, 1]


@pytest.mark.parametrize("parameters", [{"uneven": "keep"}, {"uneven": "drop"}, {"world_size": 1}])
def test_where_nothing_is_padded(parameters: dict[str, Any]) -> None:
    """There is no padding to tell."""
    assert {loader.padding for loader in loaders(**parameters)} == {0}


def test_padding_of_an_unknown_length() -> None:
    """It shows only when the sampler has been read."""
    with pytest.raises(TypeError) as raised:
        _ = loaders(2, sampler=lambda _epoch: iter(range(3)))[0].padding
    assert str(raised.value) == "the length of this loader is unknown: its sampler has no len()"
