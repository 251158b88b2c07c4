"""Batches of a `ringfeed.orders.PrioritizedSampler` as tensors."""

from __future__ import annotations

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")

LENGTH = 40
COLUMNS = {"x": np.arange(LENGTH, dtype=np.float32)}


def test_indices_and_weights_are_tensors_and_so_may_updates_be() -> None:
    """They belong to the samples of their batch, on which a training step computes."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, alpha=1, beta=1, num_samples=400)
    errors = torch.ones(LENGTH)
    with ringfeed.Loader(
        COLUMNS, batch_size=8, sampler=sampler, workers=1, backend="thread"
    ) as loader:
        for sample, index, weight in loader.to_torch():
            assert (index.dtype, weight.dtype) == (torch.int64, torch.float32)
            assert sample["x"].long().tolist() == index.tolist()
            assert weight.max() <= 1
            errors[index] = sample["x"] % 3 + 0.5
            sampler.update(index, errors[index])
    assert len(errors.unique()) == 3
    powers = sampler.state_dict()["powers"]
    np.testing.assert_allclose(powers, errors.numpy())


def test_a_run_of_tensors_goes_on() -> None:
    """The state of `to_torch` counts what the loop was handed."""

    def run(
        batches: int, state: object = None, powers: object = None
    ) -> tuple[list[int], object, object]:
        sampler = ringfeed.orders.PrioritizedSampler(LENGTH, num_samples=80)
        found: list[int] = []
        with ringfeed.Loader(
            COLUMNS, batch_size=8, sampler=sampler, workers=1, backend="thread"
        ) as loader:
            epochs = loader.to_torch()
            if state is not None:
                epochs.load_state_dict(state)
                sampler.load_state_dict(powers)
            for sample, index, _ in epochs:
                found += index.tolist()
                sampler.update(index, sample["x"] % 5 + 0.1)
                if len(found) == 8 * batches:
                    break
            return found, epochs.state_dict(), sampler.state_dict()

    whole, _, _ = run(10)
    first, state, powers = run(4)
    rest, _, _ = run(6, state, powers)
    assert first + rest == whole
