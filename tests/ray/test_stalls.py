"""Which actors are asked for their stacks, and for how long they are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ringfeed.ray.board import LONGEST, SIZE, STACKS, STACKS_S, Board, Inquiry

if TYPE_CHECKING:
    from ringfeed.ray.board import AtWork


def inquiry(actors: int) -> tuple[Inquiry, list[int]]:
    """Return an inquiry into so many actors, and those that are asked for their stacks."""
    asked: list[int] = []
    fleet: Any = SimpleNamespace(ask_stack=asked.append)
    at_work: list[AtWork] = [
        (actor, "10.0.0.0", 9.0 - actor / 100, 0, 1) for actor in range(actors)
    ]
    found = Inquiry()
    found.begin(1, 10.0, at_work, fleet)
    return found, asked


def test_the_actors_that_take_longest_are_asked() -> None:
    """All are named."""
    found, asked = inquiry(20)
    assert asked == [*range(STACKS)]
    assert [entry[0] for entry in found.said()["asked"]] == [*range(20)]


def test_an_actor_is_not_ended_while_its_stack_may_come() -> None:
    """It was silent for as long as training has waited, so it would be."""
    found, _ = inquiry(9)
    assert [actor for actor in range(10) if found.waits_for(actor, 10.1)] == [*range(STACKS)]
    found.note(3, "\n" + "x" * 2 * LONGEST)
    found.note(99, "of another inquiry")
    assert found.said()["stacks"] == {**dict.fromkeys(map(str, range(STACKS))), "3": "x" * LONGEST}
    assert [actor for actor in range(10) if found.waits_for(actor, 10.1)] == [0, 1, 2, 4, 5, 6, 7]
    assert not any(found.waits_for(actor, 10.0 + STACKS_S) for actor in range(10))


def test_a_board_without_room_for_all_stacks_has_none() -> None:
    """What else it says can be read."""
    board, entry = Board(), [1, "10.0.0.0", 1.0, 0, 1]
    board.write(
        {
            "actors": [entry] * 5000,
            "asked": [entry] * 64,
            "stacks": {"1": "x" * SIZE},
            "there": 5000,
        }
    )
    assert board.read() == {"actors": [entry] * 64, "asked": [], "stacks": {}, "there": 5000}
    board.close()
