"""When a batch goes out as a copy: by the states of the slots alone, without any framework."""

from __future__ import annotations

from typing import Any

import pytest

from ringfeed.adapters.aliases import Memory, Outstanding


class Slots:
    """A loader of which only the slots are looked at."""

    def __init__(self, states: list[str]) -> None:
        self.states = states

    def slot_states(self) -> list[str]:
        return self.states


@pytest.mark.parametrize(
    ("states", "room"),
    [
        (["held", "free", "held"], True),
        (["held", "filling", "held"], True),
        (["ready", "held", "held"], True),
        (["held", "held", "held"], False),
        (["draining", "held", "held"], False),  # it may be in quarantine, and never come back
    ],
)
def test_one_slot_is_always_left_to_be_filled(states: list[str], room: bool) -> None:  # noqa: FBT001
    """Where every other slot is held or drains the batch is copied, and counted."""
    loader: Any = Slots(states)
    outstanding = Outstanding(loader)
    memory = Memory(alias=lambda capsule: capsule, adopt=lambda array: array)
    assert outstanding.has_room(memory) == room
    assert outstanding.copied == (0 if room else 1)
