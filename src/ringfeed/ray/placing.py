"""Which node the next actor goes to, how many there is room for, and which nodes start none. Pure decisions.

Left to Ray, the replacement of an actor goes to a node that is dead until Ray notices, 15 s later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ringfeed.ray.fleet import Node

STRIKES = 3  # starts in a row that fail on a node, after which none is tried there


class Placing:
    """The nodes of a cluster, as the actors of one bridge have found them."""

    def __init__(self, need: Mapping[str, float]) -> None:
        """``need``: what an actor asks of its node."""
        self.why: dict[str, BaseException] = {}  # the last refusal of each node that is out
        self._need = {name: amount for name, amount in need.items() if amount}
        self._strikes: Counter[str] = Counter()

    def rooms(self, nodes: Iterable[Node]) -> dict[str, int]:
        """Return how many actors each node has room for, if they are all that it has; without those that are out."""
        return {
            node.name: min(
                (int(node.resources.get(name, 0) / amount) for name, amount in self._need.items()), default=0
            )
            if self._need
            else 1_000_000
            for node in nodes
            if not self.is_out(node.name)
        }

    def is_out(self, node: str) -> bool:
        """Whether no actor starts there."""
        return self._strikes[node] >= STRIKES

    def note_start(self, node: str) -> None:
        """Take note that an actor has started there."""
        del self._strikes[node]
        self.why.pop(node, None)

    def note_refusal(self, node: str, error: BaseException) -> bool:
        """Take note that an actor has not started there; returns whether the node is out with that."""
        self._strikes[node] += 1
        self.why[node] = error
        return self._strikes[node] == STRIKES

    def place(
        self, nodes: Iterable[Node], there: Mapping[str, int], suspects: Collection[str], count: int
    ) -> list[str]:
        """Return the nodes for up to ``count`` more actors: evenly, and none to suspects; ``there``: actors by node."""
        rooms = {name: room for name, room in self.rooms(nodes).items() if name not in suspects}
        taken = Counter(there)
        placed: list[str] = []
        for _ in range(count):
            free = [name for name, room in rooms.items() if taken[name] < room]
            if not free:
                break
            name = min(free, key=lambda one: (taken[one] / rooms[one], one))
            taken[name] += 1
            placed.append(name)
        return placed

    def shown(self, nodes: Iterable[Node]) -> str:
        """Say what an actor asks for, and what each node has of it."""
        asked = ", ".join(f"{name}={amount:g}" for name, amount in self._need.items())
        have = "; ".join(
            f"{node.address} has " + ", ".join(f"{name}={node.resources.get(name, 0):g}" for name in self._need)
            for node in nodes
        )
        return f"an actor asks for {asked}, and of that {have or 'there is no node'}"
