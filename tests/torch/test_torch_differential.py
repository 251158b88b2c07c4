"""Scripts on random settings see with ringfeed's DataLoader what they see with torch's."""

from __future__ import annotations

import pytest

import differential_torch

ROUNDS = 6  # of each test; `make fuzz` has hundreds


@pytest.mark.once
@pytest.mark.parametrize("first", range(0, 5 * ROUNDS, ROUNDS))
def test_a_script_sees_what_it_sees_with_torchs_class(first: int) -> None:
    """Batches, errors in their places, and where torch's generators are."""
    for seed in range(first, first + ROUNDS):
        differential_torch.run_round(seed, [])
