"""What a bridge asks of a cluster: nodes, actors on them, and calls whose answers come as events.

Whatever places actors and moves bytes is one more `Fleet`; `ray_fleet` has the one for Ray. No method but ``next``
waits for an actor: what becomes of a call is an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringfeed.ray.desk import Facts, Reply


class Node(NamedTuple):
    """A node that is alive."""

    name: str  # that its actors are placed by
    address: str  # for people
    resources: Mapping[str, float]  # all that it has
    store: int  # bytes that its actors share


class Hired(NamedTuple):
    """An actor has started, and can be called."""

    actor: int
    facts: Facts


class Refused(NamedTuple):
    """An actor has not started: what it was given does not open there, or it has no room."""

    actor: int
    error: BaseException


class Answer(NamedTuple):
    """What a call has given."""

    flight: int
    reply: Reply


class Died(NamedTuple):
    """An actor is no more; its calls are answered no more."""

    actor: int
    why: str


class Unreached(NamedTuple):
    """A call has not come through, or its answer has not, and the actor may live."""

    flight: int


class Broken(NamedTuple):
    """A call was not carried out, by no fault of a sample's."""

    flight: int
    error: BaseException
    is_full: bool = False  # whether a store or a disk had no room for the answer


class Stack(NamedTuple):
    """The Python stack of an actor that was asked for, or why there is none."""

    actor: int
    text: str


Event = Hired | Refused | Answer | Died | Unreached | Broken | Stack


class Fleet(Protocol):
    """Actors on the nodes of a cluster. `next` is of one thread, the others of any, one at a time."""

    def nodes(self) -> list[Node]:
        """Return the nodes that the cluster takes for alive."""

    def put(self, piece: Any) -> Any:
        """Keep a piece of a dataset where all actors find it; returns what names it."""

    def hire(self, actor: int, node: str, papers: bytes, version: int, pieces: Sequence[Any]) -> None:
        """Start an actor on a node: see `Desk`."""

    def send(self, actor: int, version: int, pieces: Sequence[Any]) -> None:
        """Tell an actor of a version of the dataset, ahead of the calls that name it."""

    def call(self, actor: int, flight: int, order: tuple[int, int, list[int]]) -> None:
        """Have an actor fill rows: see `Desk.fill`."""

    def dismiss(self, actor: int) -> None:
        """End an actor, whatever it is at."""

    def ask_stack(self, actor: int) -> None:
        """Have an actor's stack be read, whatever it is at."""

    def next(self, timeout_s: float) -> Event | None:
        """Return the next event; None: none came."""

    def close(self) -> None:
        """End all actors, and let go of the cluster."""
