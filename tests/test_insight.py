"""`ringfeed.insight`: statistics in time and in words."""

from __future__ import annotations

import time

import pytest

import ringfeed
from datasets import Oracle


@pytest.mark.usefixtures("nothing_left")
def test_elapsed_is_the_time_of_epochs() -> None:
    """It counts while an epoch is under way, whether it ends by itself, is broken off or closed, and never between."""
    with ringfeed.Loader(Oracle(40), batch_size=8, workers=1, slots=2) as loader:
        assert loader.stats().elapsed_s == 0
        for _ in loader:
            pass
        first_s = loader.stats().elapsed_s
        assert first_s > 0
        time.sleep(0.01)
        assert loader.stats().elapsed_s == first_s
        batches = iter(loader)
        next(batches)
        second_s = loader.stats().elapsed_s
        assert second_s > first_s
        time.sleep(0.01)
        third_s = loader.stats().elapsed_s
        assert third_s >= second_s + 0.01
    last_s = loader.stats().elapsed_s
    assert last_s >= third_s
    assert loader.stats().elapsed_s == last_s


def test_the_verdict_is_of_these_statistics() -> None:
    """It is brought up to date with them."""
    with ringfeed.Loader(Oracle(40), batch_size=8, workers=0) as loader:
        assert loader.stats().verdict == "too early to say: 0 batches in 0.0 s"
        for _ in loader:
            pass
        stats = loader.stats()
        stats.elapsed_s = 10.0
        assert loader.stats().verdict.startswith("in this process: ")
