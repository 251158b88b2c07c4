"""The bijection behind the shuffled order, against the same in plain ints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.orders._permute import MAX_LENGTH, ROUNDS, walk
from ringfeed.orders.permutation import MAX_SORTED_LENGTH, permute
from ringfeed.orders.rng import derive

pytestmark = pytest.mark.once

MULTIPLIER = 0xD2B74407B1CE6E93


def once(number: int, keys: list[int], bits: int) -> int:
    """One pass of VariablePhilox, as the paper has it."""
    low, high = bits // 2, bits - bits // 2
    left, right = number >> high, number % 2**high
    for key in keys:
        product = left * MULTIPLIER % 2**64
        left = ((product >> 32) ^ key ^ right) % 2**low
        right = (((right >> low) | product << 1) if bits % 2 else product) % 2**high
    return left << high | right


def walked(number: int, keys: list[int], length: int) -> int:
    """Pass after pass, until it is a sample."""
    bits = (length - 1).bit_length()
    number = once(number, keys, bits)
    while number >= length:
        number = once(number, keys, bits)
    return number


lengths = st.one_of(
    st.integers(2, 70),
    st.integers(MAX_SORTED_LENGTH + 1, 2**20),
    st.integers(1, 61).map(lambda bits: 2**bits + 1),
    st.integers(1, 62).map(lambda bits: 2**bits),
    st.integers(2, MAX_LENGTH),
)
keys_of_rounds = st.lists(st.integers(0, 2**32 - 1), min_size=ROUNDS, max_size=ROUNDS)


@settings(deadline=None)
@given(length=lengths, keys=keys_of_rounds, count=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_numbers_go_where_plain_ints_go(
    length: int, keys: list[int], count: int, seed: int
) -> None:
    """Whatever the length and the number of them at once.

    Blocks, their rests, and those that walk on.
    """
    numbers = np.random.default_rng(seed).integers(0, length, count, dtype=np.uint64)
    expected = [walked(int(number), keys, length) for number in numbers]
    walk(numbers, length, np.array(keys, np.uint32))
    assert numbers.tolist() == expected


@pytest.mark.parametrize(
    "length", [MAX_SORTED_LENGTH + 1, 2**13, 2**13 + 1, 50_000, 2**31 + 5, MAX_LENGTH]
)
def test_an_order_is_that_of_plain_ints(length: int) -> None:
    """With the keys that the order is defined by."""
    keys = np.frombuffer(derive("order", (7, 3, length), 4 * ROUNDS), "<u4").tolist()
    positions = [0, 1, 2, length // 2, length - 2, length - 1]
    assert permute(np.array(positions), length, 7, 3).tolist() == [
        walked(at, keys, length) for at in positions
    ]


def test_every_number_of_a_whole_order_comes_once() -> None:
    """A bijection, also where nearly half of the numbers walk on."""
    numbers = np.arange(2**14 + 1, dtype=np.uint64)
    walk(numbers, len(numbers), np.arange(ROUNDS, dtype=np.uint32))
    assert sorted(numbers.tolist()) == list(range(2**14 + 1))


@pytest.mark.parametrize(
    ("keys", "length"), [(ROUNDS - 1, 5), (ROUNDS, 1), (ROUNDS, MAX_LENGTH + 1)]
)
def test_what_it_cannot_do_is_refused(keys: int, length: int) -> None:
    """Too few keys, and lengths whose halves have no room."""
    with pytest.raises(ValueError, match=r".") as caught:
        walk(np.zeros(3, np.uint64), length, np.zeros(keys, np.uint32))
    assert str(caught.value) == f"{keys} keys and {length} samples, expected 24 and 2 to {2**62}"
