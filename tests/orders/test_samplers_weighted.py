"""Samples drawn by weight: the documented stream, the proportions, and weights that are none."""

from __future__ import annotations

import math
from collections import Counter
from hashlib import shake_256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from ringfeed.orders.weighted import _negative_log

pytestmark = pytest.mark.once

MASK = 2**64 - 1


def philox(counter: int, key: tuple[int, int]) -> list[int]:
    """Return a block of Philox4x64-10, in plain integers: J.

    Salmon and others, SC 2011, table 2.
    """
    a, b, c, d = (counter >> 64 * i & MASK for i in range(4))
    low, high = key
    for _ in range(10):
        first, second = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b, c, d = (second >> 64) ^ b ^ low, second & MASK, (first >> 64) ^ d ^ high, first & MASK
        low, high = low + 0x9E3779B97F4A7C15 & MASK, high + 0xBB67AE8584CAA73B & MASK
    return [a, b, c, d]


def word(position: int, seed: int, epoch: int, count: int) -> int:
    """Return the documented word of a position."""
    text = shake_256(f"ringfeed weighted {seed:x}/{epoch:x}/{count:x}".encode()).digest(16)
    key = int.from_bytes(text[:8], "little"), int.from_bytes(text[8:], "little")
    return philox(position // 4 + 1, key)[position % 4]


def drawn(weights: list[float], position: int, seed: int, epoch: int) -> int:
    """Return the documented sample of a position, with replacement."""
    point = (word(position, seed, epoch, len(weights)) >> 11) * 2.0**-53
    sums: list[float] = []
    for weight in weights:
        sums.append(float(weight) + (sums[-1] if sums else 0.0))
    return next(number for number, below in enumerate(sums) if below > point * sums[-1])


def ordered(weights: list[float], seed: int, epoch: int) -> list[int]:
    """Return the documented order without replacement, up to the last bit of a logarithm."""
    keys = {}
    for number, weight in enumerate(weights):
        uniform = ((word(number, seed, epoch, len(weights)) >> 12) + 0.5) / 2**52
        if weight:
            keys[number] = (-math.log(uniform) / weight, number)
    return sorted(keys, key=lambda number: keys[number])


WEIGHTS = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=9).filter(any)


@settings(deadline=None)
@given(
    weights=WEIGHTS,
    position=st.integers(0, 2**64),
    seed=st.integers(0, 2**200),
    epoch=st.integers(0, 2**70),
)
def test_draws_are_what_the_docstring_says(
    weights: list[float], position: int, seed: int, epoch: int
) -> None:
    """The stream of words, and what a word means, as written down; at any position."""
    bound = ringfeed.orders.WeightedSampler(weights, 2**65).bind(len(weights), seed)
    numbers = bound.epoch(epoch, position).take(3).tolist()
    assert numbers == [drawn(weights, position + i, seed, epoch) for i in range(3)]


@settings(deadline=None)
@given(weights=WEIGHTS, seed=st.integers(0, 2**200), epoch=st.integers(0, 2**70))
def test_draws_without_replacement_are_what_the_docstring_says(
    weights: list[float], seed: int, epoch: int
) -> None:
    """Each sample of a weight above 0 once, in the order of their keys."""
    sampler = ringfeed.orders.WeightedSampler(weights, replacement=False)
    assert sampler.bind(len(weights), seed).epoch(epoch).take(99).tolist() == ordered(
        weights, seed, epoch
    )


def test_the_logarithm_is_one() -> None:
    """To the last bits, over the whole range of words."""
    some = np.random.default_rng(0).integers(0, 2**64, 10**5, np.uint64)
    words = np.concatenate([np.array([0, 2**64 - 1], np.uint64), some])
    exact = -np.log(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
    assert (np.abs(_negative_log(words) / exact - 1) < 1e-15).all()
    assert (_negative_log(words) > 0).all()


# Proportions


def chi_squared(counts: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Return Pearson's statistic."""
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_follow_the_weights(seed: int) -> None:
    """A million draws of 100 weights pass Pearson's test.

    148.2 is its 99.9 % point for 99 degrees of freedom.
    """
    weights = np.random.default_rng(5).integers(1, 50, 100)
    numbers = ringfeed.orders.WeightedSampler(weights, 10**6).bind(100, seed).epoch(0).take(10**6)
    assert chi_squared(np.bincount(numbers, minlength=100), 10**6 * weights / weights.sum()) < 148.2


def test_neighbours_are_independent() -> None:
    """Pairs of draws, one after another, too.

    124.8 is the 99.9 % point for 80 degrees of freedom.
    """
    weights = np.array([1, 2, 3, 4, 5, 4, 3, 2, 1]) / 25
    numbers = ringfeed.orders.WeightedSampler(weights, 10**6).bind(9, 3).epoch(0).take(10**6)
    pairs = np.bincount(numbers[::2] * 9 + numbers[1::2], minlength=81)
    assert chi_squared(pairs, 5 * 10**5 * np.outer(weights, weights).ravel()) < 124.8


def test_draws_without_replacement_follow_the_weights_that_are_left() -> None:
    """All orders of 4 samples, over 20,000 epochs.

    49.7 is the 99.9 % point for 23 degrees of freedom.
    """
    weights = [1.0, 2.0, 3.0, 5.0]
    bound = ringfeed.orders.WeightedSampler(weights, replacement=False).bind(4, 0)
    found = Counter(tuple(bound.epoch(epoch).take(4).tolist()) for epoch in range(20_000))
    expected = {}
    for order in found:
        left, expected[order] = sum(weights), 20_000.0
        for number in order:
            expected[order] *= weights[number] / left
            left -= weights[number]
    assert len(found) == 24
    assert sum((found[order] - expected[order]) ** 2 / expected[order] for order in found) < 49.7


def test_what_weighs_nothing_is_never_drawn() -> None:
    """At the first place, the last, and between."""
    weights = [0, 0, 1, 0, 2, 0]
    assert {
        *ringfeed.orders.WeightedSampler(weights, 10_000).bind(6, 0).epoch(0).take(10_000).tolist()
    } == {2, 4}
    assert sorted(
        ringfeed.orders.WeightedSampler(weights, replacement=False)
        .bind(6, 0)
        .epoch(0)
        .take(9)
        .tolist()
    ) == [
        2,
        4,
    ]


def test_weights_far_apart() -> None:
    """What is too small beside the rest comes last without replacement.

    No key that overflows is lost.
    """
    weights = [1e-300, 1.0, 5e-324, 0.0]
    bound = ringfeed.orders.WeightedSampler(weights, replacement=False).bind(4, 0)
    assert len(bound.epoch(0).take(9)) == 3
    assert bound.epoch(0).take(1).tolist() == [1]


@pytest.mark.parametrize(
    "weights",
    [
        [1, 2, 3],
        (1, 2, 3),
        np.array([1, 2, 3], np.uint8),
        np.array([1, 2, 3], np.float16),
        iter([1.0, 2.0, 3.0]),
    ],
    ids=str,
)
def test_any_numbers_are_weights(weights: Any) -> None:
    """As float64, so that all make the same draws; later changes to the array change nothing."""
    sampler = ringfeed.orders.WeightedSampler(weights)
    if isinstance(weights, np.ndarray):
        weights[:] = 0
    expected = ringfeed.orders.WeightedSampler([1.0, 2.0, 3.0]).bind(3, 0)
    assert sampler.bind(None, 0).epoch(0).take(3).tolist() == expected.epoch(0).take(3).tolist()
    assert sampler.bind(3, 0).order == expected.order


@pytest.mark.parametrize(
    ("given_arguments", "error", "text"),
    [
        (([1, math.nan],), ValueError, "weights[1] is nan, expected a finite number of 0 or more"),
        (([1, math.inf],), ValueError, "weights[1] is inf, expected a finite number of 0 or more"),
        (
            ([1, 0, -2, -3],),
            ValueError,
            "weights[2] is -2.0, expected a finite number of 0 or more",
        ),
        (([0, 0],), ValueError, "all 2 weights are 0, expected at least one above 0"),
        (
            ([],),
            ValueError,
            "weights are an array of shape (0,), expected one axis, a weight for each sample",
        ),
        ((5,), TypeError, "weights are 5, expected an array or another iterable of numbers"),
        (
            (np.ones((3, 2)),),
            ValueError,
            "weights are an array of shape (3, 2), expected one axis, a weight for each sample",
        ),
        ((["a"],), TypeError, "weights are an array of <U1, expected numbers"),
        (([None],), TypeError, "weights are an array of object, expected numbers"),
        (
            ([1e308] * 2,),
            ValueError,
            "the sum of all weights is infinite; divide them by their largest",
        ),
        (([1], 0), ValueError, "num_samples=0 must be at least 1"),
        (([1], 2.5), TypeError, "num_samples=2.5 must be an int"),
        (([1], True), TypeError, "num_samples=True must be an int"),
        (([1], 1, 1), TypeError, "replacement is 1, expected True or False"),
        (
            ([1, 0, 2], 3, False),
            ValueError,
            "num_samples is 3, but without replacement only the 2 samples of a weight above 0 can "
            "be drawn; give at most 2, or replacement=True",
        ),
    ],
)
def test_what_are_no_weights_is_refused(
    given_arguments: Any, error: type[Exception], text: str
) -> None:
    """When the sampler is made."""
    with pytest.raises(error) as e:
        ringfeed.orders.WeightedSampler(*given_arguments)
    assert str(e.value) == text


@pytest.mark.parametrize("length", [0, 2, 4])
def test_there_is_a_weight_for_each_sample(length: int) -> None:
    """More or fewer are of another dataset."""
    with pytest.raises(ValueError, match="weights") as e:
        ringfeed.orders.WeightedSampler([1, 2, 3]).bind(length, 0)
    assert (
        str(e.value)
        == f"WeightedSampler has 3 weights, but the dataset has {length} samples; give one for each"
    )
