"""What Buckets refuses, and what a loader refuses of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("lengths", "given_settings", "error", "text"),
    [
        (
            5,
            {"batch_sizes": 2},
            TypeError,
            "lengths is 5, expected an array or another iterable of integers or floats",
        ),
        (
            ["a"],
            {"batch_sizes": 2},
            TypeError,
            "lengths is an array of <U1, expected integers or floats",
        ),
        (
            [True],
            {"batch_sizes": 2},
            TypeError,
            "lengths is an array of bool, expected integers or floats",
        ),
        (
            [None],
            {"batch_sizes": 2},
            TypeError,
            "lengths is an array of object, expected integers or floats",
        ),
        (
            [[1, 2]],
            {"batch_sizes": 2},
            ValueError,
            "lengths is an array of shape (1, 2), expected one axis",
        ),
        (
            [],
            {"batch_sizes": 2},
            ValueError,
            "lengths is empty, expected the length of each sample",
        ),
        (
            [3, -1],
            {"batch_sizes": 2},
            ValueError,
            "lengths[1] is -1, expected a number from 0 to 2**53",
        ),
        (
            [3, np.nan],
            {"batch_sizes": 2},
            ValueError,
            "lengths[1] is nan, expected a number from 0 to 2**53",
        ),
        (
            [np.inf],
            {"batch_sizes": 2},
            ValueError,
            "lengths[0] is inf, expected a number from 0 to 2**53",
        ),
        (
            [3],
            {"batch_sizes": 2, "boundaries": (4, 8, 8)},
            ValueError,
            "boundaries[2] is 8, expected more than the one before it: give them in ascending order",
        ),
        (
            [3],
            {"batch_sizes": 2, "boundaries": (4, np.nan)},
            ValueError,
            "boundaries[1] is nan, expected a number from 0 to 2**53",
        ),
        (
            [3],
            {"batch_sizes": (2, 3), "boundaries": (4, 8)},
            ValueError,
            "batch_sizes has 2 numbers, expected 3: one for each part that 2 boundaries divide "
            "the lengths into, or one number for all",
        ),
        ([3], {"batch_sizes": 0}, ValueError, "batch_sizes=0 must be at least 1"),
        (
            [3],
            {"batch_sizes": 1.5},
            TypeError,
            "batch_sizes=1.5 must be an int",
        ),
        (
            [3],
            {"batch_sizes": (2, True), "boundaries": (4,)},
            TypeError,
            "batch_sizes[1]=True must be an int",
        ),
        (
            [3],
            {},
            ValueError,
            (
                "Buckets needs batch_sizes=, the samples of a batch, or max_tokens=, what a batch "
                "may cost"
            ),
        ),
        (
            [3],
            {"batch_sizes": 2, "max_tokens": 9},
            ValueError,
            "batch_sizes= and max_tokens= exclude each other: give the one or the other; the "
            "loader's max_batch_size= bounds the samples that max_tokens= gives",
        ),
        (
            [3],
            {"max_tokens": "9"},
            TypeError,
            "max_tokens is '9', expected a finite number above 0",
        ),
        ([3], {"max_tokens": 0}, ValueError, "max_tokens is 0, expected a finite number above 0"),
        (
            [3],
            {"max_tokens": np.nan},
            ValueError,
            "max_tokens is nan, expected a finite number above 0",
        ),
        (
            [3, 600, 4],
            {"max_tokens": 512},
            ValueError,
            "lengths[1] is 600, and a batch of this sample alone costs 600, more than "
            "max_tokens=512; raise max_tokens=, or leave the sample out of the dataset",
        ),
        (
            [3, 30, 4],
            {"max_tokens": 512, "cost": lambda some: some[-1] ** 2},
            ValueError,
            "lengths[1] is 30, and a batch of this sample alone costs 900, more than "
            "max_tokens=512; raise max_tokens=, or leave the sample out of the dataset",
        ),
        (
            [9, 3, 4],
            {"max_tokens": 5, "cost": lambda some: 7 if some[-1] < 4 else 5 * some.size},
            ValueError,
            "lengths[1] is 3, and a batch of this sample alone costs 7, more than max_tokens=5; "
            "raise max_tokens=, or leave the sample out of the dataset",
        ),
        (
            [3],
            {"batch_sizes": 2, "cost": np.sum},
            ValueError,
            "cost= says what counts against max_tokens=; give that, or leave cost= out",
        ),
        (
            [3],
            {"max_tokens": 9, "cost": 2},
            TypeError,
            "cost is of type int, expected a function from lengths to a number",
        ),
        (
            [3, 7],
            {"max_tokens": 9, "cost": lambda _: None},
            ValueError,
            "cost= returned None for 1 samples of lengths 7 to 7, expected a finite number of 0 "
            "or more, what a batch of them costs",
        ),
        (
            [3, 7],
            {"max_tokens": 9, "cost": lambda _: float("nan")},
            ValueError,
            "cost= returned nan for 1 samples of lengths 7 to 7, expected a finite number of 0 or "
            "more, what a batch of them costs",
        ),
        (
            [3],
            {"batch_sizes": 2, "window": 0},
            ValueError,
            "window=0 must be at least 1",
        ),
        (
            [3],
            {"batch_sizes": 2, "window": 2.5},
            TypeError,
            "window=2.5 must be an int",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(
    lengths: Any, given_settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    """By its name, what it is and what was expected, when it is made, or when a loader cuts it."""
    with pytest.raises(error) as e:
        ringfeed.orders.Buckets(lengths, **given_settings).shared_by(1, "pad", None)
    assert str(e.value) == text


def made(**given_settings: Any) -> ringfeed.Loader:
    """Return a loader of three samples."""
    return ringfeed.Loader(np.arange(3), workers=0, **given_settings)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: made(batch_sampler=ringfeed.orders.Buckets([1, 2], batch_sizes=2)),
            "Buckets has 2 lengths, but the dataset has 3 samples; give one for each",
        ),
        (
            lambda: made(sampler=ringfeed.orders.Buckets([1, 2, 3], batch_sizes=2)),
            "Buckets gives whole batches: give it as batch_sampler=, and leave sampler= out",
        ),
        (
            lambda: made(
                batch_sampler=ringfeed.orders.Buckets([1, 2, 3], batch_sizes=4), max_batch_size=2
            ),
            "batch_sizes has 4, but a batch may have max_batch_size=2 samples; leave "
            "max_batch_size= out, or make batch_sizes smaller",
        ),
        (
            lambda: made(
                batch_sampler=ringfeed.orders.Buckets([1, 2, 3], batch_sizes=4),
                batch_size=4,
                shuffle=True,
            ),
            "batch_sampler= says which samples each batch has; leave batch_size= and shuffle= out",
        ),
        (
            lambda: ringfeed.Loader(
                lambda: iter(range(3)),
                batch_sampler=ringfeed.orders.Buckets([1] * 3, batch_sizes=2),
            ),
            "batch_sampler= needs a dataset whose samples have numbers, and an iterable comes in "
            "its own order; shuffle inside the iterable, or give a dataset with __len__ and "
            "__getitem__",
        ),
        (
            lambda: ringfeed.Loader(
                ringfeed.datasets.Mix([[1], [2]]),
                batch_sampler=ringfeed.orders.Buckets([1] * 2, batch_sizes=2),
                workers=0,
            ),
            "batch_sampler= is for one dataset, and a Mix has an order of its own; give Mix() "
            "weights=, and the loader shuffle=",
        ),
    ],
)
def test_what_does_not_fit_a_loader_is_refused(make: Callable[[], Any], text: str) -> None:
    """When the loader is made."""
    with pytest.raises(ValueError, match=re.escape(text)) as e:
        make()
    assert str(e.value).startswith(text)
