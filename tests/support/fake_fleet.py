"""A fleet whose actors are threads of the bridge: with deaths, delays, doubled and late answers as a script says.

The script travels as the ``runtime_env`` of a `FakeRay`. Calls are counted from 1 over all actors
of a bridge:

nodes       how many actors each has room for; default: "a" and "b" with 8 each
kills       calls in which an actor dies
answered    calls after whose answer it dies
hangs       calls that are never answered
late        calls that are answered after so many seconds, by number
doubles     calls that are answered twice
unreached   calls that do not come through
broken      calls that are not carried out
poison      indices of the dataset that kill each actor
vanishes    nodes, and the calls from which on they are no more and nothing comes from there, once an actor has started
mute        nodes whose actors do not say where they are
refuses     nodes whose actors do not start
differs     nodes whose actors run another NumPy
bridge_dies the number of the call in which the bridge itself is killed
lives       a file: then only in its first life
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from ringfeed.ray.desk import Desk, facts_here
from ringfeed.ray.hiring import Node
from ringfeed.ray.options import Ray

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class FakeRay(Ray):
    """Workers that are threads of the bridge."""

    fleet: ClassVar[tuple[str, str]] = "fake_fleet", "FakeFleet"

    def check_ready(self) -> None:
        """Need nothing."""

    def found_address(self) -> str:
        """Return the address of no cluster."""
        return "nowhere"


class FakeActor:
    """A thread with a desk; a dead one answers no more."""

    def __init__(self, fleet: FakeFleet, number: int, node: str, papers: bytes) -> None:
        self.fleet, self.number, self.node = fleet, number, node
        self.is_dead = False
        self.orders: SimpleQueue[Any] = SimpleQueue()
        self._papers = papers
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def tell(self, event: tuple[Any, ...]) -> None:
        """Have the bridge see an event, unless this actor is dead, or its node."""
        if not self.is_dead and self.node in self.fleet.rooms():
            self.fleet.events.put(event)

    def die(self, why: str) -> None:
        """Answer no more."""
        self.tell(("died", self.number, why))
        self.is_dead = True

    def _run(self) -> None:
        script = self.fleet.script
        if self.node in script.get("refuses", ()):
            self.tell(("refused", self.number, ModuleNotFoundError("No module named 'pictures'")))
            return
        desk = Desk(self._papers)
        while not self.is_dead:
            order = self.orders.get()
            if order[0] == "open":
                desk.open(*order[1:])
                facts = facts_here()
                if self.node in script.get("differs", ()):
                    facts = facts | {"numpy": "0.9"}
                if order is self.fleet.first.get(self.number):
                    self.tell(("hired", self.number, facts))
                    self.fleet.started.add(self.node)
            elif order[0] == "fill":
                self._fill(desk, *order[1:])
        desk.close()

    def _fill(self, desk: Desk, flight: int, order: tuple[int, int, list[int]]) -> None:
        script, call = self.fleet.script, self.fleet.count()
        if script.get("bridge_dies") == call and self.fleet.is_first_life():
            os.kill(os.getpid(), signal.SIGKILL)
        if call in script.get("kills", ()) or set(order[2]) & {*script.get("poison", ())}:
            self.die("was killed")
        elif call in script.get("hangs", ()):
            while not self.is_dead:
                time.sleep(0.01)
        elif call in script.get("unreached", ()):
            self.tell(("unreached", flight))
        elif call in script.get("broken", ()):
            self.tell(("broken", flight, "no such thing"))
        else:
            filled = pickle.loads(pickle.dumps(desk.fill(*order)))
            time.sleep(script.get("late", {}).get(call, 0))
            self.tell(("answered", flight, filled))
            if call in script.get("doubles", ()):
                self.tell(("answered", flight, filled))
            if call in script.get("answered", ()):
                self.die("was killed")


class FakeFleet:
    """Actors that are threads of this process."""

    def __init__(self, terms: Any) -> None:
        self.script: dict[str, Any] = {"nodes": {"a": 8, "b": 8}, **(terms.ray.runtime_env or {})}
        self.events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.first: dict[int, Any] = {}
        self._actors: dict[int, FakeActor] = {}
        self.started: set[str] = set()
        self._calls = 0
        self._lock = threading.Lock()

    def count(self) -> int:
        """Return the number of a call that begins."""
        with self._lock:
            self._calls += 1
            return self._calls

    def is_first_life(self) -> bool:
        """Whether no bridge of this script has been killed before."""
        if "lives" not in self.script:
            return True
        try:
            Path(self.script["lives"]).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def rooms(self) -> dict[str, int]:
        """Return how many actors each node has room for that is there."""
        rooms, vanishes = self.script["nodes"], self.script.get("vanishes", {})
        gone = {name for name in self.started & vanishes.keys() if self._calls >= vanishes[name]}
        return {name: rooms[name] for name in rooms if name not in gone}

    def nodes(self) -> list[Node]:
        """Return the nodes of the script."""
        places = {name: f"10.0.0.{place}" for place, name in enumerate(self.script["nodes"])}
        return [Node(name, places[name], {"CPU": room}) for name, room in self.rooms().items()]

    def put(self, piece: Any) -> Any:
        """Keep a piece, read-only as in an object store."""
        kept = piece.copy()
        kept.flags.writeable = False
        return kept

    def hire(self, actor: int, node: str, papers: bytes, pieces: Sequence[Any]) -> None:
        """Start a thread."""
        hired = self._actors[actor] = FakeActor(self, actor, node, papers)
        self.first[actor] = order = ("open", *pieces)
        hired.orders.put(order)

    def send(self, actor: int, pieces: Sequence[Any]) -> None:
        """Tell it of a version."""
        self._actors[actor].orders.put(("open", *pieces))

    def call(self, actor: int, flight: int, order: tuple[int, int, list[int]]) -> None:
        """Have it fill rows."""
        self._actors[actor].orders.put(("fill", flight, order))

    def ask_stack(self, actor: int) -> None:
        """Say where its thread is, unless it does not say."""
        if (asked := self._actors[actor]).node not in self.script.get("mute", ()):
            frame = sys._current_frames()[asked.thread.ident or 0]
            lines = [
                f'  File "{at.filename}", line {at.lineno} in {at.name}'
                for at in traceback.extract_stack(frame)
            ]
            self.events.put(
                ("stack", actor, "\n".join(["Thread (most recent call first):", *reversed(lines)]))
            )

    def dismiss(self, actor: int) -> None:
        """Have it answer no more."""
        if (gone := self._actors.pop(actor, None)) is not None:
            gone.is_dead = True
            gone.orders.put(("leave",))

    def next(self, timeout_s: float) -> tuple[Any, ...] | None:
        """Return the next event."""
        try:
            return self.events.get(timeout=timeout_s)
        except Empty:
            return None

    def close(self) -> None:
        """End all."""
        for actor in [*self._actors]:
            self.dismiss(actor)
