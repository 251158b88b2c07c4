"""A worker that dies in a function that has a whole batch.

The error names the function and the batch, not a sample.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import ringfeed

pytestmark = pytest.mark.once


class Numbers:
    """Sample i is three numbers i."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(3, index, np.float32)


class WholeBatches:
    """Batch i has rows of 2 * i and 2 * i + 1."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> np.ndarray:
        return np.repeat(np.float32([2 * index, 2 * index + 1]), 3).reshape(2, 3)


def dies_changing(batch: np.ndarray) -> None:
    """End the worker that has sample 5."""
    if 5 in batch[:, 0]:
        os._exit(3)


def dies_collating(samples: list[np.ndarray]) -> np.ndarray:
    """Do the same before the batch is made."""
    dies_changing(np.stack(samples))
    return np.stack(samples)


SAMPLES = "dataset[4], dataset[5], dataset[6], dataset[7]"
CASES: list[tuple[Any, dict[str, Any], str]] = [
    (
        Numbers(),
        {"batch_size": 4, "batch_transform": dies_changing},
        f"the batch of {SAMPLES}: batch_transform",
    ),
    (
        Numbers(),
        {"batch_size": 4, "collate_fn": dies_collating},
        f"the batch of {SAMPLES}: collate_fn",
    ),
    (
        WholeBatches(),
        {"batch_size": None, "batch_transform": dies_changing},
        "the batch of dataset[2]: batch_transform",
    ),
]
NAMES = ["batch_transform", "collate_fn", "whole batches"]


@pytest.mark.parametrize("concurrency", [None, 4])
@pytest.mark.parametrize(("dataset", "settings", "where"), CASES, ids=NAMES)
@pytest.mark.usefixtures("nothing_left")
def test_the_function_and_the_batch_are_named(
    dataset: Any, settings: dict[str, Any], where: str, concurrency: int | None
) -> None:
    """And no sample of it, which did nothing wrong."""
    how = {"workers": 2, "backend": "fork", "timeout_s": 60, "concurrency": concurrency}
    loader = ringfeed.Loader(dataset, **how, **settings)
    with loader, pytest.raises(ringfeed.WorkerError) as caught:
        for _ in loader:
            pass
    assert (
        str(caught.value)
        == f"{where} ended 3 workers; the last one exited with status 3; try it with workers=0"
    )


@pytest.mark.parametrize("concurrency", [None, 4])
@pytest.mark.parametrize(("dataset", "settings"), [case[:2] for case in CASES], ids=NAMES)
@pytest.mark.usefixtures("nothing_left")
def test_the_whole_batch_is_left_out(
    dataset: Any, settings: dict[str, Any], concurrency: int | None
) -> None:
    """With on_error="skip": not once more for each of its samples, and all others come."""
    how = {"workers": 2, "backend": "fork", "timeout_s": 60, "concurrency": concurrency}
    loader = ringfeed.Loader(dataset, on_error="skip", **how, **settings)
    with loader:
        found = [number for batch in loader for number in batch[:, 0].tolist()]
        skipped = [*loader.stats().skipped]
    lost = [2] if settings["batch_size"] is None else [4, 5, 6, 7]
    assert skipped == lost
    assert sorted(found) == [
        number for number in range(16) if number not in range(4, 8 if len(lost) > 1 else 6)
    ]
