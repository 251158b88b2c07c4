"""A shuffle for storage that is read in order.

Blocks in a new order, their samples mixed within windows.
"""

from __future__ import annotations

from hashlib import shake_256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from ringfeed.orders.permutation import permute

pytestmark = pytest.mark.once


def documented_order(length: int, window: int, block: int, seed: int, epoch: int) -> list[int]:
    """Return the whole order as the module's docstring says it, with lists of blocks."""
    whole = length // block
    order = permute(np.arange(whole), whole, seed, epoch).tolist() if whole else []
    blocks = [[*range(i * block, (i + 1) * block)] for i in order]
    if length % block:
        text = shake_256(
            f"ringfeed window {seed:x}/{epoch:x}/{length:x}/{block:x}".encode()
        ).digest(8)
        blocks.insert(int.from_bytes(text, "little") % (whole + 1), [*range(whole * block, length)])
    samples = []
    for number, first in enumerate(range(0, len(blocks), window // block)):
        side_by_side = [
            sample for those in blocks[first : first + window // block] for sample in those
        ]
        text = shake_256(f"ringfeed window {seed:x}/{number:x}".encode()).digest(16)
        places = np.arange(len(side_by_side))
        mixed = permute(places, len(side_by_side), int.from_bytes(text, "little"), epoch)
        samples += [side_by_side[place] for place in mixed]
    return samples


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(0, 300),
    window=st.integers(2, 60),
    data=st.data(),
    seed=st.integers(0, 2**200),
    epoch=st.integers(0, 2**70),
)
def test_the_order_is_what_the_docstring_says(
    length: int, window: int, data: Any, seed: int, epoch: int
) -> None:
    """Every sample once, from any position, also where the last block is short."""
    block = data.draw(st.integers(1, window))
    bound = ringfeed.orders.WindowShuffle(window, block).bind(length, seed)
    expected = documented_order(length, window, block, seed, epoch)
    assert sorted(expected) == [*range(length)]
    assert bound.epoch(epoch).take(length + 1).tolist() == expected
    start = data.draw(st.integers(0, length))
    assert bound.epoch(epoch, start).take(7).tolist() == expected[start : start + 7]


@pytest.mark.parametrize(
    ("length", "window", "block"), [(100_003, 10_000, 100), (100_000, 9000, 4000)]
)
def test_long_orders_are_what_the_docstring_says(length: int, window: int, block: int) -> None:
    """Past the lengths that are sorted."""
    bound = ringfeed.orders.WindowShuffle(window, block=block).bind(length, 3)
    assert bound.epoch(1).take(length).tolist() == documented_order(length, window, block, 3, 1)


def test_a_window_reads_few_blocks() -> None:
    """Each window of the order has whole blocks alone, each of them in one window only."""
    order = ringfeed.orders.WindowShuffle(100, block=20).bind(1000, 0).epoch(0).take(1000)
    blocks = [{*(window // 20).tolist()} for window in order.reshape(10, 100)]
    assert all(len(those) == 5 for those in blocks)
    assert set[int]().union(*blocks) == {*range(50)}


def test_the_short_block_has_no_place_of_its_own() -> None:
    """The last samples of a dataset come early and late.

    37.7 is the 99.9 % point for 15 degrees of freedom.
    """
    bound = ringfeed.orders.WindowShuffle(4, block=4).bind(61, 0)
    places = [bound.epoch(epoch).take(61).tolist().index(60) // 4 for epoch in range(3200)]
    assert ((np.bincount(places, minlength=16) - 200) ** 2 / 200).sum() < 37.7


def test_a_window_as_long_as_the_dataset_mixes_all() -> None:
    """So does a longer one; nothing is asked of memory for it."""
    for window in (100, 10**30):
        order = (
            ringfeed.orders.WindowShuffle(window, block=10).bind(100, 0).epoch(0).take(100).tolist()
        )
        assert sorted(order) == [*range(100)]
        assert len({number // 10 for number in order[:10]}) > 3
    order = ringfeed.orders.WindowShuffle(10**40).bind(100, 0).epoch(0).take(100).tolist()
    assert sorted(order) == [*range(100)]


@pytest.mark.parametrize(
    ("given_arguments", "error", "text"),
    [
        ((0,), ValueError, "window=0 must be at least 2"),
        ((1,), ValueError, "window=1 must be at least 2"),
        ((-3,), ValueError, "window=-3 must be at least 2"),
        ((True,), TypeError, "window=True must be an int"),
        ((2.5,), TypeError, "window=2.5 must be an int"),
        ((10, 0), ValueError, "block=0 must be at least 1"),
        ((10, True), TypeError, "block=True must be an int"),
        (
            (10, 11),
            ValueError,
            (
                "block is 11, expected at most the window's 10 samples; raise window= or make "
                "block= smaller"
            ),
        ),
    ],
)
def test_what_is_no_window_is_refused(
    given_arguments: Any, error: type[Exception], text: str
) -> None:
    """When it is made."""
    with pytest.raises(error) as e:
        ringfeed.orders.WindowShuffle(*given_arguments)
    assert str(e.value) == text


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (
            None,
            "sampler=WindowShuffle(...) needs a dataset with a length; shuffle inside the dataset "
            "instead",
        ),
        (2**62 + 1, "cannot shuffle 4611686018427387905 samples: 2**62 is the most"),
    ],
)
def test_a_length_that_cannot_be_shuffled_is_refused(length: int | None, text: str) -> None:
    """When a loader is made."""
    with pytest.raises(ValueError, match="shuffle") as e:
        ringfeed.orders.WindowShuffle(10).bind(length, 0)
    assert str(e.value) == text
