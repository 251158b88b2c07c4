"""What becomes of rows: which actor makes which, and what to do where actors die or fall silent.

    add ──▶ waiting ── sends ──▶ in flight on one actor ── answered ──▶ over
               ▲                    │            │
               │                    │            └── tick: late: hedged to a second actor
               └── lost, unreached ─┘            the first answer counts, later ones are dropped

An actor answers its calls in their order, so the one that it runs is the oldest not answered. A
first death in a job of several rows blames none: each row goes on as a job of its own, with nothing
beside it on its actor, since an answer may be lost with the death of the call after it. A row that
has then cost ``max_attempts`` actors is given up.

An actor that is late, a *suspect*, is sent nothing until it answers. One that owes no answer, since
its calls did not come through, is tried with one job after a while. A job goes to the actor that
has least to do: on another node than that of a call of the same job, and on a node without
suspects, where there are such.

These are pure decisions: the caller has the clock, makes the calls and holds a lock.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections import deque
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from ringfeed.ray.pace import WINDOW
from ringfeed.ray.stats import RemoteStats

FLIGHTS = 2  # live calls of one job, at most
TRY_S = 2.0  # after which a suspect that owes no answer is tried again
HEDGE_S = 1.0  # a call is hedged after so long, or
HEDGE_MEDIANS = 3  # after so many medians, each of up to four calls' work
FIRST_S = 10.0  # while no call was answered: an actor may import what the dataset needs
SEEN = 64  # calls that the median is of


class Job:
    """Rows that one call makes.

    ``stream``: one actor makes the rows of a stream, in their order. None: any actor may.
    """

    __slots__ = ("actors", "alone", "deaths", "is_over", "order", "rows", "stream", "ticket")

    def __init__(
        self, ticket: Any, order: int, rows: tuple[int, ...], stream: int | None = None
    ) -> None:
        """Be made for a claim; ``order``: jobs of lower numbers are waited for first."""
        self.ticket, self.order, self.rows, self.stream = ticket, order, rows, stream
        self.deaths = 0  # of actors while they made it, with nothing beside it
        self.alone = False
        self.is_over = False
        self.actors: set[int] = set()  # that are to make it


class Flight(NamedTuple):
    """A call that is not over."""

    job: Job
    sent_s: float


class Actor:
    """What one actor is at."""

    def __init__(self, number: int, node: str) -> None:
        """Begin without calls."""
        self.number, self.node = number, node
        self.flights: dict[int, Flight] = {}  # in the order of their calls
        self.is_suspect = False
        self.late_s = 0.0  # when it was last found not to answer
        self.rests = False  # whether it is sent nothing

    def has_room(self, job: Job, window: int) -> bool:
        """Whether it may be sent a job beside what it is at."""
        if job.alone:
            return not self.flights
        window = 1 if self.is_suspect else window
        return len(self.flights) < window and not any(
            flight.job.alone for flight in self.flights.values()
        )


class Dispatch:
    """The jobs of one bridge, and the actors that it has."""

    def __init__(
        self, max_attempts: int, *, splits: bool = True, most_calls: int = sys.maxsize
    ) -> None:
        """``splits``: whether rows of a job can be made one by one.

        ``most_calls``: how many are under way at a time; one for each actor is in any case.
        """
        self.actors: dict[int, Actor] = {}  # those that have said hello
        self.suspect_nodes: set[str] = set()  # until an actor there answers
        self.counts = RemoteStats()
        """What the bridge has done; times are those of all calls together."""
        self.window = WINDOW
        self._took_s: deque[float] = deque(maxlen=SEEN)
        self._max_attempts, self._splits, self._most_calls = max_attempts, splits, most_calls
        self._waiting: list[Job] = []  # by order
        self._live: dict[Job, None] = {}  # neither over nor given up
        self._streams: dict[int, int] = {}  # the actor that was sent the last job of each stream
        self._last_flight = 0

    # ---- actors ----

    def join(self, actor: int, node: str) -> None:
        """Have an actor be sent jobs."""
        self.actors[actor] = Actor(actor, node)

    @property
    def suspects(self) -> set[int]:
        """The actors that are late, and are sent nothing until they answer."""
        return {number for number, actor in self.actors.items() if actor.is_suspect}

    @property
    def _trusted(self) -> list[Actor]:
        return [actor for actor in self.actors.values() if not actor.rests]

    def idlest(self, count: int) -> list[int]:
        """Return so many actors that have least to do; none where the count is below 0."""
        return sorted(self.actors, key=lambda number: len(self.actors[number].flights))[
            : max(0, count)
        ]

    def actor_of(self, flight: int) -> int | None:
        """Return the actor of a call that is not over."""
        return next(
            (number for number, actor in self.actors.items() if flight in actor.flights), None
        )

    def under_way(self) -> list[tuple[int, Flight]]:
        """Return the call that each actor is at."""
        return [
            (number, next(iter(actor.flights.values())))
            for number, actor in self.actors.items()
            if actor.flights
        ]

    # ---- jobs ----

    @property
    def room(self) -> int:
        """How many more jobs may be added."""
        return self._calls_of(len(self._trusted)) - self.jobs

    def _calls_of(self, actors: int) -> int:
        return max(actors, min(self.window * actors, self._most_calls))

    @property
    def jobs(self) -> int:
        """How many jobs are not over."""
        return len(self._live)

    def add(self, job: Job) -> None:
        """Have a job be made."""
        self._live[job] = None
        self._wait(job)

    def _wait(self, job: Job) -> None:
        """Have a job be sent once more, unless it is, or calls enough are to make it."""
        if not job.is_over and len(job.actors) < FLIGHTS and job not in self._waiting:
            self.counts.hedged += bool(job.actors)
            insort(self._waiting, job, key=attrgetter("order"))

    def _end(self, job: Job) -> None:
        job.is_over = True
        self._live.pop(job, None)
        if job in self._waiting:
            self._waiting.remove(job)

    def drop(self, ticket: Any) -> None:
        """Forget the jobs of a claim; answers that still come for them are dropped."""
        for job in [job for job in self._live if job.ticket is ticket]:
            self._end(job)

    # ---- calls ----

    def sends(self, now_s: float) -> list[tuple[int, int, Job]]:
        """Return the calls for the caller to make: the actor, the number and the job of each."""
        made: list[tuple[int, int, Job]] = []
        # What suspects owe may never come, and does not count.
        trusted = self._trusted
        free = self._calls_of(len(trusted)) - sum(len(actor.flights) for actor in trusted)
        held: set[int] = set()  # actors that are to have nothing beside a job that waits for them
        stopped: set[int | None] = set()  # streams of which an earlier job waits
        for job in [*self._waiting]:
            if len(made) >= free:
                break
            waits = job.stream is not None and job.stream in stopped
            actor = None if waits else self._choose(job, held)
            if actor is not None:
                self._waiting.remove(job)
                job.actors.add(actor.number)
                made.append(self._send(actor, Flight(job, now_s)))
            elif job.alone or job.stream is not None or job.actors:
                stopped.add(job.stream)
            else:
                break  # no actor has room
        return made

    def _choose(self, job: Job, held: set[int]) -> Actor | None:
        """Return the actor to send a job to now, None where it waits.

        ``held``: the actors that jobs before this one wait for.
        """
        owner = None if job.stream is None else self.actors.get(self._streams.get(job.stream, -1))
        if owner is None or owner.rests or owner.number in job.actors:
            taken, nodes = held | job.actors, {self.actors[number].node for number in job.actors}
            owner = min(
                (actor for actor in self._trusted if actor.number not in taken),
                key=lambda actor: (
                    actor.node in nodes,
                    actor.node in self.suspect_nodes and not actor.is_suspect,
                    len(actor.flights),
                ),
                default=None,
            )
        if owner is None or not owner.has_room(job, self.window):
            if owner is not None and job.alone:
                held.add(owner.number)
            return None
        if job.stream is not None:
            self._streams[job.stream] = owner.number
        return owner

    def _send(self, actor: Actor, flight: Flight) -> tuple[int, int, Job]:
        self._last_flight += 1
        actor.flights[self._last_flight] = flight
        return actor.number, self._last_flight, flight.job

    # ---- what comes of calls ----

    def _take(self, flight: int) -> tuple[Actor, Flight] | None:
        """Return a call that is over, and its actor; None where it was over before."""
        number = self.actor_of(flight)
        if number is None:
            return None
        actor = self.actors[number]
        found = actor.flights.pop(flight)
        found.job.actors.discard(number)
        return actor, found

    def answered(self, flight: int, now_s: float) -> Job | None:
        """Take an answer; returns the job that it makes, None where another one has made it."""
        taken = self._take(flight)
        self.counts.dropped += taken is None or taken[1].job.is_over
        if taken is None:
            return None
        actor, found = taken
        actor.is_suspect = actor.rests = False
        self.suspect_nodes.discard(actor.node)
        self._took_s.append(now_s - found.sent_s)
        self.counts.calls += 1
        self.counts.flight_s += now_s - found.sent_s
        if found.job.is_over:
            return None
        self._end(found.job)
        return found.job

    def unreached(self, flight: int, now_s: float) -> None:
        """Take note of a call that was lost on its way; its actor, a suspect, may make it yet."""
        if (taken := self._take(flight)) is not None:
            actor, found = taken
            self._suspect(actor, now_s)
            self._wait(found.job)

    def broken(self, flight: int) -> Job | None:
        """Take note of a call that was not carried out; returns its job after the last attempt."""
        taken = self._take(flight)
        if taken is None or taken[1].job.is_over:
            return None
        job = taken[1].job
        if self._is_given_up(job):
            return job
        self._wait(job)
        return None

    def lost(self, actor: int, *, blame: bool = True) -> list[Job]:
        """Forget an actor; its jobs wait again. Returns those that are given up because of it.

        ``blame``: whether it has died, and was not sent away.
        """
        gone = self.actors.pop(actor, None)
        if gone is None:
            return []
        self.counts.deaths += blame
        if all(other.node != gone.node or not other.is_suspect for other in self.actors.values()):
            self.suspect_nodes.discard(gone.node)
        given_up = []
        for place, (job, _) in enumerate(gone.flights.values()):
            if job.is_over:
                continue
            job.actors.discard(actor)
            self.counts.rerun += len(job.rows)
            if place == 0 and blame:
                if not job.alone:
                    self._isolate(job)
                elif self._is_given_up(job):
                    given_up.append(job)
            if not job.actors:
                self._wait(job)
        return given_up

    def _is_given_up(self, job: Job) -> bool:
        """Count that a job has failed; end it where that is often enough."""
        job.deaths += 1
        if job.deaths >= self._max_attempts:
            self._end(job)
        return job.is_over

    def _isolate(self, job: Job) -> None:
        """Have each row of a job be made with nothing beside it."""
        job.alone = True
        if self._splits and job.stream is None and len(job.rows) > 1:
            self._end(job)
            for row in job.rows:
                part = Job(job.ticket, job.order, (row,))
                part.alone = True
                self.add(part)

    # ---- what does not come ----

    @property
    def patience_s(self) -> float:
        """How long a call may take before it is made a second time."""
        return max(HEDGE_S, HEDGE_MEDIANS * median(self._took_s)) if self._took_s else FIRST_S

    def tick(self, now_s: float) -> None:
        """Hedge the calls that are late, and try suspects again that owe no answer."""
        late_s = now_s - self.patience_s
        for actor in self.actors.values():
            if not actor.flights and now_s >= actor.late_s + TRY_S:
                actor.rests = False
            for job, sent_s in actor.flights.values():
                if sent_s < late_s and not job.is_over:
                    self._suspect(actor, now_s)
                    self._wait(job)

    def _suspect(self, actor: Actor, now_s: float) -> None:
        """Send an actor nothing until it answers; others go on with the streams that it has."""
        self.suspect_nodes.add(actor.node)
        if not actor.rests:
            for job, _ in actor.flights.values():
                if job.stream is not None:
                    self._wait(job)
        actor.late_s, actor.is_suspect, actor.rests = now_s, True, True
