"""Which actors are asked for their stacks, and for how long they are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ringfeed.ray.board import LONGEST, STACKS, Board, Inquiry
from ringfeed.ray.crew import NAMED

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
    found.begin(1, at_work, fleet)
    return found, asked


def test_the_actors_that_take_longest_are_asked() -> None:
    """The others are named alone."""
    found, asked = inquiry(20)
    assert asked == [*range(STACKS)]
    assert found.said() == {"inquiry": 1, "stacks": dict.fromkeys(map(str, range(STACKS)))}


def test_a_stack_is_kept_as_far_as_there_is_room() -> None:
    """And none that comes late from another inquiry."""
    found, _ = inquiry(9)
    found.note(3, "\n" + "x" * 2 * LONGEST)
    found.note(99, "of another inquiry")
    assert found.said()["stacks"] == {**dict.fromkeys(map(str, range(STACKS))), "3": "x" * LONGEST}


def test_a_board_has_room_for_all_stacks() -> None:
    """In any letters, of as many actors as are named, on a thousand nodes."""
    board, entry = Board(), [10_000, "10.0.0.0", 1000.123456789, 10**12, 1000]
    said = {
        "actors": [entry] * NAMED,
        "stacks": dict.fromkeys(map(str, range(STACKS)), "\U0001f600" * LONGEST),
        "nodes": {f"100.100.100.{node}": 64 for node in range(1000)},
    }
    board.write(said)
    assert board.read() == said
    board.close()
