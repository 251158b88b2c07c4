"""How many actors a bridge has, and on which nodes. These are pure decisions, without clocks.

The bridge chooses the node of each actor: left to Ray, the replacement of an actor goes to a node
that is dead until Ray notices, 15 s later.

Where the number of actors is "auto", there are more while training waits for them, and fewer where
it does not. The signal is the share of the time that training waits for batches, which the bridge
reads in the control block. It says nothing of why, so actors are added only where those that there
are have no more to give.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ringfeed.monitor.bottleneck import BUSY, HEADROOM, WAITED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

STRIKES = 3  # starts in a row that fail on a node, after which none is tried there
LOOK_S = 2.0  # a shorter time says nothing
CALM = 5  # looks in a row without a wait, after which actors leave
SETTLED = 0.01  # of the time: training that waits less does not wait
FACTOR = 2
SPARE = 0.8  # where fewer than this part of the actors would do, the others leave


class Node(NamedTuple):
    """A node that is alive."""

    name: str  # that its actors are placed by
    address: str  # for people
    resources: Mapping[str, float]  # all that it has


class Placing:
    """The nodes of a cluster, as the actors of one bridge have found them."""

    def __init__(self, need: Mapping[str, float]) -> None:
        """``need``: what an actor asks of its node."""
        self.why: dict[str, BaseException] = {}  # the last refusal of each node that is out
        self._need = {name: amount for name, amount in need.items() if amount}
        self._strikes: Counter[str] = Counter()

    def rooms(self, nodes: Iterable[Node]) -> dict[str, int]:
        """Return how many actors each node could have if it were empty; leaves out barred nodes."""
        fit = [node for node in nodes if self._strikes[node.name] < STRIKES]
        need = self._need.items()
        return {
            node.name: min(
                (int(node.resources.get(name, 0) / amount) for name, amount in need),
                default=1_000_000,
            )
            for node in fit
        }

    def note_start(self, node: str) -> None:
        """Take note that an actor has started there."""
        del self._strikes[node]
        self.why.pop(node, None)

    def note_refusal(self, node: str, error: BaseException, strikes: int = 1) -> bool:
        """Take note that an actor has not started there; returns whether the node is out now."""
        was_in = self._strikes[node] < STRIKES
        self._strikes[node] += strikes
        self.why[node] = error
        return was_in and self._strikes[node] >= STRIKES

    def place(
        self, nodes: Iterable[Node], there: Mapping[str, int], suspects: Collection[str], count: int
    ) -> list[str]:
        """Return nodes for up to ``count`` more actors, evenly; ``there``: actors by node."""
        taken = Counter(there)
        placed: list[str] = []
        rooms = {name: room for name, room in self.rooms(nodes).items() if name not in suspects}
        while len(placed) < count and (
            free := [name for name in rooms if taken[name] < rooms[name]]
        ):
            placed.append(min(free, key=lambda name: (taken[name] / rooms[name], name)))
            taken[placed[-1]] += 1
        return placed

    def shown(self, nodes: Iterable[Node]) -> str:
        """Say what an actor asks for, and what each node has of it."""
        asked = ", ".join(f"{name}={amount:g}" for name, amount in self._need.items())
        have = "; ".join(
            f"{node.address} has "
            + ", ".join(f"{name}={node.resources.get(name, 0):g}" for name in self._need)
            for node in nodes
        )
        return f"an actor asks for {asked}, and of that {have or 'there is no node'}"


class Scaling:
    """Decides on the number of actors, from ``least`` to ``most``."""

    def __init__(self, least: int, most: int, *, may_grow: bool) -> None:
        """``may_grow``: whether workers here are as many as help."""
        self.may_grow = may_grow
        self._least, self._most = least, most
        self._seen: tuple[float, float, float] | None = None
        self._calm = 0

    def look(self, now_s: float, waited_s: float, worked_s: float, wanted: int, there: int) -> int:
        """Return how many actors there are to be, of which so many are wanted and there.

        ``waited_s``: what training has waited in all; ``worked_s``: what all actors have worked.
        """
        seen = now_s, waited_s, worked_s
        if self._seen is None or there < wanted:
            self._seen = seen
            return wanted
        elapsed_s, waited, busy = (
            now - before for now, before in zip(seen, self._seen, strict=True)
        )
        if elapsed_s < LOOK_S:
            return wanted
        waited, busy = waited / elapsed_s, busy / (elapsed_s * max(1, there))
        self._seen = seen
        self._calm = self._calm + 1 if waited < SETTLED else 0
        if waited >= WAITED and (busy >= BUSY or not there):
            return min(self._most, max(1, FACTOR * there)) if self.may_grow else wanted
        enough = max(self._least, math.ceil(there * busy * HEADROOM))
        if self._calm >= CALM and enough < SPARE * there:
            self._calm = 0
            return enough
        return wanted
