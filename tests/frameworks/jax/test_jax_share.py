"""`ringfeed.share` with JAX: arrays of the training's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed
import shared

jax = pytest.importorskip("jax", reason="jax is not installed")

pytestmark = pytest.mark.usefixtures("nothing_left")
CAST = ("float32", None)


def make(workers: int = 1) -> ringfeed.Loader[Any]:
    """Return a loader of pixels and their numbers."""
    pixels = np.random.default_rng(0).integers(0, 256, (96, 5, 7), np.uint8)
    return ringfeed.Loader(
        (pixels, np.arange(96)), batch_size=8, shuffle=True, seed=3, workers=workers
    )


def test_arrays_hold_no_slot() -> None:
    """All can be kept; they are what a loader gives, casts included."""
    name = shared.unique("jax")
    with ringfeed.share(make, name=name, ranks=1, mode="broadcast", timeout_s=60) as training:
        group = shared.group_of(training.host_pid)
        kept = [*training.to_jax(), *training.to_jax(cast=CAST)]
    with make(workers=0) as loader:
        epochs = loader.to_jax(), loader.to_jax(cast=CAST)
        expected = [tuple(map(np.array, batch)) for epoch in epochs for batch in epoch]
    for batch, wanted in zip(kept, expected, strict=True):
        for leaf, its in zip(batch, wanted, strict=True):
            assert isinstance(leaf, jax.Array)
            assert leaf.dtype == its.dtype
            assert np.array_equal(leaf, its)
    assert training.stats().copies == 0
    shared.gone(group)
