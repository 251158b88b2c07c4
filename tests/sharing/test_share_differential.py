"""Trainings of one share, some of which leave or are killed, have the batches of a plain loop."""

from __future__ import annotations

import pytest

import differential_share


@pytest.mark.once
@pytest.mark.parametrize("seed", range(6))
def test_a_training_has_the_batches_of_a_plain_loop(seed: int) -> None:
    """Each has all of them, or its ranks' part, whatever becomes of the others."""
    differential_share.run_round(seed, [])
