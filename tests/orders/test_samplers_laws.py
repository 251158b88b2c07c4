"""What holds for every sampler that a loader binds.

Its order is a function of (seed, epoch, position).
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from datasets import Indices
from ringfeed.orders.making import sampler_of
from ringfeed.orders.sampler import CHUNK, PositionalEpoch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.orders.sampler import Sampler

pytestmark = pytest.mark.once

LENGTH = 10_000  # more than two chunks, and than what is sorted
RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(0, 5, LENGTH)
LABELS = RNG.choice(7, LENGTH, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.04, 0.01])
MAKE: dict[str, Callable[[], Sampler]] = {
    "weighted": lambda: ringfeed.orders.WeightedSampler(WEIGHTS),
    "weighted, longer": lambda: ringfeed.orders.WeightedSampler(WEIGHTS, 2 * LENGTH + 1),
    "weighted without replacement": lambda: ringfeed.orders.WeightedSampler(
        WEIGHTS, 5000, replacement=False
    ),
    "subset": lambda: ringfeed.orders.SubsetSampler(np.arange(LENGTH)[::2]),
    "subset in order": lambda: ringfeed.orders.SubsetSampler([5, 3, 5, 9], shuffle=False),
    "subset of a range": lambda: ringfeed.orders.SubsetSampler(range(LENGTH - 1, 3, -2)),
    "stratified": lambda: ringfeed.orders.StratifiedSampler(LABELS),
    "window": lambda: ringfeed.orders.WindowShuffle(1000),
    "wide window": lambda: ringfeed.orders.WindowShuffle(7000, block=64),
    "small window": lambda: ringfeed.orders.WindowShuffle(10, block=3),
}
BOUND: dict[str, Sampler] = {name: make().bind(LENGTH, 7) for name, make in MAKE.items()}


@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=25, deadline=None)
@given(
    epoch=st.integers(0, 2**70),
    start=st.integers(0, LENGTH + 3),
    sizes=st.lists(st.integers(1, 2 * CHUNK), max_size=4),
)
def test_an_epoch_goes_on_at_any_position(
    name: str, epoch: int, start: int, sizes: list[int]
) -> None:
    """What comes is what comes there in an epoch from its start, however it is taken.

    It needs no state.
    """
    sampler = BOUND[name]
    whole = sampler.epoch(epoch).take(start + sum(sizes))
    rest = sampler.epoch(epoch, start)
    taken = np.concatenate([np.empty(0, np.int64), *(rest.take(size) for size in sizes)])
    assert np.array_equal(taken, whole[start:])
    assert (taken.dtype, taken.flags.c_contiguous, rest.state(start)) == (np.int64, True, None)


@pytest.mark.parametrize("name", MAKE)
def test_the_length_is_known_and_true(name: str) -> None:
    """An epoch has as many samples as the sampler says, then none."""
    made, bound = MAKE[name](), BOUND[name]
    whole = bound.epoch(1).take(3 * LENGTH)
    assert bound.length == len(whole)
    assert not hasattr(made, "__len__") or len(made) == len(whole)
    assert (
        bound.epoch(1, len(whole)).take(5).size == bound.epoch(1, len(whole) + 7).take(5).size == 0
    )
    assert whole.min() >= 0
    assert whole.max() < LENGTH


@pytest.mark.parametrize("name", MAKE)
def test_seed_and_epoch_make_the_order(name: str) -> None:
    """Another of either makes another order, unless none was asked for; the same ones the same."""
    one = BOUND[name].epoch(0).take(5000).tolist()
    others = [
        BOUND[name].epoch(1),
        MAKE[name]().bind(LENGTH, 8).epoch(0),
        MAKE[name]().bind(LENGTH, 2**80).epoch(0),
    ]
    assert [other.take(5000).tolist() == one for other in others] == [name == "subset in order"] * 3
    assert MAKE[name]().bind(LENGTH, 7).epoch(0).take(5000).tolist() == one


@pytest.mark.parametrize("name", MAKE)
def test_a_sampler_is_pickled_and_used_again(name: str) -> None:
    """It belongs to no loader: a copy, and another binding, give the same order."""
    made = MAKE[name]()
    copy: Sampler = pickle.loads(pickle.dumps(made))
    for sampler in (made, copy, made):
        bound = sampler.bind(LENGTH, 7)
        assert bound.epoch(3).take(100).tolist() == BOUND[name].epoch(3).take(100).tolist()
        assert (bound.order, repr(sampler)) == (BOUND[name].order, repr(made))


def test_orders_have_names() -> None:
    """Short ones, that tell orders apart: what comes must be the same wherever the name is."""
    names = {name: sampler.order for name, sampler in BOUND.items()}
    assert (
        len({*names.values()}) == len(names) - 1
    )  # the length alone tells the two weighted ones apart
    assert names["weighted"] == names["weighted, longer"]
    assert all(
        re.fullmatch(r"(weighted|subset|stratified):[0-9a-f]{8}|window:\d+:\d+", name)
        for name in names.values()
    )
    assert [names["window"], names["wide window"]] == ["window:1000:31", "window:7000:64"]
    assert all(len(order) <= 40 for order in names.values())
    assert all(sampler.pure for sampler in BOUND.values())


def test_samplers_say_what_they_are() -> None:
    """In one line."""
    assert [repr(make()) for make in MAKE.values()] == [
        "<WeightedSampler: 10000 draws of 10000 weights>",
        "<WeightedSampler: 20001 draws of 10000 weights>",
        "<WeightedSampler: 5000 draws of 10000 weights without replacement>",
        "<SubsetSampler: 5000 indices, shuffled>",
        "<SubsetSampler: 4 indices, in their order>",
        "<SubsetSampler: 4998 indices, shuffled>",
        "<StratifiedSampler: 10000 labels of 7 classes>",
        "WindowShuffle(1000, block=31)",
        "WindowShuffle(7000, block=64)",
        "WindowShuffle(10, block=3)",
    ]


# Written down once: a change would alter the orders of everyone who trains. Position 4094 lies
# before the end of a chunk.
PREFIXES = """
import numpy as np
import ringfeed
weights = np.arange(5000) % 7
made = {
    "weighted": ringfeed.orders.WeightedSampler(weights),
    "without": ringfeed.orders.WeightedSampler(weights, replacement=False),
    "subset": ringfeed.orders.SubsetSampler(range(0, 10000, 2)),
    "stratified": ringfeed.orders.StratifiedSampler(weights),
    "window": ringfeed.orders.WindowShuffle(300, block=7),
}
for name, sampler in made.items():
    bound = sampler.bind(10000 if name == "subset" else 5000, 11)
    print(name, bound.order, *bound.epoch(2).take(6), *bound.epoch(2, 4094).take(4))
"""
EXPECTED = """
weighted weighted:9f2b8621 4434 1320 3366 1503 150 4713 1272 829 4647 3481
without weighted:7e013310 3868 1768 1305 542 1244 3007 1499 2116 4062 2283
subset subset:36165767 7920 8404 8102 2396 3812 7766 9694 3160 6968 9424
stratified stratified:4fca561a 4298 3536 3726 710 4015 3386 4934 3311 4166 1724
window window:300:7 2493 592 2616 345 430 2763 2688 4159 187 967
"""


def test_the_orders_are_what_they_were() -> None:
    """In another process, too."""
    run = subprocess.run(
        [sys.executable, "-c", PREFIXES], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout == EXPECTED.lstrip()


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: ringfeed.orders.WindowShuffle(10_000), 10**12),
        (lambda: ringfeed.orders.SubsetSampler(range(5, 10**12)), 10**12),
    ],
    ids=["window", "subset of a range"],
)
def test_memory_is_flat(make: Callable[[], Sampler], length: int) -> None:
    """300 batches of a million millions, from their midst, are had within two megabytes."""
    tracemalloc.start()
    try:
        epoch = make().bind(length, 0).epoch(0, length // 2)
        for _ in range(300):
            assert epoch.take(128).size == 128
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "most"),
    [("weighted", 8), ("weighted without replacement", 32), ("subset", 8), ("stratified", 16 + 24)],
)
def test_memory_is_what_the_docstring_says(name: str, most: int) -> None:
    """Bytes a sample that stay while an epoch is read, and little besides."""
    size = 100_000
    make: Callable[[], Any] = {
        "weighted": lambda: ringfeed.orders.WeightedSampler(np.arange(size)),
        "weighted without replacement": lambda: ringfeed.orders.WeightedSampler(
            np.arange(size), replacement=False
        ),
        "subset": lambda: ringfeed.orders.SubsetSampler(np.arange(size)),
        "stratified": lambda: ringfeed.orders.StratifiedSampler(np.arange(size) % 10),
    }[name]
    make().bind(size, 0).epoch(0).take(1)  # what is imported
    tracemalloc.start()
    try:
        sampler = make()
        epoch = sampler.bind(size, 0).epoch(0)
        for _ in range(5):
            epoch.take(128)
        stays, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stays < most * size + 3 * 10**5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", MAKE)
def test_a_loader_hands_out_the_order(name: str, workers: int) -> None:
    """Batch by batch, in each epoch, with its own seed, from the workers too."""
    sampler = MAKE[name]()
    with ringfeed.Loader(
        Indices(LENGTH), batch_size=500, seed=7, sampler=sampler, workers=workers, timeout_s=60
    ) as loader:
        length = BOUND[name].length or 0
        assert len(loader) == -(-length // 500)
        for epoch in range(2):
            numbers = np.concatenate([batch.copy() for batch in loader])
            assert np.array_equal(numbers, BOUND[name].epoch(epoch).take(length))


@pytest.mark.parametrize("name", MAKE)
def test_a_loader_goes_on_in_the_order(name: str) -> None:
    """Made anew, with the sampler made anew, from a state that holds numbers and the order's name.

    Twice over.
    """
    whole = BOUND[name].epoch(0).take(3 * LENGTH)
    batch_size = 3 if len(whole) < 100 else 700
    found: list[int] = []
    state: dict[str, Any] | None = None
    for batches in (1, 0, 4):
        with ringfeed.Loader(
            Indices(LENGTH), batch_size=batch_size, seed=7, sampler=MAKE[name](), workers=0
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            for _ in range(min(batches, loader.remaining or 0)):
                found += next(iterator).tolist()
            state = json.loads(json.dumps(loader.state_dict()))
            assert state["order"] == BOUND[name].order
    assert found == whole[: 5 * batch_size].tolist()


def test_a_state_of_other_weights_is_refused() -> None:
    """The same length, seed and dataset do not make the same order."""
    with ringfeed.Loader(
        Indices(3), workers=0, sampler=ringfeed.orders.WeightedSampler([1, 2, 3])
    ) as loader:
        state = loader.state_dict()
    with ringfeed.Loader(
        Indices(3), workers=0, sampler=ringfeed.orders.WeightedSampler([1, 2, 4])
    ) as other:
        with pytest.raises(ringfeed.StateError) as e:
            other.load_state_dict(state)
        ours = other.state_dict()["order"]
    assert str(e.value) == (
        f"the state was taken with order {state['order']!r}, and this loader has order {ours!r}; "
        "give the loader the same shuffle=, sampler= and weights; or load it with strict=False, "
        "which begins epoch 0 anew"
    )


class Growing(Indices):
    """A dataset that is longer in its second epoch."""

    def on_epoch_begin(self) -> None:
        self.length += 1


def test_a_dataset_that_grew_is_measured_again() -> None:
    """A sampler that does not fit it any more says so, in the epoch that it does not fit."""
    with ringfeed.Loader(
        Growing(3), batch_size=9, workers=0, sampler=ringfeed.orders.WindowShuffle(2)
    ) as loader:
        assert [sorted(next(iter(loader)).tolist()) for _ in range(2)] == [
            [0, 1, 2, 3],
            [0, 1, 2, 3, 4],
        ]
    given = ringfeed.orders.WeightedSampler([1, 2, 3])
    with ringfeed.Loader(Growing(3), batch_size=9, workers=0, sampler=given) as loader:
        with pytest.raises(ValueError, match="weights") as e:
            iter(loader)
        assert (
            str(e.value)
            == "WeightedSampler has 3 weights, but the dataset has 4 samples; give one for each"
        )


def test_positions_are_asked_a_chunk_at_a_time() -> None:
    """Each once, and none past the end."""
    asked: list[tuple[int, int]] = []

    def indices_at(start: int, stop: int) -> Any:
        asked.append((start, stop))
        return np.arange(start, stop, dtype=np.int64)

    epoch = PositionalEpoch(indices_at, 25, 3, 10)
    assert [epoch.take(count).tolist() for count in (4, 9, 99, 1)] == [
        [3, 4, 5, 6],
        [*range(7, 16)],
        [*range(16, 25)],
        [],
    ]
    assert asked == [(3, 13), (13, 23), (23, 25)]


# What a loader's own parameters choose


def test_a_number_shuffles_windows() -> None:
    """``shuffle=10_000`` is the WindowShuffle of that window; a bool is what it was."""
    window = sampler_of(shuffle=100).bind(LENGTH, 7)
    assert window.order == "window:100:10"
    assert window.epoch(1).take(LENGTH).tolist() == (
        ringfeed.orders.WindowShuffle(100).bind(LENGTH, 7).epoch(1).take(LENGTH).tolist()
    )
    for whole in (True, np.True_):
        shuffle: Any = whole
        assert sampler_of(shuffle=shuffle).bind(LENGTH, 7).order == "shuffled"
    counted: Any = np.int64(100)
    with ringfeed.Loader(
        Indices(LENGTH), batch_size=100, shuffle=counted, seed=7, workers=0
    ) as loader:
        assert loader.shuffle is True
        assert not loader.is_in_order
        assert np.array_equal(
            np.concatenate([batch.copy() for batch in loader]), window.epoch(0).take(LENGTH)
        )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"shuffle": 1},
            ValueError,
            "shuffle=1 must be at least 2, the samples of a window; or give True or False",
        ),
        (
            {"shuffle": 0},
            ValueError,
            "shuffle=0 must be at least 2, the samples of a window; or give True or False",
        ),
        (
            {"shuffle": -5},
            ValueError,
            "shuffle=-5 must be at least 2, the samples of a window; or give True or False",
        ),
        (
            {"shuffle": 2.0},
            TypeError,
            "shuffle=2.0 must be an int, the samples of a window; or give True or False",
        ),
        (
            {"shuffle": "batch"},
            TypeError,
            "shuffle='batch' must be an int, the samples of a window; or give True or False",
        ),
        (
            {"shuffle": 20, "sampler": [1]},
            ValueError,
            "shuffle=20 and sampler= exclude each other: give the one or the other",
        ),
        (
            {"shuffle": True, "sampler": ringfeed.orders.WindowShuffle(5)},
            ValueError,
            "shuffle=True and sampler= exclude each other: give the one or the other",
        ),
        (
            {"dataset": lambda: iter(range(9)), "shuffle": 20},
            ValueError,
            "shuffle=20 needs a dataset whose samples have numbers, and an iterable comes in its "
            "own order; shuffle inside the iterable, or give a dataset with __len__ and "
            "__getitem__",
        ),
        (
            {"dataset": lambda: iter(range(9)), "sampler": ringfeed.orders.SubsetSampler([1])},
            ValueError,
            "sampler= needs a dataset whose samples have numbers, and an iterable comes in its "
            "own order; shuffle inside the iterable, or give a dataset with __len__ and "
            "__getitem__",
        ),
    ],
)
def test_what_is_no_order_is_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """By the loader, when it is made; 1 may mean True or a window of one, so it is not guessed."""
    with pytest.raises(error) as e:
        ringfeed.Loader(arguments.pop("dataset", Indices(9)), workers=0, **arguments)
    assert str(e.value) == text


def test_a_window_needs_a_length() -> None:
    """Nothing says how many samples there are to mix."""
    with pytest.raises(ValueError, match="shuffle") as e:
        sampler_of(shuffle=10).bind(None, 0)
    assert (
        str(e.value)
        == "shuffle=10 needs a dataset with a length; shuffle inside the dataset instead"
    )


def test_a_seed_is_drawn_once() -> None:
    """``seed=None`` is another one for each loader, which its repr shows.

    With it the run comes again.
    """
    drawn = []
    for _ in range(2):
        with ringfeed.Loader(
            Indices(LENGTH), batch_size=LENGTH, shuffle=True, seed=None, workers=0
        ) as loader:
            first, second = (next(iter(loader)).tolist() for _ in range(2))
            head, seed, tail = repr(loader).split(", ", 2)
        assert (head, tail.split(",", maxsplit=1)[0]) == (
            "<Loader of Indices: batches of 10000",
            "no workers",
        )
        number = int(seed.removeprefix("seed: "))
        assert 0 <= number < 2**53
        drawn.append(number)
        with ringfeed.Loader(
            Indices(LENGTH), batch_size=LENGTH, shuffle=True, seed=number, workers=0
        ) as again:
            assert [next(iter(again)).tolist() for _ in range(2)] == [first, second]
            assert "seed" not in repr(again)
    assert drawn[0] != drawn[1]


class Draws(Indices):
    """Each sample is a random number of its own."""

    def __getitem__(self, index: int) -> int:
        return int(ringfeed.rng().integers(2**62))


def test_a_drawn_seed_is_that_of_the_samples() -> None:
    """`ringfeed.rng` draws by it."""
    with ringfeed.Loader(Draws(20), batch_size=20, seed=None, workers=0) as loader:
        numbers = next(iter(loader)).tolist()
        seed = int(repr(loader).split("seed: ")[1].split(",")[0])
    with ringfeed.Loader(Draws(20), batch_size=20, seed=seed, workers=0) as again:
        assert next(iter(again)).tolist() == numbers
