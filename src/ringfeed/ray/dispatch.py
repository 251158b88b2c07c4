"""What becomes of rows: which calls to make, and what to do where actors die or fall silent. Pure decisions, no clocks.

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
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.ray.actors import Actors, Flight, Job
from ringfeed.ray.answers import Answers
from ringfeed.ray.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.ray.actors import Actor

FLIGHTS = 2  # live calls of one job, at most


class Send(NamedTuple):
    """A call to make."""

    actor: int
    flight: int
    job: Job


class Dispatch:
    """The jobs of one bridge, and the actors that it has."""

    def __init__(self, max_attempts: int, *, splits: bool = True, most_calls: int = sys.maxsize) -> None:
        """``splits``: whether rows of a job can be made one by one; ``most_calls``: beyond one an actor, at a time."""
        self.actors = Actors()
        self.answers = Answers()
        self.limit = Limit(most_calls)
        self.hedged = self.rerun = self.dropped = 0  # counts for the statistics
        self._max_attempts, self._splits = max_attempts, splits
        self._waiting: list[Job] = []  # by order
        self._live: dict[Job, None] = {}  # neither over nor given up

    # ---- jobs ----

    @property
    def capacity(self) -> int:
        """How many calls the actors have at a time."""
        return self._calls_of(len(self.actors))

    @property
    def room(self) -> int:
        """How many more jobs may be added."""
        return self._calls_of(len(self.actors.trusted)) - len(self._live)

    def _calls_of(self, actors: int) -> int:
        return self.limit.calls_of(actors, self.answers.window)

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

    def _wait_again(self, job: Job) -> None:
        if len(job.flights) < FLIGHTS and job not in self._waiting:
            self.hedged += bool(job.flights)
            self._wait(job)

    def _end(self, job: Job) -> None:
        job.is_over = True
        self._live.pop(job, None)
        if job in self._waiting:
            self._waiting.remove(job)

    def drop(self, ticket: Any) -> None:
        """Have nothing more be made for a claim; what its actors are at is dropped when it comes."""
        for job in [job for job in self._live if job.ticket is ticket]:
            self._end(job)

    # ---- calls ----

    def sends(self, now_s: float) -> list[Send]:
        """Return the calls to make now: the caller makes them."""
        made: list[Send] = []
        free = self._free()
        held: set[int] = set()  # actors that are to have nothing beside a job that waits for them
        stopped: set[int | None] = set()  # streams of which an earlier job waits
        for job in [*self._waiting]:
            if len(made) >= free:
                break
            waits = job.stream is not None and job.stream in stopped
            actor = None if waits else self.actors.choose(job, held, self.answers.window)
            if actor is None:
                stopped.add(job.stream)
                if not job.alone and job.stream is None and not job.flights:
                    break  # no actor has room
                continue
            made.append(self._send(actor, Flight(job, now_s)))
            job.flights[made[-1].flight] = actor
            self._waiting.remove(job)
        return [*made, *self._probes(now_s)]

    def _free(self) -> int:
        """Return for how many more answers there is room; what suspects owe may never come, and does not count."""
        if not self.limit.is_tight:
            return sys.maxsize
        trusted = self.actors.trusted
        return self._calls_of(len(trusted)) - sum(len(actor.flights) for actor in trusted)

    def _send(self, actor: int, made: Flight) -> Send:
        return Send(actor, self.actors.send(actor, made), made.job)

    def _probes(self, now_s: float) -> Iterator[Send]:
        """Yield a call of what another actor is at for each suspect that is to be probed."""
        for number in self.actors.to_probe(now_s):
            under_way = (job for job in reversed(self._live) if job.flights and job.stream is None and not job.alone)
            if (job := next(under_way, None)) is not None:
                self.actors.note_probe(number, now_s)
                yield self._send(number, Flight(job, now_s, is_probe=True))

    # ---- what comes of calls ----

    def answered(self, flight: int, now_s: float, idle: float | None = None) -> Job | None:
        """Take an answer; returns the job that is over with it, None where another was first, or none waits for it.

        ``idle``: share of its time that the actor has waited for this call.
        """
        actor, found = self.actors.take(flight)
        if found is None or actor is None:
            self.dropped += 1
            return None
        self.actors.trust(actor)
        self.answers.note(now_s - found.sent_s)
        if idle is not None and self.answers.note_idle(idle, len(self.actors)) and self.room <= 0:
            self.answers.widen()  # actors wait between calls though jobs wait for them
        job = found.job
        if job.is_over:
            self.dropped += 1
            return None
        self._end(job)
        return job

    def unreached(self, flight: int, now_s: float) -> None:
        """Take note that a call has not come through, and may or may not be carried out: its actor is a suspect."""
        actor, found = self.actors.take(flight)
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
        _, found = self.actors.take(flight)
        if found is None or found.is_probe or found.job.is_over:
            return None
        job = found.job
        job.deaths += full_s is None or not self.limit.narrow(found.sent_s, full_s, calls)
        if job.deaths >= self._max_attempts:
            self._end(job)
            return job
        self._wait_again(job)
        return None

    def lost(self, actor: int, *, blame: bool = True) -> list[Job]:
        """Forget an actor that has died; its jobs wait again. Returns those that are given up because of it."""
        given_up = []
        for place, (flight, (job, *_)) in enumerate(self.actors.leave(actor).items()):
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

    # ---- what does not come ----

    def tick(self, now_s: float) -> None:
        """Hedge the calls that are late."""
        for actor, job in self.actors.late(now_s - self.answers.patience_s):
            self._suspect(actor, now_s)
            self._wait_again(job)

    def _suspect(self, actor: Actor, now_s: float) -> None:
        """Have others go on with what an actor does not answer."""
        for job in self.actors.suspect(actor, now_s):
            self._wait_again(job)
