"""Programs on random settings have the batches of a plain loop."""

from __future__ import annotations

import pytest

import differential

ROUNDS = 12  # of each test; `make fuzz` has thousands


@pytest.mark.once
@pytest.mark.parametrize("first", range(0, 5 * ROUNDS, ROUNDS))
def test_a_program_has_the_batches_of_a_plain_loop(first: int) -> None:
    """Datasets that change, orders that pop, buffers that are filled again, and stops.

    On every backend the same.
    """
    for seed in range(first, first + ROUNDS):
        differential.run_round(seed, ["numpy"])
