"""Which actor makes which rows, and what becomes of them when actors die or fall silent. Pure decisions, no clocks.

    add ──▶ waiting ── sends ──▶ in flight on one actor ── answered ──▶ over
               ▲                    │            │
               │                    │            └── tick: late: hedged to a second actor
               └── lost, unreached ─┘                the first answer counts, and later ones are dropped

An actor answers its calls in their order, so the one that it runs is the oldest not answered. A first death in a job of
several rows blames none: each row goes on as a job of its own, with nothing beside it on its actor, since an answer may
be lost with the death of the call after it. A row that has then cost ``max_attempts`` actors is given up.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections import deque
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.remote.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEAST_WINDOW, MOST_WINDOW = 2, 8  # calls that an actor has at a time
FLIGHTS = 2  # live calls of one job, at most
HEDGE_S = 1.0  # a call is hedged after so long, or
HEDGE_MEDIANS = 8  # after so many medians
FIRST_S = 10.0  # while no call was answered: an actor may import what the dataset needs
PROBE_S = 2.0  # between two calls to a suspect that owes no answer
SEEN = 64  # calls that the median is of
MEAN_OF = 16  # answers that a moving mean is of
IDLE = 0.05  # of an actor's time, from which its window is too small


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


class Send(NamedTuple):
    """A call to make."""

    actor: int
    flight: int
    job: Job


class _Flight(NamedTuple):
    job: Job
    sent_s: float
    is_probe: bool = False  # whether another call is to make the job


class _Actor:
    def __init__(self, node: str) -> None:
        self.node = node
        self.flights: dict[int, _Flight] = {}  # in the order of their calls
        self.suspect_s: float | None = None  # since when it is one
        self.asked_s = 0.0  # when it was last found not to answer, or was probed


class Dispatch:
    """The jobs of one bridge and the actors that it has."""

    def __init__(self, max_attempts: int, *, splits: bool = True, most_calls: int = sys.maxsize) -> None:
        """``splits``: whether rows of a job can be made one by one; ``most_calls``: beyond one an actor, at a time."""
        self.window = LEAST_WINDOW
        self.limit = Limit(most_calls)
        self.hedged = self.rerun = self.dropped = self.calls = 0  # counts for the statistics
        self.flight_s = 0.0  # that calls took, all together
        self._max_attempts, self._splits = max_attempts, splits
        self._actors: dict[int, _Actor] = {}
        self._suspect_nodes: set[str] = set()
        self._waiting: list[Job] = []  # by order
        self._live: dict[Job, None] = {}  # neither over nor given up
        self._streams: dict[int, int] = {}  # the actor of each stream
        self._took_s: deque[float] = deque(maxlen=SEEN)
        self.idle = 0.0  # share of their time that actors wait between calls: a moving mean
        self._looked_at = 0.0  # the same, since the window was made larger
        self._next_flight = 1

    # ---- actors ----

    def join(self, actor: int, node: str) -> None:
        """Have an actor be sent jobs: one that has said hello."""
        self._actors[actor] = _Actor(node)

    @property
    def actors(self) -> dict[int, str]:
        """The node of each actor."""
        return {number: actor.node for number, actor in self._actors.items()}

    @property
    def suspects(self) -> set[int]:
        """The actors that are late, and are sent nothing until they answer."""
        return {number for number, actor in self._actors.items() if actor.suspect_s is not None}

    @property
    def suspect_nodes(self) -> frozenset[str]:
        """Their nodes, until an actor there answers."""
        return frozenset(self._suspect_nodes)

    def idlest(self, count: int) -> list[int]:
        """Return so many actors that have least to do; none where the count is below 0."""
        return sorted(self._actors, key=lambda number: len(self._actors[number].flights))[: max(0, count)]

    def lost(self, actor: int, *, blame: bool = True) -> list[Job]:
        """Forget an actor that has died; its jobs wait again. Returns those that are given up because of it."""
        gone = self._actors.pop(actor, None)
        if gone is None:
            return []
        if all(other.node != gone.node or other.suspect_s is None for other in self._actors.values()):
            self._suspect_nodes.discard(gone.node)
        for stream in [stream for stream, owner in self._streams.items() if owner == actor]:
            del self._streams[stream]
        given_up = []
        for place, (flight, (job, *_)) in enumerate(gone.flights.items()):
            if job.flights.pop(flight, None) is None or job.is_over:
                continue
            self.rerun += len(job.rows)
            if place == 0 and blame and self._is_given_up(job):
                given_up.append(job)
            elif not job.is_over and not job.flights:
                self._wait(job)
        return given_up

    def _is_given_up(self, job: Job) -> bool:
        """Count a death in a job that an actor was at."""
        if job.alone:
            job.deaths += 1
            if job.deaths < self._max_attempts:
                return False
            self._end(job)
            return True
        job.alone = True
        if self._splits and job.stream is None and len(job.rows) > 1:
            self._end(job)
            for row in job.rows:
                part = Job(job.ticket, job.order, (row,))
                part.alone = True
                self.add(part)
        return False

    # ---- jobs ----

    @property
    def capacity(self) -> int:
        """How many calls the actors have at a time."""
        return self._calls_of(len(self._actors))

    @property
    def room(self) -> int:
        """How many more jobs may be added."""
        return self._calls_of(sum(actor.suspect_s is None for actor in self._actors.values())) - len(self._live)

    def _calls_of(self, actors: int) -> int:
        return self.limit.calls_of(actors, self.window)

    @property
    def jobs(self) -> int:
        """How many jobs are not over."""
        return len(self._live)

    def add(self, job: Job) -> None:
        """Have a job be made."""
        self._live[job] = None
        self._wait(job)

    def _wait(self, job: Job) -> None:
        if job not in self._waiting:
            insort(self._waiting, job, key=attrgetter("order"))

    def _end(self, job: Job) -> None:
        job.is_over = True
        self._live.pop(job, None)
        if job in self._waiting:
            self._waiting.remove(job)

    def drop(self, ticket: Any) -> None:
        """Have nothing more be made for a claim; what its actors are at is dropped when it comes."""
        for job in [job for job in self._live if job.ticket is ticket]:
            self._end(job)

    def sends(self, now_s: float) -> list[Send]:
        """Return the calls to make now: the caller makes them."""
        made: list[Send] = []
        free = self._free()
        held: set[int] = set()  # actors that are to have nothing beside a job that waits for them
        stopped: set[int | None] = set()  # streams of which an earlier job waits
        for job in [*self._waiting]:
            if len(made) >= free:
                break
            actor = None if job.stream is not None and job.stream in stopped else self._actor_for(job, held)
            if actor is None:
                stopped.add(job.stream)
                if not job.alone and job.stream is None and not job.flights:
                    break  # no actor has room
                continue
            made.append(self._send(actor, _Flight(job, now_s)))
            job.flights[made[-1].flight] = actor
            self._waiting.remove(job)
        return [*made, *self._probes(now_s)]

    def _free(self) -> int:
        """Return for how many more answers there is room; what suspects owe may never come, and does not count."""
        if not self.limit.is_tight:
            return sys.maxsize
        actors = [actor for actor in self._actors.values() if actor.suspect_s is None]
        return self._calls_of(len(actors)) - sum(len(actor.flights) for actor in actors)

    def _send(self, actor: int, made: _Flight) -> Send:
        flight, self._next_flight = self._next_flight, self._next_flight + 1
        self._actors[actor].flights[flight] = made
        return Send(actor, flight, made.job)

    def _probes(self, now_s: float) -> Iterator[Send]:
        """Yield a call of what another actor is at for each suspect that owes no answer: it may be back, or dead."""
        for number, actor in self._actors.items():
            if actor.suspect_s is None or actor.flights or now_s < actor.asked_s + PROBE_S:
                continue
            under_way = (job for job in reversed(self._live) if job.flights and job.stream is None and not job.alone)
            if (job := next(under_way, None)) is not None:
                actor.asked_s = now_s
                yield self._send(number, _Flight(job, now_s, is_probe=True))

    def _actor_for(self, job: Job, held: set[int]) -> int | None:
        if job.stream is not None and (owner := self._streams.get(job.stream)) in self._actors:
            assert owner is not None
            return owner if self._has_room(self._actors[owner], job) else None
        there = [*self._candidates(job, held)]
        if not there:
            return None
        found = min(there, key=lambda number: len(self._actors[number].flights))
        if not self._has_room(self._actors[found], job):
            if job.alone:
                held.add(found)
            return None
        if job.stream is not None:
            self._streams[job.stream] = found
        return found

    def _candidates(self, job: Job, held: set[int]) -> Iterable[int]:
        """Yield the actors that may be sent a job: where there are some, those on nodes that are not suspect."""
        used = job.flights.values()
        fit = [
            number
            for number, actor in self._actors.items()
            if actor.suspect_s is None and number not in held and number not in used
        ]
        nodes = {self._actors[number].node for number in used if number in self._actors}
        return (
            [number for number in fit if self._actors[number].node not in self._suspect_nodes | nodes]
            or [number for number in fit if self._actors[number].node not in nodes]
            or fit
        )

    def _has_room(self, actor: _Actor, job: Job) -> bool:
        if job.alone:
            return not actor.flights
        has_alone = any(flight.job.alone for flight in actor.flights.values())
        return len(actor.flights) < self.window and not has_alone

    # ---- what comes of calls ----

    def answered(self, flight: int, now_s: float, idle: float | None = None) -> Job | None:
        """Take an answer; returns the job that is over with it, None where another was first, or none waits for it.

        ``idle``: share of its time that the actor has waited for this call.
        """
        actor, found = self._take(flight)
        if found is None or actor is None:
            self.dropped += 1
            return None
        actor.suspect_s = None
        self._suspect_nodes.discard(actor.node)
        self._took_s.append(now_s - found.sent_s)
        self.calls += 1
        self.flight_s += now_s - found.sent_s
        if idle is not None:
            self._note_idle(idle)
        job = found.job
        if job.is_over:
            self.dropped += 1
            return None
        self._end(job)
        return job

    def _note_idle(self, idle: float) -> None:
        """Give the actors one more call at a time where they wait between calls though jobs wait for them."""
        self.idle += (idle - self.idle) / MEAN_OF
        self._looked_at += (idle - self._looked_at) / MEAN_OF
        if self._looked_at > IDLE and self.room <= 0 and self.window < MOST_WINDOW:
            self.window, self._looked_at = self.window + 1, 0.0

    def unreached(self, flight: int, now_s: float) -> None:
        """Take note that a call has not come through, and may or may not be carried out: its actor is a suspect."""
        actor, found = self._take(flight)
        if actor is not None:
            self._suspect(actor, now_s)
        if found is not None and not found.is_probe and not found.job.is_over:
            self._wait_again(found.job)

    def broken(self, flight: int, full_s: float | None = None) -> Job | None:
        """Take note that a call was not carried out; returns the job if that was tried often enough.

        ``full_s``: the time, where there was no room for the answer: fewer calls are under way from then on, and only
        one that was alone counts.
        """
        calls = self.capacity
        _, found = self._take(flight)
        if found is None or found.is_probe or found.job.is_over:
            return None
        job = found.job
        job.deaths += full_s is None or not self.limit.narrow(found.sent_s, full_s, calls)
        if job.deaths >= self._max_attempts:
            self._end(job)
            return job
        self._wait_again(job)
        return None

    def actor_of(self, flight: int) -> int | None:
        """Return the actor of a call that is not over."""
        return next((number for number, actor in self._actors.items() if flight in actor.flights), None)

    def _take(self, flight: int) -> tuple[_Actor | None, _Flight | None]:
        for actor in self._actors.values():
            if (found := actor.flights.pop(flight, None)) is not None:
                found.job.flights.pop(flight, None)
                return actor, found
        return None, None

    # ---- what does not come ----

    @property
    def patience_s(self) -> float:
        """How long a call may take before it is made a second time."""
        return max(HEDGE_S, HEDGE_MEDIANS * median(self._took_s)) if self._took_s else FIRST_S

    def tick(self, now_s: float) -> None:
        """Hedge the calls that are late."""
        late_s = now_s - self.patience_s
        for actor in [*self._actors.values()]:
            for job, sent_s, is_probe in [*actor.flights.values()]:
                if not (job.is_over or is_probe) and sent_s < late_s:
                    self._suspect(actor, now_s)
                    self._wait_again(job)

    def _suspect(self, actor: _Actor, now_s: float) -> None:
        """Send an actor nothing until it answers; others go on with its streams."""
        self._suspect_nodes.add(actor.node)
        actor.asked_s = now_s
        if actor.suspect_s is not None:
            return
        actor.suspect_s = now_s
        for stream in [stream for stream, owner in self._streams.items() if self._actors.get(owner) is actor]:
            del self._streams[stream]
            for job, *_ in actor.flights.values():
                if job.stream == stream and not job.is_over:
                    self._wait_again(job)

    def _wait_again(self, job: Job) -> None:
        if len(job.flights) < FLIGHTS and job not in self._waiting:
            self.hedged += bool(job.flights)
            self._wait(job)

    def overdue(self, now_s: float, timeout_s: float | None) -> list[int]:
        """Return the actors that have been suspects for so long that they are to be ended."""
        if timeout_s is None:
            return []
        return [
            number
            for number, actor in self._actors.items()
            if actor.suspect_s is not None and now_s - actor.suspect_s > timeout_s
        ]

    def under_way(self) -> Iterator[tuple[int, str, float, Job]]:
        """Yield what each actor is at: its number, its node, since when, and the job."""
        for number, actor in self._actors.items():
            for job, sent_s, _ in actor.flights.values():
                yield number, actor.node, sent_s, job
                break
