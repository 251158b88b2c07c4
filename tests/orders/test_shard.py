"""The ranks of several processes have the global order between them.

Exactly, evenly, from any position.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfeed.orders import shard
from ringfeed.orders.custom import Custom
from ringfeed.orders.permutation import Shuffled
from ringfeed.orders.sampler import Epoch, Sequential
from ringfeed.orders.shard import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Uneven

pytestmark = pytest.mark.once

Batches = list[list[int]]
UNEVEN: list[Uneven] = ["pad", "drop", "keep"]


class Split(NamedTuple):
    """An epoch that goes on at a position, on some ranks with some rows each."""

    length: int
    start: int
    world_size: int
    rows: int

    def ranks(self, uneven: Uneven) -> list[Part]:
        """Return all ranks."""
        return [Part(rank, self.world_size, self.rows, uneven) for rank in range(self.world_size)]

    @property
    def samples(self) -> int:
        """How many the epoch has from there on."""
        return max(self.length - self.start, 0)

    @property
    def rest(self) -> int:
        """Samples of a last global batch that is not full."""
        return self.samples % (self.world_size * self.rows)


SPLITS = st.builds(
    Split, st.integers(0, 120), st.integers(0, 125), st.integers(1, 7), st.integers(1, 5)
)


def samplers(length: int) -> dict[str, Sampler]:
    """Return an order of each kind."""
    return {
        "sequential": Sequential().bind(length, 0),
        "shuffled": Shuffled().bind(length, 3),
        "array": Custom(np.arange(length)[::-1]).bind(length, 0),
        "list": Custom([*range(length)]).bind(length, 0),
    }


def batches_of(
    shard: Part, sampler: Sampler, start: int = 0, at_once: int = 1, state: Any = None
) -> Batches:
    """Return the batches of one rank as the engine cuts them, read so many at a time."""
    rows, taken = shard.rows, []
    epoch = shard.part_of(sampler.epoch(2, start, state))
    while (indices := epoch.take(at_once * rows)).size:
        assert indices.dtype == np.int64
        assert indices.flags.c_contiguous
        taken += [indices[first : first + rows].tolist() for first in range(0, len(indices), rows)]
        if len(indices) < at_once * rows:
            break
    assert not epoch.take(at_once * rows).size
    if shard.uneven == "drop" and taken and len(taken[-1]) < rows:  # by the engine
        assert shard.world_size == 1
        taken.pop()
    return taken


def joined(parts: list[tuple[Batches, int]], number: int) -> list[int]:
    """Return the rows of all ranks' batches of one number, without the padding of each."""
    batches = [(batches[number], padding) for batches, padding in parts if number < len(batches)]
    return [*chain(*(batch[: len(batch) - padding] for batch, padding in batches))]


@pytest.mark.parametrize("uneven", UNEVEN)
@pytest.mark.parametrize("name", samplers(1))
@given(split=SPLITS, at_once=st.integers(1, 9))
def test_the_ranks_batches_together_are_the_global_batch(
    name: str, uneven: Uneven, split: Split, at_once: int
) -> None:
    """Rank by rank, without padding, from any position."""
    sampler, size = samplers(split.length)[name], split.world_size * split.rows
    order = sampler.epoch(2).take(split.length + 1).tolist()[split.start :]
    full = len(order) // size
    ranks = split.ranks(uneven)
    taken = [batches_of(rank, sampler, split.start, at_once) for rank in ranks]
    for number in range(full):
        assert (
            joined([(one, 0) for one in taken], number)
            == order[number * size : (number + 1) * size]
        )
    rest = joined(
        [(one, rank.padding(split.samples)) for one, rank in zip(taken, ranks, strict=True)], full
    )
    assert rest == ([] if uneven == "drop" else order[full * size :])
    assert max(map(len, taken)) == full + bool(rest)


@given(split=SPLITS)
@example(split=Split(9, 0, 4, 2))
def test_padded_ranks_are_alike(split: Split) -> None:
    """Each has as many batches of as many rows.

    Padding repeats the last global batch from its first sample on.
    """
    sampler, ranks = Shuffled().bind(split.length, 0), split.ranks("pad")
    taken = [batches_of(rank, sampler, split.start) for rank in ranks]
    assert len({tuple(map(len, one)) for one in taken}) == 1
    padding = [
        one[-1][-1] for one, rank in zip(taken, ranks, strict=True) if rank.padding(split.samples)
    ]
    rest = sampler.epoch(2).take(split.length)[split.length - split.rest :].tolist()
    assert len(padding) == -split.rest % split.world_size
    assert padding == (rest * split.world_size)[: len(padding)]


@pytest.mark.parametrize("uneven", UNEVEN)
@given(split=SPLITS)
def test_the_batches_are_counted_before(uneven: Uneven, split: Split) -> None:
    """The batches of a rank, and the most that any rank has, are known from the length alone."""
    ranks = split.ranks(uneven)
    taken = [
        len(batches_of(rank, Sequential().bind(split.length, 0), split.start)) for rank in ranks
    ]
    assert [rank.batches(split.samples) for rank in ranks] == taken
    assert {rank.global_batches(split.samples) for rank in ranks} == {max(taken)}
    assert max(taken) - min(taken) <= (uneven == "keep")


@pytest.mark.parametrize(
    ("samples", "rows", "whole", "begun"),
    [
        (0, 4, 0, 0),
        (1, 4, 0, 1),
        (4, 4, 1, 1),
        (5, 4, 1, 2),
        (8, 4, 2, 2),
        (10**18, 3, (10**18 - 1) // 3, (10**18 + 2) // 3),
    ],
)
def test_batches_of_one_rank_are_counted(samples: int, rows: int, whole: int, begun: int) -> None:
    """With and without the remainder, in exact integers."""
    assert Part(0, 1, rows, "drop").batches(samples) == whole
    assert (
        Part(0, 1, rows, "pad").batches(samples)
        == Part(0, 1, rows, "keep").batches(samples)
        == begun
    )
    assert not Part(0, 1, rows, "pad").padding(samples)


@given(before=SPLITS, after=SPLITS, part=st.floats(0, 1))
@example(before=Split(100, 0, 4, 4), after=Split(0, 0, 2, 4), part=0.5)
def test_other_ranks_go_on(before: Split, after: Split, part: float) -> None:
    """Some batches on some ranks, the rest on others with another batch size.

    Each sample comes once.
    """
    step = before.world_size * before.rows
    done = int(before.length // step * part)
    sampler = Shuffled().bind(before.length, 5)
    first = [batches_of(rank, sampler)[:done] for rank in before.ranks("keep")]
    second = [batches_of(rank, sampler, done * step) for rank in after.ranks("keep")]
    assert sorted(chain(*chain(*first, *second))) == [*range(before.length)]


def test_a_sampler_with_a_state_goes_on_on_other_ranks() -> None:
    """The state is that of the global order, and the same on all ranks."""
    loaded = []

    class Countdown:
        """A sampler that knows where it is."""

        def __init__(self) -> None:
            self.left = 40

        def state_dict(self) -> dict[str, int]:
            return {"left": self.left}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.left = state["left"]
            loaded.append(self.left)

        def __iter__(self) -> Iterator[int]:
            while self.left:
                self.left -= 1
                yield self.left

    epochs = [
        Part(rank, 4, 2, "pad").part_of(Custom(Countdown()).bind(40, 0).epoch(0))
        for rank in range(4)
    ]
    for epoch in epochs * 2:
        epoch.take(2)
    states = [epoch.state(16) for epoch in epochs]
    assert states == [{"position": 16, "of": {"left": 24}}] * 4
    others = [Part(rank, 2, 3, "keep") for rank in range(2)]
    rest = [
        batches_of(rank, Custom(Countdown()).bind(40, 0), 16, state=states[0]) for rank in others
    ]
    assert sorted(chain(*chain(*rest))) == [*range(24)]
    assert loaded == [24, 24]


@pytest.mark.parametrize(
    ("uneven", "expected"),
    [
        ("pad", [[[0, 1], [8, 9]], [[2, 3], [10, 8]], [[4, 5], [11, 9]], [[6, 7], [12, 10]]]),
        ("keep", [[[0, 1], [8, 9]], [[2, 3], [10]], [[4, 5], [11]], [[6, 7], [12]]]),
        ("drop", [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]),
    ],
)
def test_the_last_global_batch_of_thirteen(uneven: Uneven, expected: list[Batches]) -> None:
    """Written out: 4 ranks with 2 rows each of 13 samples."""
    assert [
        batches_of(rank, Sequential().bind(13, 0)) for rank in Split(13, 0, 4, 2).ranks(uneven)
    ] == expected


@pytest.mark.parametrize(
    ("uneven", "expected"),
    [
        ("pad", [[[0]], [[0]], [[1]], [[1]]]),
        ("keep", [[[0]], [], [[1]], []]),
        ("drop", [[], [], [], []]),
    ],
)
def test_fewer_samples_than_ranks(uneven: Uneven, expected: list[Batches]) -> None:
    """A rank without a sample repeats one, or has no batch."""
    assert [
        batches_of(rank, Sequential().bind(2, 0)) for rank in Split(2, 0, 4, 2).ranks(uneven)
    ] == expected


def test_the_global_order_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches are asked for, a bounded number of positions is in memory."""
    monkeypatch.setattr(shard, "AT_ONCE", 25)
    inner, asked = Sequential().bind(1000, 0).epoch(0), []

    class Watched(Epoch):
        def take(self, count: int) -> Any:
            asked.append(count)
            return inner.take(count)

    part = Part(1, 5, 2, "pad").part_of(Watched())
    assert part.take(20).tolist() == [row + first for first in range(0, 100, 10) for row in (2, 3)]
    assert asked == [20] * 5


def test_one_rank_alone_reads_the_order_itself() -> None:
    """Nothing stands between."""
    epoch = Sequential().bind(10, 0).epoch(0)
    assert Part(0, 1, 4, "pad").part_of(epoch) is epoch
