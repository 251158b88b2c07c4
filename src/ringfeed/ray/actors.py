"""The actors that one bridge has: what each is at, which are late, and which is to make a job. Pure, without clocks.

An actor that is late, a *suspect*, is sent nothing until it answers, but for a probe. A job goes to the actor that has
least to do: on a node without suspects, if there is one, and on another than that of a call of the same job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_S = 2.0  # between two calls to a suspect that owes no answer


class Job:
    """Rows that one call makes. ``stream``: rows of one stream are made in their order by one actor; None: by any."""

    __slots__ = ("alone", "deaths", "flights", "is_over", "order", "rows", "stream", "ticket")

    def __init__(self, ticket: Any, order: int, rows: tuple[int, ...], stream: int | None = None) -> None:
        """Be made for a claim; ``order``: jobs of lower numbers are waited for first."""
        self.ticket, self.order, self.rows, self.stream = ticket, order, rows, stream
        self.deaths = 0  # of actors while they made it, with nothing beside it
        self.alone = False
        self.is_over = False
        self.flights: dict[int, int] = {}  # the actor of each live call


class Flight(NamedTuple):
    """A call that is not over."""

    job: Job
    sent_s: float
    is_probe: bool = False  # whether another call is to make the job


class Actor:
    """What one actor is at."""

    def __init__(self, number: int, node: str) -> None:
        """Begin without calls."""
        self.number, self.node = number, node
        self.flights: dict[int, Flight] = {}  # in the order of their calls
        self.suspect_s: float | None = None  # since when it is one
        self.asked_s = 0.0  # when it was last found not to answer, or was probed

    def has_room(self, job: Job, window: int) -> bool:
        """Whether it may be sent a job beside what it is at."""
        if job.alone:
            return not self.flights
        return len(self.flights) < window and not any(flight.job.alone for flight in self.flights.values())


class Actors:
    """The actors, by their numbers."""

    def __init__(self) -> None:
        """There is none yet."""
        self._all: dict[int, Actor] = {}
        self._suspect_nodes: set[str] = set()
        self._streams: dict[int, int] = {}  # the actor of each stream
        self._next_flight = 1

    # ---- which there are ----

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    def join(self, actor: int, node: str) -> None:
        """Have an actor be sent jobs: one that has said hello."""
        self._all[actor] = Actor(actor, node)

    def leave(self, actor: int) -> dict[int, Flight]:
        """Forget an actor that has died; returns the calls that it had."""
        gone = self._all.pop(actor, None)
        if gone is None:
            return {}
        if all(other.node != gone.node or other.suspect_s is None for other in self._all.values()):
            self._suspect_nodes.discard(gone.node)
        self._leave_streams(actor)
        return gone.flights

    @property
    def nodes(self) -> dict[int, str]:
        """The node of each actor."""
        return {number: actor.node for number, actor in self._all.items()}

    @property
    def trusted(self) -> list[Actor]:
        """Those that are no suspects."""
        return [actor for actor in self._all.values() if actor.suspect_s is None]

    @property
    def suspects(self) -> set[int]:
        """The actors that are late, and are sent nothing until they answer."""
        return {number for number, actor in self._all.items() if actor.suspect_s is not None}

    @property
    def suspect_nodes(self) -> frozenset[str]:
        """Their nodes, until an actor there answers."""
        return frozenset(self._suspect_nodes)

    def idlest(self, count: int) -> list[int]:
        """Return so many actors that have least to do; none where the count is below 0."""
        return sorted(self._all, key=lambda number: len(self._all[number].flights))[: max(0, count)]

    # ---- calls ----

    def send(self, actor: int, made: Flight) -> int:
        """Note a call; returns its number."""
        flight, self._next_flight = self._next_flight, self._next_flight + 1
        self._all[actor].flights[flight] = made
        return flight

    def take(self, flight: int) -> tuple[Actor | None, Flight | None]:
        """Return a call that is over, and its actor; None where it was over before."""
        for actor in self._all.values():
            if (found := actor.flights.pop(flight, None)) is not None:
                found.job.flights.pop(flight, None)
                return actor, found
        return None, None

    def of(self, flight: int) -> int | None:
        """Return the actor of a call that is not over."""
        return next((number for number, actor in self._all.items() if flight in actor.flights), None)

    def under_way(self) -> Iterator[tuple[int, str, float, Job]]:
        """Yield what each actor is at: its number, its node, since when, and the job."""
        for number, actor in self._all.items():
            for job, sent_s, _ in actor.flights.values():
                yield number, actor.node, sent_s, job
                break

    # ---- which is to make a job ----

    def choose(self, job: Job, held: set[int], window: int) -> int | None:
        """Return the actor to send a job to now; None: it waits. ``held``: those that jobs before this one wait for."""
        if job.stream is not None and (owner := self._streams.get(job.stream)) in self._all:
            assert owner is not None
            return owner if self._all[owner].has_room(job, window) else None
        found = min(self._candidates(job, held), key=lambda number: len(self._all[number].flights), default=None)
        if found is None:
            return None
        if not self._all[found].has_room(job, window):
            if job.alone:
                held.add(found)
            return None
        if job.stream is not None:
            self._streams[job.stream] = found
        return found

    def _candidates(self, job: Job, held: set[int]) -> list[int]:
        """Return the actors that may be sent a job: where there are some, those on nodes that are not suspect."""
        used = job.flights.values()
        fit = [
            number
            for number, actor in self._all.items()
            if actor.suspect_s is None and number not in held and number not in used
        ]
        nodes = {self._all[number].node for number in used if number in self._all}
        return (
            [number for number in fit if self._all[number].node not in self._suspect_nodes | nodes]
            or [number for number in fit if self._all[number].node not in nodes]
            or fit
        )

    # ---- which are late ----

    def late(self, sent_s: float) -> list[tuple[Actor, Job]]:
        """Return the calls, not to probe, that were made before a time, and whose jobs are not over."""
        return [
            (actor, flight.job)
            for actor in self._all.values()
            for flight in actor.flights.values()
            if not (flight.job.is_over or flight.is_probe) and flight.sent_s < sent_s
        ]

    def suspect(self, actor: Actor, now_s: float) -> list[Job]:
        """Send an actor nothing until it answers; returns its jobs of streams, with which others are to go on."""
        self._suspect_nodes.add(actor.node)
        actor.asked_s = now_s
        if actor.suspect_s is not None:
            return []
        actor.suspect_s = now_s
        left = self._leave_streams(actor.number)
        return [flight.job for flight in actor.flights.values() if flight.job.stream in left and not flight.job.is_over]

    def trust(self, actor: Actor) -> None:
        """Take note that an actor has answered."""
        actor.suspect_s = None
        self._suspect_nodes.discard(actor.node)

    def _leave_streams(self, actor: int) -> set[int | None]:
        left: set[int | None] = {stream for stream, owner in self._streams.items() if owner == actor}
        self._streams = {stream: owner for stream, owner in self._streams.items() if owner != actor}
        return left

    def to_probe(self, now_s: float) -> Iterator[int]:
        """Yield each suspect that owes no answer and was not asked for a while: it may be back, or dead."""
        for number, actor in self._all.items():
            if actor.suspect_s is not None and not actor.flights and now_s >= actor.asked_s + PROBE_S:
                yield number

    def note_probe(self, actor: int, now_s: float) -> None:
        """Take note that a suspect is asked."""
        self._all[actor].asked_s = now_s

    def overdue(self, now_s: float, timeout_s: float | None) -> list[int]:
        """Return the actors that have been suspects for so long that they are to be ended."""
        if timeout_s is None:
            return []
        return [
            number
            for number, actor in self._all.items()
            if actor.suspect_s is not None and now_s - actor.suspect_s > timeout_s
        ]
