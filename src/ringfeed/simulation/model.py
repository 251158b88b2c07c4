"""The model: discrete events on a heap, one closed loop.

    trainer ◀─ batches in order ◀─ slots ◀─ bridge lands ◀─ link ◀─ node's link ◀─ actor: first in, first out
       │                                                                              ▲
       └── a step ends: a slot is free, a batch is bound ──▶ tickets ──▶ bridge sends ┘

A bridge and a link serve one ticket after another. A ticket goes to the actor that has least to do, and each actor has
``window`` of them at most. Where an actor or a node dies, its tickets are sent again once that is noticed, and other
actors come in their place.
"""

from __future__ import annotations

import math
import random
from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from ringfeed.remote.answers import HEDGE_MEDIANS, HEDGE_S
from ringfeed.simulation.terms import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.simulation.terms import Costs, Setting, Work

WARM = 0.25  # of a run, that does not count


class Server:
    """Serves one after another; ``cores``, where there are some, are shared with other servers."""

    def __init__(self, cores: list[float] | None = None) -> None:
        self.free_s = self.busy_s = 0.0
        self._cores = cores

    def take(self, now_s: float, seconds: float) -> float:
        """Return when something that comes now and takes so long is done."""
        begins_s = max(now_s, self.free_s)
        if self._cores:
            begins_s = max(begins_s, self._cores[0])
            heapreplace(self._cores, begins_s + seconds)
        self.free_s = begins_s + seconds
        self.busy_s += seconds
        return self.free_s


class Actor:
    """An actor; ``life`` tells it from those that were in its place before."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = 0
        self.load = 0  # tickets sent to it and not landed
        self.is_dead = False
        self.queue: deque[int] = deque()
        self.running: int | None = None
        self.busy_s = 0.0


class Run:
    """One simulated run of some batches."""

    def __init__(self, setting: Setting, work: Work, costs: Costs, batches: int, seed: int = 0) -> None:
        self._setting, self._work, self._costs, self._count = setting, work, costs, batches
        self._random = random.Random(seed)  # noqa: S311 - no secret
        cores = [0.0] * setting.cores if setting.cores else None
        if cores:
            heapify(cores)
        self._cores = Server(cores) if cores else None
        self._bridges = [Server(cores) for _ in range(setting.bridges)]
        self._node_links = [Server() for _ in range(setting.nodes)]
        self._link = Server()
        self._actors = [Actor(number) for number in range(setting.workers)]
        self._by_load: list[list[Actor]] = [[*reversed(self._actors)], *[[] for _ in range(setting.window - 1)]]
        self._events: list[tuple[float, int, Callable[..., None], tuple[int, ...]]] = []
        self._event = 0
        self._now_s = 0.0
        # Tickets and batches.
        self._next = 0
        self._again: deque[int] = deque()
        self._sent_s: dict[int, float] = {}
        self._left = [setting.tickets] * batches
        self._head = self._released = 0
        self._is_idle, self._idle_s = True, 0.0
        self._taken_s: list[float] = []
        self._stalls_s: list[float] = []
        self._flights_s = self._area = self._starved_s = 0.0
        sigma = math.sqrt(math.log1p(work.cv**2 / min(setting.rows, setting.batch_size)))
        self._spread = -(sigma**2) / 2, sigma

    def outcome(self) -> Outcome:
        """Run it."""
        for at_s, what in self._setting.lost:
            self._at(at_s, self._lose_actor if what == "actor" else self._lose_node)
        self._send()
        while len(self._taken_s) < self._count:
            at_s, _, act, given = heappop(self._events)
            self._pass(at_s)
            act(*given)
        return self._result()

    def _result(self) -> Outcome:
        first = int(WARM * self._count)
        last = max(first + 1, self._count - 1 - self._setting.slots)  # from there on nothing more is sent
        took_s = self._now_s or math.inf
        counted_s = self._taken_s[last] - self._taken_s[first] or math.inf
        busy = {
            "actors": sum(actor.busy_s for actor in self._actors) / len(self._actors),
            "bridge": max(server.busy_s for server in self._bridges),
            "node link": max(server.busy_s for server in self._node_links),
            "link": self._link.busy_s,
        }
        return Outcome(
            samples_per_s=(last - first) * self._setting.batch_size / counted_s,
            stall=min(1.0, sum(self._stalls_s[first + 1 : last + 1]) / counted_s),
            busy={name: seconds / took_s for name, seconds in busy.items()},
            starved=self._starved_s / took_s,
            took_s=took_s,
            in_flight=self._area / took_s,
            flight_s=self._flights_s / (self._count * self._setting.tickets),
            tickets=self._count * self._setting.tickets,
            batches=tuple(self._taken_s),
        )

    # ---- time ----

    def _at(self, at_s: float, act: Callable[..., None], *given: int) -> None:
        self._event += 1
        heappush(self._events, (at_s, self._event, act, given))

    def _pass(self, to_s: float) -> None:
        passed_s = to_s - self._now_s
        self._area += len(self._sent_s) * passed_s
        if self._next >= self._bound and not self._again and self._bound < self._count * self._setting.tickets:
            self._starved_s += passed_s
        self._now_s = to_s

    @property
    def _bound(self) -> int:
        """Tickets of batches that have a slot."""
        return min(self._released + self._setting.slots, self._count) * self._setting.tickets

    # ---- the way of a ticket ----

    def _send(self) -> None:
        while (self._again or self._next < self._bound) and (actor := self._least_loaded()) is not None:
            if self._again:
                ticket = self._again.popleft()
            else:
                ticket, self._next = self._next, self._next + 1
                self._sent_s[ticket] = self._now_s
            actor.load += 1
            self._offer(actor)
            sent_s = self._bridge_of(ticket).take(self._now_s, self._costs.call_s)
            self._at(sent_s + self._setting.latency_s, self._arrive, actor.number, actor.life, ticket)

    def _least_loaded(self) -> Actor | None:
        """Return an actor with room; it is looked for among those that had so much to do when they were noted."""
        for load, noted in enumerate(self._by_load):
            while noted:
                actor = noted.pop()
                if actor.load == load and not actor.is_dead:
                    return actor
        return None

    def _offer(self, actor: Actor) -> None:
        if actor.load < self._setting.window:
            self._by_load[actor.load].append(actor)

    def _bridge_of(self, ticket: int) -> Server:
        return self._bridges[ticket % len(self._bridges)]

    def _arrive(self, number: int, life: int, ticket: int) -> None:
        actor = self._actors[number]
        if actor.life != life or actor.is_dead:  # it has died meanwhile
            self._at(self._now_s + self._costs.actor_lost_s, self._send_again, ticket)
            return
        actor.queue.append(ticket)
        if actor.running is None:
            self._work_on(actor)

    def _work_on(self, actor: Actor) -> None:
        actor.running = ticket = actor.queue.popleft()
        spread = self._random.lognormvariate(*self._spread) if self._spread[1] else 1.0
        seconds = self._rows(ticket) * self._work.sample_s * spread
        if self._cores is None:
            seconds += self._costs.actor_call_s
            self._at(self._now_s + seconds, self._done, actor.number, actor.life, ticket)
        else:
            self._at(self._now_s + seconds, self._call_back, actor.number, actor.life, ticket)
        actor.busy_s += seconds

    def _call_back(self, number: int, life: int, ticket: int) -> None:
        """Have an actor answer by a core that others use, too."""
        assert self._cores is not None
        self._cores.free_s = 0.0  # as many at a time as there are cores
        done_s = self._cores.take(self._now_s, self._costs.actor_call_s)
        self._at(done_s, self._done, number, life, ticket)

    def _done(self, number: int, life: int, ticket: int) -> None:
        actor = self._actors[number]
        if actor.life != life:
            return  # its ticket has been sent again
        actor.running = None
        if actor.queue:
            self._work_on(actor)
        if math.isinf(self._setting.node_gbits):
            self._on_link(number, life, ticket)
            return
        node = self._node_links[number // self._setting.actors_per_node]
        self._at(
            node.take(self._now_s, self._wire_s(ticket, self._setting.node_gbits)), self._on_link, number, life, ticket
        )

    def _on_link(self, number: int, life: int, ticket: int) -> None:
        there_s = self._link.take(self._now_s, self._wire_s(ticket, self._setting.gbits))
        self._at(there_s + self._setting.latency_s, self._land, number, life, ticket)

    def _land(self, number: int, life: int, ticket: int) -> None:
        seconds = self._costs.land_s(self._rows(ticket) * self._work.sample_bytes)
        self._at(self._bridge_of(ticket).take(self._now_s, seconds), self._landed, number, life, ticket)

    def _landed(self, number: int, life: int, ticket: int) -> None:
        actor = self._actors[number]
        if actor.life == life:
            actor.load -= 1
            self._offer(actor)
        self._flights_s += self._now_s - self._sent_s.pop(ticket)
        batch = ticket // self._setting.tickets
        self._left[batch] -= 1
        if self._is_idle:
            self._take()
        self._send()

    def _rows(self, ticket: int) -> int:
        """Return the rows of a ticket; the last one of a batch has the rest."""
        setting = self._setting
        return min(setting.rows, setting.batch_size - ticket % setting.tickets * setting.rows)

    def _wire_s(self, ticket: int, gbits: float) -> float:
        return self._rows(ticket) * self._work.sample_bytes * 8e-9 / gbits

    # ---- the trainer ----

    def _take(self) -> None:
        """Take the batch at the head, if it is there: its slot is free when the step has ended."""
        if self._head == self._count or self._left[self._head]:
            return
        self._head += 1
        self._is_idle = False
        self._taken_s.append(self._now_s)
        self._stalls_s.append(self._now_s - self._idle_s)
        self._at(self._now_s + self._setting.step_s, self._step)

    def _step(self) -> None:
        self._released += 1
        self._is_idle, self._idle_s = True, self._now_s
        self._take()
        self._send()

    # ---- deaths ----

    def _lose_actor(self) -> None:
        self._lose([self._random.choice(self._actors)], self._costs.actor_lost_s)

    def _lose_node(self) -> None:
        """Have all actors of a node die; their tickets are hedged if nothing tells of it sooner."""
        node, each = self._random.randrange(self._setting.nodes), self._setting.actors_per_node
        hedge_s = max(HEDGE_S, HEDGE_MEDIANS * self._work.sample_s * self._setting.rows)
        self._lose(self._actors[node * each : (node + 1) * each], min(hedge_s, self._costs.node_lost_s))

    def _lose(self, actors: list[Actor], noticed_s: float) -> None:
        for actor in actors:
            if actor.is_dead:
                continue
            tickets = [*([] if actor.running is None else [actor.running]), *actor.queue]
            actor.life += 1
            actor.is_dead, actor.running, actor.load = True, None, 0
            actor.queue.clear()
            for ticket in tickets:
                self._at(self._now_s + noticed_s, self._send_again, ticket)
            self._at(self._now_s + noticed_s + self._costs.start_s, self._be_born, actor.number)

    def _send_again(self, ticket: int) -> None:
        self._again.append(ticket)
        self._send()

    def _be_born(self, number: int) -> None:
        self._actors[number].is_dead = False
        self._offer(self._actors[number])
        self._send()


def simulate(setting: Setting, work: Work, costs: Costs, *, batches: int = 0, seed: int = 0) -> Outcome:
    """Run a setting for so many batches; 0: as many as it takes to tell its rate."""
    least = max(40, math.ceil(max(1500, 4 * setting.workers * setting.window) / setting.tickets), 6 * setting.slots)
    return Run(setting, work, costs, max(2, batches or least), seed).outcome()
