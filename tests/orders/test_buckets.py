"""Buckets: batches of samples of like length, as the docstrings say them."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from ringfeed.errors import StateError
from ringfeed.orders.permutation import permute
from ringfeed.orders.rng import derive
from ringfeed.orders.shard import Part

if TYPE_CHECKING:
    from ringfeed.orders.shard import Uneven

pytestmark = pytest.mark.once

LENGTHS = st.lists(st.integers(0, 12) | st.integers(0, 2000), min_size=1, max_size=90)
UNEVEN = st.sampled_from(["pad", "keep", "drop"])
BOUNDARIES = (10, 100)


def order_of(
    buckets: ringfeed.orders.Buckets,
    ranks: int = 1,
    uneven: Uneven = "pad",
    seed: int = 0,
    most: int | None = None,
) -> ringfeed.orders.Buckets:
    """Return a loader's order."""
    return buckets.shared_by(ranks, uneven, most).bind(None, seed)


def lists_of(
    order: ringfeed.orders.Buckets, shard: Part | None = None, epoch: int = 0, start: int = 0
) -> list[list[int]]:
    """Return the batches of an epoch, or of a rank's part."""
    whole = order.epoch(epoch, start)
    part = whole if shard is None else whole.part_of(shard)
    return [batch.tolist() for batch in part.take(10_000)]


@st.composite
def settings_of_buckets(draw: Any, lengths: list[int]) -> dict[str, Any]:
    """Return parameters that fit these lengths."""
    boundaries = draw(st.sampled_from([(), BOUNDARIES, (5,)]))
    found: dict[str, Any] = {
        "boundaries": boundaries,
        "window": draw(st.sampled_from([None, 1, 7, 30, 1000])),
    }
    if draw(st.booleans()):
        each = st.lists(
            st.integers(1, 9), min_size=len(boundaries) + 1, max_size=len(boundaries) + 1
        )
        return {**found, "batch_sizes": draw(st.integers(1, 40) | each)}
    cost = draw(st.sampled_from([None, np.sum, lambda some: some.size + some[-1].item() ** 2]))
    alone = max(lengths) if cost is None else float(cost(np.array([max(lengths)])))
    return {**found, "cost": cost, "max_tokens": max(alone, 1) * draw(st.sampled_from([1, 1.5, 7]))}


# ---- the order, as it is written down ----


def cut_of(
    lengths: list[int], ranks: int, given: dict[str, Any]
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the sorted samples, and (first, end, samples of a batch) of each bucket."""
    row = sorted(range(len(lengths)), key=lambda sample: (lengths[sample], sample))
    found, end = [], len(row)
    boundaries, window = given["boundaries"], given["window"]
    window = 65536 if window is None and not boundaries else window
    while end:
        longest = lengths[row[end - 1]]
        part = sum(boundary < longest for boundary in boundaries)
        first = sum(length <= boundaries[part - 1] for length in lengths) if part else 0
        size = size_of([lengths[sample] for sample in row[first:end]], part, given)
        lists = None if window is None else math.ceil(math.ceil(len(row) / window) / ranks) * ranks
        begin = first if lists is None else max(first, end - size * lists)
        found.append([begin, end, size])
        end = begin
    found.reverse()
    for one, following in pairwise(found):
        one[1] = following[0] = one[1] // ranks * ranks
    return row, [(begin, end, size) for begin, end, size in found if begin < end]


def size_of(lengths: list[int], part: int, given: dict[str, Any]) -> int:
    """Return how many of the longest of a part a batch may have."""
    if "batch_sizes" in given:
        sizes = given["batch_sizes"]
        return sizes if isinstance(sizes, int) else sizes[part]  # type: ignore[no-any-return]
    cost = given["cost"] or (lambda some: len(some) * some[-1].item())
    if given["cost"] is None:
        return max(n for n in range(1, len(lengths) + 1) if n * lengths[-1] <= given["max_tokens"])
    return max(
        n for n in range(1, len(lengths) + 1) if cost(np.array(lengths[-n:])) <= given["max_tokens"]
    )


class Model:
    """An epoch in plain Python, one place at a time."""

    def __init__(
        self, lengths: list[int], ranks: int, uneven: Uneven, given: dict[str, Any], seed: int
    ) -> None:
        self.lengths, self.ranks, self.uneven, self.seed = lengths, ranks, uneven, seed
        self.row, self.buckets = cut_of(lengths, ranks, given)

    def mixed(self, purpose: str, place: int, first: int, count: int) -> int:
        seed = int.from_bytes(derive(purpose, (self.seed, first), 16), "little")
        return first + int(permute(np.array([place - first]), count, seed, self.epoch)[0])

    def steps(self, epoch: int) -> list[list[list[int]]]:
        """Return the lists of the ranks, step by step."""
        self.epoch = epoch
        full, rests = [], []
        for begin, end, size in self.buckets:
            step = size * self.ranks
            count = (end - begin) // step
            full += [
                ((begin, end, size), range(begin + step * i, begin + step * (i + 1)))
                for i in range(count)
            ]
            if (end - begin) % step:
                rests.append(((begin, end, size), range(begin + step * count, end)))
        last = rests.pop() if rests and rests[-1][0] == self.buckets[-1] else None
        rests = [] if self.uneven == "drop" else rests
        found = [
            self.shared(*full[self.mixed("step", place, 0, len(full))])
            for place in range(len(full))
        ]
        for place in range(len(rests)):
            drawn = self.mixed("step", len(full) + place, len(full), len(rests)) - len(full)
            found.append(self.shared(*rests[drawn]))
        if last is not None and self.uneven != "drop":
            found.append(self.shared(*last))
        return found

    def shared(self, bucket: tuple[int, int, int], places: range) -> list[list[int]]:
        """Return each rank's samples of a run of places, none where it has none."""
        begin, end, size = bucket
        parts = [
            Part(rank, self.ranks, size, self.uneven).select(np.array(places))
            for rank in range(self.ranks)
        ]
        mixed = end - begin > size or self.ranks > 1
        return [
            [self.sample(place, begin, end, mixed=mixed) for place in part.tolist()]
            for part in parts
        ]

    def sample(self, place: int, begin: int, end: int, *, mixed: bool) -> int:
        row = self.mixed("bucket", place, begin, end - begin) if mixed else place
        length = self.lengths[self.row[row]]
        alike = [at for at, sample in enumerate(self.row) if self.lengths[sample] == length]
        if any(alike[0] < edge <= alike[-1] for edge, _, _ in self.buckets):
            row = self.mixed("alike", row, alike[0], len(alike))
        return self.row[row]


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.data(), st.sampled_from([1, 2, 3, 4, 7]), UNEVEN)
def test_the_order_is_what_the_docstrings_say(
    lengths: list[int], data: Any, ranks: int, uneven: Uneven
) -> None:
    """Cut, mixed and shared by plain Python as by the arrays, for each rank."""
    seed, epoch = data.draw(st.integers(0, 2**70)), data.draw(st.integers(0, 2**62))
    given_settings = data.draw(settings_of_buckets(lengths))
    order = order_of(ringfeed.orders.Buckets(lengths, **given_settings), ranks, uneven, seed)
    steps = Model(lengths, ranks, uneven, given_settings, seed).steps(epoch)
    for rank in range(ranks):
        expected = [step[rank] for step in steps if step[rank]]
        assert lists_of(order, Part(rank, ranks, 1, uneven), epoch) == expected


def test_long_rows_are_mixed_in_the_same_way() -> None:
    """Buckets, equal lengths and steps of more than 4096, which are not kept."""
    lengths = np.random.default_rng(0).integers(1, 4, 12_000).tolist()
    for given_settings in (
        {"batch_sizes": 7, "boundaries": (1,)},
        {"batch_sizes": 2, "boundaries": ()},
    ):
        every = {"window": None, **given_settings}
        order = order_of(ringfeed.orders.Buckets(lengths, **every), 1, "pad", 5)
        whole = lists_of(order, epoch=3)
        model = Model(lengths, 1, "pad", every, 5)
        model.epoch = 3
        assert Counter(chain(*whole)) == Counter(range(12_000))
        place = 17
        full = [
            (begin, end, size, i)
            for begin, end, size in model.buckets
            for i in range((end - begin) // size)
        ]
        begin, end, size, i = full[model.mixed("step", place, 0, len(full))]
        places = range(begin + size * i, begin + size * (i + 1))
        assert whole[place] == [
            model.sample(at, begin, end, mixed=end - begin > size) for at in places
        ]


def test_the_order_stays_as_it_is() -> None:
    """On every machine, and in every version to come."""
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
    order = order_of(ringfeed.orders.Buckets(lengths, max_tokens=20, window=8), seed=1)
    assert (order.order, lists_of(order, epoch=2)) == (
        "buckets:6a241e39",
        [[10, 7], [5, 14], [8, 1, 0, 2], [11, 12], [13, 4], [3, 9, 6]],
    )


# ---- laws ----


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.data(), st.sampled_from([1, 2, 3, 4]), UNEVEN, st.integers(0, 2**70))
def test_each_sample_comes_once_and_no_batch_is_over_its_budget(
    lengths: list[int], data: Any, ranks: int, uneven: Uneven, epoch: int
) -> None:
    """On all ranks together, but for what ``uneven`` repeats or leaves out.

    Steps have as many rows on all ranks.
    """
    given_settings = data.draw(settings_of_buckets(lengths))
    bound = ringfeed.orders.Buckets(lengths, **given_settings).shared_by(ranks, uneven, None)
    order = bound.bind(len(lengths), 3)
    shards = [Part(rank, ranks, 1, uneven) for rank in range(ranks)]
    parts = [lists_of(order, shard, epoch) for shard in shards]
    assert [len(part) for part in parts] == [shard.batches(order.length) for shard in shards]
    assert sum(len(part) for part in parts) == order.length
    seen = Counter(chain(*chain(*parts)))
    padding = [order.padding(shard, order.length or 0) for shard in shards]
    ends = [
        part[-1][: -pad or None] if part else [] for part, pad in zip(parts, padding, strict=True)
    ]
    kept = Counter(chain(*ends, *(chain(*part[:-1]) for part in parts)))
    assert set(kept.values()) <= {1}
    assert uneven == "drop" or kept == Counter(range(len(lengths)))
    assert uneven == "pad" or kept == seen
    rows = [[len(batch) for batch in part] for part in parts]
    assert uneven == "keep" or all(one == rows[0] for one in rows)
    assert all(one[: len(rows[-1]) - 1] == rows[-1][:-1] for one in rows)
    assert max(chain([1], *rows)) == bound.most
    if (most := given_settings.get("max_tokens")) is not None:
        cost = given_settings["cost"] or (lambda some: some.size * some[-1].item())
        assert all(cost(np.sort(np.array(lengths)[batch])) <= most for batch in chain(*parts))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.data(), st.sampled_from([1, 3]), UNEVEN, st.lists(st.integers(1, 9), max_size=4))
def test_an_epoch_goes_on_at_any_position(
    lengths: list[int], data: Any, ranks: int, uneven: Uneven, counts: list[int]
) -> None:
    """What comes is what comes there in an epoch from its start, however it is taken.

    It needs no state.
    """
    order = order_of(
        ringfeed.orders.Buckets(lengths, **data.draw(settings_of_buckets(lengths))), ranks, uneven
    )
    whole = lists_of(order, epoch=4)
    start = data.draw(st.integers(0, len(whole) + 2))
    rest = order.epoch(4, start)
    taken = [batch.tolist() for count in counts for batch in rest.take(count)]
    assert taken == whole[start : start + sum(counts)]
    assert lists_of(order, epoch=4, start=start) == whole[start:]
    assert rest.state(start) is None
    with pytest.raises(StateError):
        order.check_state(start, 1)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.data(), st.sampled_from([1, 2, 5]))
def test_uneven_concerns_the_end_alone(lengths: list[int], data: Any, ranks: int) -> None:
    """The full steps are the same, so that a state is good for each."""
    buckets = ringfeed.orders.Buckets(lengths, **data.draw(settings_of_buckets(lengths)))
    found: list[Any] = [
        lists_of(order_of(buckets, ranks, uneven)) for uneven in ("pad", "keep", "drop")
    ]
    padded, kept, full = found
    assert padded[: len(full)] == kept[: len(full)] == full
    assert padded[:-ranks] == kept[: max(len(padded) - ranks, 0)]


def test_batches_are_of_like_length() -> None:
    """Far less padding than in batches of any samples, with windows of a part too.

    Few batches are smaller.
    """
    rng = np.random.default_rng(1)
    lengths = rng.gamma(2.0, 40.0, 20_480).astype(np.int64) + 1

    def padding_of(batches: Any) -> float:
        return 1 - float(
            lengths.sum() / sum(lengths[batch].max() * len(batch) for batch in batches)
        )

    def padding(**given_settings: Any) -> tuple[float, int]:
        whole = lists_of(order_of(ringfeed.orders.Buckets(lengths, **given_settings)))
        return padding_of(whole), len(whole)

    anyhow = rng.permutation(20_480)
    windows = [sorted(window, key=lengths.__getitem__) for window in anyhow.reshape(-1, 1024)]
    sorted_windows = padding_of(
        window[at : at + 32] for window in windows for at in range(0, 1024, 32)
    )
    assert padding_of(anyhow.reshape(-1, 32)) > 0.5
    assert padding(batch_sizes=32)[0] < 0.01
    assert padding(batch_sizes=32, window=1024)[0] < 1.1 * sorted_windows < 0.11
    assert padding(batch_sizes=32, boundaries=range(16, 400, 16))[0] < 0.15
    budget, count = padding(max_tokens=8192)
    assert budget < 0.02
    assert count <= 1.02 * lengths.sum() / 8192 + 1


def test_each_epoch_and_each_seed_has_batches_of_its_own() -> None:
    """In windows that are smaller than the dataset, and of samples of equal length in any."""
    lengths = np.arange(4000)
    for given_lengths, window in ((lengths, 500), (lengths // 500, 65536), (np.ones(4000), 65536)):
        buckets = ringfeed.orders.Buckets(given_lengths, batch_sizes=10, window=window)
        whole = [
            {frozenset(batch) for batch in lists_of(order_of(buckets, seed=seed), epoch=epoch)}
            for seed, epoch in ((0, 0), (0, 1), (1, 0))
        ]
        assert len(whole[0] & whole[1]) < 5
        assert len(whole[0] & whole[2]) < 5
    sorted_whole = ringfeed.orders.Buckets(
        lengths, batch_sizes=10
    )  # in one window: batches stay, but not their order
    one, two = (lists_of(order_of(sorted_whole), epoch=epoch) for epoch in range(2))
    assert one != two
    assert sorted(one) == sorted(two)


def test_ranks_share_one_batch_anew_in_each_epoch() -> None:
    """Samples that one rank would have in one batch."""
    order = order_of(ringfeed.orders.Buckets(range(8), batch_sizes=32), 2)
    firsts = {tuple(sorted(lists_of(order, Part(0, 2, 1, "pad"), epoch)[0])) for epoch in range(9)}
    assert len(firsts) > 5


def test_boundaries_divide_the_samples() -> None:
    """A length that is a boundary lies below it, and each part has its batch size."""
    lengths = np.arange(1, 301)
    order = order_of(ringfeed.orders.Buckets(lengths, (64, 128), batch_sizes=(8, 4, 2)))
    rows = Counter()
    for batch in lists_of(order):
        low, high = lengths[batch].min(), lengths[batch].max()
        part = int(np.searchsorted((64, 128), high))
        assert part == int(np.searchsorted((64, 128), low))
        rows[part, len(batch)] += 1
    assert rows == {(0, 8): 8, (1, 4): 16, (2, 2): 86}


@pytest.mark.parametrize(
    ("lengths", "given_settings", "expected"),
    [
        ([5], {"batch_sizes": 8}, [[0]]),
        ([5], {"max_tokens": 5}, [[0]]),
        ([0, 0, 0], {"max_tokens": 1}, [[0, 1, 2]]),
        ([3, 1, 2], {"batch_sizes": 2, "window": 1}, [[0, 1], [2]]),
        ([0.5, 0.25, 1.0], {"max_tokens": 1.0}, [[0], [1, 2]]),
        ([2, 2, 2, 2], {"max_tokens": 4, "boundaries": (1, 3, 5)}, [[0, 1], [2, 3]]),
        ([1, 9], {"batch_sizes": (5, 5, 5), "boundaries": [1, 2]}, [[0], [1]]),
        (range(4), {"batch_sizes": 2}, [[0, 1], [2, 3]]),
        (iter([1, 1]), {"batch_sizes": np.int32(2)}, [[0, 1]]),
        (np.array([1, 1], np.uint64), {"max_tokens": np.float32(2)}, [[0, 1]]),
    ],
    ids=str,
)
def test_few_samples(lengths: Any, given_settings: Any, expected: list[list[int]]) -> None:
    """One sample, fewer than a window or a batch, all alike, none in a part."""
    whole = lists_of(order_of(ringfeed.orders.Buckets(lengths, **given_settings)))
    assert sorted(len(batch) for batch in whole) == sorted(len(batch) for batch in expected)
    assert sorted(chain(*whole)) == sorted(chain(*expected))


def test_the_largest_batch_is_known() -> None:
    """And bounded, where the slots are to be smaller."""
    buckets = ringfeed.orders.Buckets([1] * 52 + [10] * 48, max_tokens=40)
    assert buckets.shared_by(1, "pad", None).most == 40
    assert buckets.shared_by(4, "pad", None).most == 13
    bounded = buckets.shared_by(1, "pad", 16)
    assert bounded.most == 16
    assert max(map(len, lists_of(bounded.bind(100, 0)))) == 16
    assert bounded.bind(100, 0).order != order_of(buckets).order
    assert order_of(ringfeed.orders.Buckets([1, 2], batch_sizes=2), most=9).length == 1


def test_the_name_tells_orders_apart() -> None:
    """By lengths and by what cuts them; not by ranks, nor by what a function is called."""
    lengths = np.arange(1, 100)

    def name(*given_lengths: Any, **given_settings: Any) -> str:
        found = order_of(ringfeed.orders.Buckets(*given_lengths, **given_settings)).order
        assert len(found) <= 40
        return found

    assert (
        name(lengths, batch_sizes=4)
        == name(lengths.tolist(), batch_sizes=4)
        == name(lengths, batch_sizes=[4])
    )
    others = [
        name(lengths, batch_sizes=4),
        name(lengths[::-1], batch_sizes=4),
        name(lengths, batch_sizes=5),
        name(lengths, max_tokens=400),
        name(lengths, max_tokens=401),
        name(lengths, batch_sizes=4, window=50),
        name(lengths, (50,), batch_sizes=4),
        name(lengths, max_tokens=10_000, cost=np.sum),
        name(lengths, max_tokens=10_000, cost=lambda some: some.sum() + 1),
    ]
    assert len({*others}) == len(others)
    assert name(lengths, max_tokens=10_000, cost=lambda some: sum(some.tolist())) == others[7]


def test_it_can_be_pickled_and_shown() -> None:
    """As other samplers."""
    buckets = pickle.loads(pickle.dumps(ringfeed.orders.Buckets([3, 5, 4], (4,), max_tokens=10)))
    assert repr(buckets) == "<Buckets: 3 lengths from 3 to 5, 1 boundaries, max_tokens=10>"
    assert (
        repr(ringfeed.orders.Buckets([0.5], batch_sizes=2))
        == "<Buckets: 1 lengths from 0.5 to 0.5, 0 boundaries, batch_sizes=(2,)>"
    )
    assert sorted(chain(*lists_of(order_of(buckets)))) == [0, 1, 2]


def test_what_is_given_is_not_changed() -> None:
    """Nor does a later change of it count; a cost function cannot write."""
    lengths = np.array([3, 1, 2])
    buckets = ringfeed.orders.Buckets(lengths, batch_sizes=1)
    lengths[:] = 0
    assert "from 1 to 3" in repr(buckets)

    def writes(some: Any) -> float:
        some[0] = 0
        return 0.0

    with pytest.raises(ValueError, match="read-only"):
        ringfeed.orders.Buckets([1, 2], max_tokens=5, cost=writes)


@pytest.mark.long
def test_memory_is_what_the_docstring_says() -> None:
    """16 bytes a sample, and while an epoch is read 6 more a sample.

    That holds whatever is taken.
    """
    lengths = np.random.default_rng(0).integers(1, 500, 400_000)
    lists_of(order_of(ringfeed.orders.Buckets([1, 2], batch_sizes=1)))  # imports what is used
    tracemalloc.start()
    try:
        buckets = ringfeed.orders.Buckets(lengths, batch_sizes=20)
        order = order_of(buckets)
        kept = tracemalloc.get_traced_memory()[0]
        epoch = order.epoch(0)
        while epoch.take(100):
            pass
        read = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    slack = 1_000_000  # of 10,000 buckets, and of Python
    assert 6_400_000 < kept < 6_400_000 + 24 * 20_000 + slack
    assert read - kept < 2_400_000 + slack


def test_another_process_has_the_same_order() -> None:
    """Whatever its hashes are."""
    program = (
        "import ringfeed; order = ringfeed.orders.Buckets(range(50), max_tokens=99, "
        "window=9).shared_by(2, 'pad', None).bind(50, 3); print(order.order, [batch.tolist() for "
        "batch in order.epoch(2).take(99)])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    order = order_of(ringfeed.orders.Buckets(range(50), max_tokens=99, window=9), 2, "pad", 3)
    assert ran.stdout.strip() == f"{order.order} {lists_of(order, epoch=2)}"
