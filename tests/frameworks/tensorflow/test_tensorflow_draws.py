"""Batches of a `ringfeed.orders.PrioritizedSampler` as elements of tf.data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

LENGTH = 40


@pytest.mark.parametrize("way", [{}, {"copy": True}])  # by the op, and in Python
def test_indices_and_weights_stay_with_their_samples(way: dict[str, Any]) -> None:
    """Also where tf.data reads ahead of the step; updates come from its elements."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, alpha=1, beta=1, num_samples=401)
    columns = {"x": np.arange(LENGTH, dtype=np.float32)}
    count = 0
    with ringfeed.Loader(
        columns, batch_size=8, sampler=sampler, workers=1, backend="thread", **way
    ) as loader:
        dataset = loader.to_tf_dataset()
        assert [spec.dtype for spec in tf.nest.flatten(dataset.element_spec)] == [
            tf.float32,
            tf.int64,
            tf.float32,
        ]
        for sample, index, weight in dataset.prefetch(2):
            assert sample["x"].numpy().tolist() == index.numpy().tolist()
            assert 0 < float(tf.reduce_min(weight)) <= float(tf.reduce_max(weight)) <= 1
            sampler.update(index, sample["x"] % 3 + 0.5)
            count += len(index)
    assert (count, sampler.updates) == (401, 51)
