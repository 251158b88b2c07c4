"""What a bridge makes of nodes on which no actor starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fake_fleet import FakeRay
from ringfeed.ray.crew import Crew
from ringfeed.ray.dispatch import Dispatch
from ringfeed.ray.hiring import STRIKES, Node
from ringfeed.ray.options import BridgeTerms

A, B = (Node(name, f"10.0.0.{place}", {"CPU": 4}) for place, name in enumerate("ab"))


def refused() -> Crew:
    """Return a crew of one actor, which was refused on a node until that was out."""
    hired: list[int] = []
    fleet: Any = SimpleNamespace(hire=lambda actor, *_: hired.append(actor), dismiss=lambda _: None)
    sent: Any = SimpleNamespace(version=0, pieces=())
    source: Any = None
    terms = BridgeTerms(FakeRay(workers=1), "nowhere", 0, 0, False, 0, 2)  # noqa: FBT003
    crew = Crew(fleet, sent, Dispatch(2), terms, source)
    crew.note_nodes([A, B], 0.0)
    for _ in range(STRIKES):
        crew.look(0.0)
        crew.refused(hired.pop(), ImportError("no module"))
    return crew


def test_a_node_that_starts_no_actor_is_named() -> None:
    """Once, with the error from there."""
    crew = refused()
    text = (
        "no actor of ringfeed starts on node 10.0.0.0, and none is tried there any more: "
        "ImportError: no module"
    )
    with pytest.warns(UserWarning, match="no actor") as caught:
        crew.note_nodes([A, B], 1.0)
    assert [str(one.message) for one in caught] == [text]
    assert crew.note_nodes([A, B], 2.0) == []


def test_a_node_that_is_gone_is_not_named_for_starting_no_actor() -> None:
    """Its actors could not start because it has died, which is no fault of an environment."""
    assert refused().note_nodes([B], 1.0) == []
