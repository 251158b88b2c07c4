"""A `fit` with `ringfeed.keras.BackupAndRestore` that is killed by SIGKILL, on each backend.

See `killed_training`.
"""

from __future__ import annotations

import importlib.util
import random

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras", minversion="3.7")

from killed_training import check

CASES = [("tensorflow", "loader", "7"), ("jax", "feed", "1"), ("torch", "install", "7")]
KILLS = 2  # a life takes as long as a framework takes to start; twenty are for a long run


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize(("backend", "way", "save_freq"), CASES)
def test_killed(backend: str, way: str, save_freq: str) -> None:
    """A training that is killed at random moments has the curve of one that ran, to the bit."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    check(backend, way, save_freq, KILLS, random.randrange(1 << 32))  # noqa: S311 - it is printed
