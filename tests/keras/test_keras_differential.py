"""Datasets on random settings are, fed and under `install()`, what Keras itself makes of them."""

from __future__ import annotations

import pytest

import differential_keras

ROUNDS = 6  # of each test; `make fuzz` has hundreds


@pytest.mark.once
@pytest.mark.parametrize("first", range(0, 2 * ROUNDS, ROUNDS))
def test_a_model_is_given_what_keras_gives_it(first: int) -> None:
    """Hooks, callbacks that change the dataset, lengths that change, and errors.

    Batch by batch the same.
    """
    for seed in range(first, first + ROUNDS):
        differential_keras.run_round(seed, [])
