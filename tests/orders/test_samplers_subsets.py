"""Samples chosen by the user: some indices, and classes kept in proportion."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from hashlib import shake_256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from ringfeed.orders.permutation import permute
from ringfeed.orders.subsets import schedule

pytestmark = pytest.mark.once


# Subsets


@given(indices=st.lists(st.integers(0, 50), max_size=30), epoch=st.integers(0, 5))
def test_a_subset_is_permuted(indices: list[int], epoch: int) -> None:
    """Each index comes as often as it is given, in the order of `permute` over the places."""
    bound = ringfeed.orders.SubsetSampler(indices).bind(51, 3)
    places = permute(np.arange(len(indices)), len(indices), 3, epoch) if indices else []
    assert bound.epoch(epoch).take(99).tolist() == [indices[place] for place in places]
    kept = ringfeed.orders.SubsetSampler(indices, shuffle=False).bind(51, 3)
    assert kept.epoch(epoch).take(99).tolist() == indices


@pytest.mark.parametrize(
    "indices", [range(3, 30, 4), range(30, 3, -5), range(5, 5), range(7, 8)], ids=str
)
def test_a_range_is_not_unfolded(indices: range) -> None:
    """It comes as the list of its numbers would."""
    one, other = (
        ringfeed.orders.SubsetSampler(indices).bind(31, 0),
        ringfeed.orders.SubsetSampler([*indices]).bind(31, 0),
    )
    assert one.epoch(4).take(99).tolist() == other.epoch(4).take(99).tolist()


def test_indices_are_copied() -> None:
    """What becomes of the array later is not read."""
    indices = np.array([3, 4], np.uint16)
    sampler = ringfeed.orders.SubsetSampler(indices, shuffle=False)
    indices[:] = 0
    assert sampler.bind(5, 0).epoch(0).take(9).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("indices", "error", "text"),
    [
        ([0.5], TypeError, "indices are an array of float64, expected integers"),
        (
            np.array([True, False]),
            TypeError,
            (
                "indices are an array of bool, expected integers; np.flatnonzero turns a mask "
                "into sample numbers"
            ),
        ),
        (["a"], TypeError, "indices are an array of <U1, expected integers"),
        (
            np.zeros((2, 2), int),
            ValueError,
            "indices are an array of shape (2, 2), expected one axis",
        ),
    ],
)
def test_what_are_no_indices_is_refused(indices: Any, error: type[Exception], text: str) -> None:
    """When the sampler is made."""
    with pytest.raises(error) as e:
        ringfeed.orders.SubsetSampler(indices)
    assert str(e.value) == text


def test_shuffle_is_a_bool() -> None:
    """A window is for samples that lie side by side."""
    window: Any = 100
    with pytest.raises(TypeError) as e:
        ringfeed.orders.SubsetSampler([1], shuffle=window)
    assert (
        str(e.value)
        == "shuffle is 100, expected True or False; the order of indices= is kept by False"
    )


@pytest.mark.parametrize(
    ("indices", "length", "text"),
    [
        ([0, 7, 9], 7, "SubsetSampler has the index 7, but the dataset has 7 samples"),
        ([0, -1], 7, "SubsetSampler has the index -1, but the dataset has 7 samples"),
        (range(3, 10), 7, "SubsetSampler has the index 9, but the dataset has 7 samples"),
        (range(3, -3, -1), 7, "SubsetSampler has the index -2, but the dataset has 7 samples"),
        (
            range(2**70, 2**70 + 1),
            7,
            f"SubsetSampler has the index {2**70}, but the dataset has 7 samples",
        ),
        ([-3], None, "SubsetSampler has the index -3, expected one of 0 or more"),
    ],
)
def test_an_index_that_the_dataset_has_not_is_refused(
    indices: Any, length: int | None, text: str
) -> None:
    """When a loader is made, before anything is read."""
    with pytest.raises(IndexError) as e:
        ringfeed.orders.SubsetSampler(indices).bind(length, 0)
    assert str(e.value) == text


# Strata


def documented_strata(counts: list[int]) -> list[int]:
    """Return the stratum of each position as the docstring says it, without a heap."""
    n, taken, order = sum(counts), [0] * len(counts), []
    for position in range(n):
        ends = [
            (-(-(taken[c] + 1) * n // counts[c]), c)
            for c in range(len(counts))
            if taken[c] < counts[c] and taken[c] * n // counts[c] <= position
        ]
        order.append(min(ends)[1])
        taken[order[-1]] += 1
    return order


COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(deadline=None)
@given(counts=COUNTS)
def test_the_strata_come_as_the_docstring_says(counts: list[int]) -> None:
    """The heap changes nothing."""
    assert schedule(np.array(counts)).tolist() == documented_strata(counts)


@settings(deadline=None)
@given(counts=COUNTS)
def test_every_prefix_has_its_proportions(counts: list[int]) -> None:
    """Exactly: within less than one sample of each class's share, for any counts and any prefix."""
    taken = [0] * len(counts)
    for position, stratum in enumerate(schedule(np.array(counts)).tolist(), 1):
        taken[stratum] += 1
        shares = [Fraction(position * count, sum(counts)) for count in counts]
        assert all(abs(share - number) < 1 for share, number in zip(shares, taken, strict=True))
    assert taken == counts


def test_many_uneven_classes_have_their_proportions() -> None:
    """As many as pictures have, over a hundred thousand positions."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 400, 500)
    order = schedule(counts)
    for size in rng.integers(1, order.size, 200):
        taken = np.bincount(order[:size], minlength=500)
        assert (np.abs(taken * order.size - size * counts) < order.size).all()
    assert np.array_equal(np.bincount(order), counts)


def documented_order(labels: list[Any], seed: int, epoch: int) -> list[int]:
    """Return the whole documented order."""
    classes = sorted({*labels})
    members = [[i for i, label in enumerate(labels) if label == one] for one in classes]
    mixed = []
    for c, those in enumerate(members):
        text = shake_256(f"ringfeed stratum {seed:x}/{c:x}".encode()).digest(16)
        places = permute(np.arange(len(those)), len(those), int.from_bytes(text, "little"), epoch)
        mixed.append(iter([those[place] for place in places]))
    return [next(mixed[c]) for c in documented_strata([len(those) for those in members])]


@settings(deadline=None)
@given(
    labels=st.lists(st.sampled_from([3, -1, 7, 0]), min_size=1, max_size=60),
    epoch=st.integers(0, 3),
)
def test_the_order_is_what_the_docstring_says(labels: list[int], epoch: int) -> None:
    """Every sample once, each class permuted by a seed of its own.

    Names of classes make no difference.
    """
    expected = documented_order(labels, 5, epoch)
    bound = ringfeed.orders.StratifiedSampler(labels).bind(len(labels), 5)
    assert bound.epoch(epoch).take(99).tolist() == expected
    names = [f"class {label + 2}" for label in labels]
    for strings in (names, np.array(names), np.array(names, object)):
        named = ringfeed.orders.StratifiedSampler(strings).bind(None, 5)
        assert (named.epoch(epoch).take(99).tolist(), named.order) == (expected, bound.order)


def test_batches_are_alike() -> None:
    """A rare class comes in every batch that has room for it.

    Epochs differ within the classes alone.
    """
    labels = np.array([0] * 90 + [1] * 10)[np.random.default_rng(0).permutation(100)]
    bound = ringfeed.orders.StratifiedSampler(labels).bind(100, 0)
    epochs = [bound.epoch(epoch).take(100) for epoch in range(2)]
    for order in epochs:
        assert [Counter(batch.tolist()) for batch in labels[order].reshape(10, 10)] == [
            Counter({0: 9, 1: 1})
        ] * 10
    assert np.array_equal(labels[epochs[0]], labels[epochs[1]])
    assert not np.array_equal(*epochs)


def test_classes_are_permuted_apart() -> None:
    """Two classes of one size do not come in the same order of theirs."""
    bound = ringfeed.orders.StratifiedSampler([0] * 50 + [1] * 50).bind(100, 0)
    order = bound.epoch(0).take(100)
    assert (order[order < 50] + 50).tolist() != order[order >= 50].tolist()


@pytest.mark.parametrize(
    ("labels", "error", "text"),
    [
        ([], ValueError, "labels are an array of shape (0,), expected one axis, 1 to 2**31 labels"),
        (
            np.eye(3, dtype=int),
            ValueError,
            "labels are an array of shape (3, 3), expected one axis, 1 to 2**31 labels; "
            ".argmax(axis=1) makes labels of one-hot rows",
        ),
        (
            np.zeros(3),
            TypeError,
            "labels are an array of float64, expected integers or strings; .astype(int) makes "
            "integers of whole numbers",
        ),
        (["a", "b", None], TypeError, "labels[2] is None, expected all integers or all strings"),
        (["a", 1], TypeError, "labels[1] is 1, expected all integers or all strings"),
        ([1, "a"], TypeError, "labels[1] is 'a', expected all integers or all strings"),
        ([0.5], TypeError, "labels[0] is 0.5, expected all integers or all strings"),
        (
            np.zeros(2, complex),
            TypeError,
            "labels are an array of complex128, expected integers or strings",
        ),
    ],
)
def test_what_are_no_labels_is_refused(labels: Any, error: type[Exception], text: str) -> None:
    """When the sampler is made."""
    with pytest.raises(error) as e:
        ringfeed.orders.StratifiedSampler(labels)
    assert str(e.value) == text


def test_there_is_a_label_for_each_sample() -> None:
    """More or fewer are of another dataset."""
    with pytest.raises(ValueError, match="labels") as e:
        ringfeed.orders.StratifiedSampler([1, 2, 3]).bind(4, 0)
    assert (
        str(e.value)
        == "StratifiedSampler has 3 labels, but the dataset has 4 samples; give one for each"
    )
