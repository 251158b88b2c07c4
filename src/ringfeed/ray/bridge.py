"""The bridge: a worker process whose rows are made by the actors of a cluster.

    claimer (a thread)   claims tickets while the actors have room, and has them made
    lander (a thread)    takes what comes of calls: lands answers, has the rest made again
    main thread          listens to the training process, hires and ends actors, hedges what is late

They share one lock, which is held for a few steps, and for the calls of a fleet, which wait for no
actor.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._failure import encode, with_note
from ringfeed.errors import FunctionError
from ringfeed.monitor._snapshot import Observer
from ringfeed.ray.board import Board, Inquiry
from ringfeed.ray.claims import Claim, Claims
from ringfeed.ray.crew import Crew
from ringfeed.ray.desk import Sent
from ringfeed.ray.dispatch import Dispatch, Job
from ringfeed.ray.landing import Filled, lander_of
from ringfeed.ray.pace import most_calls
from ringfeed.ring import _ring
from ringfeed.ring.mapping import open_ring
from ringfeed.system import channel as channels

if TYPE_CHECKING:
    from ringfeed.ray.hiring import Node
    from ringfeed.ray.ray_fleet import RayFleet
    from ringfeed.system._system import Descriptor

LOOK_S = 0.05  # between two looks of the main thread
LOOK_NS = 50_000_000
READ_ONLY = (
    "; in actors, arrays of the dataset of 1 MB or more are read-only, as they share them: copy "
    "what you change, or give ringfeed.ray.Ray(private=True)"
)
NODES_S = 1.0  # between two questions which nodes there are


class Bridge:
    """One bridge's state."""

    def __init__(self, channel: Descriptor) -> None:
        """Wait for the first message, open the segment, and connect to the cluster."""
        self._channel = channel
        config, fds = channels.receive(channel)
        terms, source = config.remote, config.source
        control, slots, stack, *dataset_fds = fds
        self._wake = dataset_fds.pop()
        self._board = Board(dataset_fds.pop())
        self._there = 0  # actors, as the training process was told
        faulthandler.register(signal.SIGUSR1, file=stack.fileno())
        ring = open_ring(control.fileno(), slots.fileno(), config.sizes)
        self._observer = Observer(ring)
        end = _ring.WorkerEnd(ring, config.number, terms.stream, yields=terms.local > 0)
        self._claims = Claims(end, lander_of(source, config.offsets, ring))
        self._dispatch = Dispatch(
            terms.max_attempts,
            splits=not source.at_once,
            most_calls=most_calls(source),
        )
        self._changed = threading.Condition(threading.RLock())
        module, name = terms.ray.fleet
        self._fleet: RayFleet = getattr(importlib.import_module(module), name)(terms)
        self._sent = Sent(self._fleet)
        assert config.manifest is not None
        self._sent.put(config.version, config.manifest, [fd.fileno() for fd in dataset_fds])
        self._crew = Crew(self._fleet, self._sent, self._dispatch, terms, source)
        self._source, self._terms = source, terms
        self._inquiry = Inquiry()
        self._order = 0  # of claims
        self._failure: BaseException | None = None  # of a thread

    # ---- the threads ----

    def run(self) -> None:
        """Serve until the ring stops, or this worker is to leave."""
        watch = partial(self._claims.watch, self._broken_off)
        for body in (self._claim_all, self._land_all, watch, self._watch_nodes):
            threading.Thread(target=self._guarded, args=(body,), daemon=True).start()
        while not self._is_over():
            if channels.readable([self._channel], LOOK_S):
                self._obey()
            with self._changed:
                if self._failure is not None:
                    raise self._failure
                self._look()
        self._fleet.close()

    def _guarded(self, body: Any) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - the main thread says it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _watch_nodes(self) -> None:
        """Ask which nodes there are, in a thread of its own: the answer may take long to come."""
        while not self._is_over():
            nodes: list[Node] | None = None
            with suppress(Exception):  # of a cluster whose head is gone: `Crew.look` tells the user
                nodes = self._fleet.nodes()
            if nodes is not None:
                with self._changed:
                    for actor in self._crew.note_nodes(nodes, time.monotonic()):
                        self._end_actor(actor, "was on a node that is gone")
            time.sleep(NODES_S)

    def _is_over(self) -> bool:
        return self._claims.is_over and not len(self._claims)

    def _look(self) -> None:
        """Do what time brings."""
        now_s = time.monotonic()
        self._dispatch.tick(now_s)
        consumer = self._observer.consumer()
        waiting_ns = time.monotonic_ns() - consumer.wait_ns if consumer.wait_ns else 0
        self._crew.scale(now_s, (consumer.stall_ns + waiting_ns) / 1e9)
        self._crew.look(now_s)
        self._send_all()
        self._board.write({**self._crew.said(now_s, len(self._claims)), **self._inquiry.said()})
        if self._there != (there := len(self._dispatch.actors)):
            self._there = there
            os.eventfd_write(self._wake.fileno(), 1)  # have it look at the board

    def _obey(self) -> None:
        """Do what the training process asks for; EOFError where it is gone."""
        message, fds = channels.receive(self._channel)
        with self._changed:
            if "version" in message:
                self._sent.put(message["version"], message["manifest"], [fd.fileno() for fd in fds])
            elif "inquiry" in message:
                at_work = self._crew.at_work(time.monotonic())
                self._inquiry.begin(message["inquiry"], at_work, self._fleet)
            elif "stuck" in message:
                self._end_stuck(message["stuck"])
            elif self._crew.scaling is not None:
                self._crew.scaling.may_grow = True
            self._changed.notify_all()

    def _end_stuck(self, patience_s: float) -> None:
        """End the actors that are at a call for so long."""
        now_s = time.monotonic()
        for actor, flight in self._dispatch.under_way():
            if now_s - flight.sent_s > patience_s:
                self._end_actor(actor, f"was ended: it took longer than {patience_s:g} s")

    # ---- claims ----

    def _claim_all(self) -> None:
        while not self._claims.is_over:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._dispatch.room > 0 or self._claims.is_over, LOOK_S
                )
                if self._dispatch.room <= 0:
                    continue
            claim = self._claims.next(LOOK_NS)
            if claim is not None:
                self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        """Add a job for a claim, once its version of the dataset is there: it was sent before."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._sent.version >= claim.version
            )  # this thread is what notes the end
            self._order += 1
            stream = claim.indices[0] % self._source.streams if self._source.streams else None
            self._dispatch.add(Job(claim, self._order, (*claim.rows,), stream))
            self._send_all()

    def _broken_off(self, claims: list[Claim]) -> None:
        with self._changed:
            for claim in claims:
                self._dispatch.drop(claim)
            self._changed.notify_all()

    # ---- calls ----

    def _send_all(self) -> None:
        """Make the calls that can be made now."""
        for actor, flight, job in self._dispatch.sends(time.monotonic()):
            claim = job.ticket
            if self._crew.versions.get(actor) != self._sent.version:
                self._fleet.send(actor, self._sent.pieces)
                self._crew.versions[actor] = self._sent.version
            self._fleet.call(
                actor,
                flight,
                (claim.epoch, claim.version, [claim.indices[row] for row in job.rows]),
            )

    # ---- what comes of calls ----

    def _land_all(self) -> None:
        while not self._is_over():
            event = self._fleet.next(LOOK_S)
            if event is not None:
                self._take(event)

    def _take(self, event: tuple[Any, ...]) -> None:
        """Do what an event of the fleet asks for: see `RayFleet.next`."""
        if event[0] == "answered":
            self._land(*event[1:])
            return
        with self._changed:
            match event:
                case "hired", actor, facts:
                    self._crew.started(actor, facts)
                case "refused", actor, error:
                    self._crew.refused(actor, error)
                case "died", actor, why:
                    self._lost(actor, why)
                case "stack", actor, text:
                    self._inquiry.note(actor, text)
                case "unreached", flight:
                    self._dispatch.unreached(flight, time.monotonic())
                case "broken", flight, why:
                    node = self._crew.address_of(self._dispatch.actor_of(flight))
                    if (job := self._dispatch.broken(flight)) is not None:
                        self._give_up(job, f"could not be made remotely, on node {node}: {why}")
            self._send_all()
            self._changed.notify_all()

    def _land(self, flight: int, filled: Filled) -> None:
        with self._changed:
            node = self._crew.address_of(self._dispatch.actor_of(flight))
            job = self._dispatch.answered(flight, time.monotonic())
            self._send_all()  # first: the actor goes on meanwhile
            self._changed.notify_all()
        if job is None:
            return
        self._crew.count(filled)
        where = f"on node {node}"
        failures = tuple(
            (row, record and with_note(record, where, read_only=READ_ONLY))
            for row, record in filled.failures
        )
        self._claims.land(job.ticket, filled._replace(failures=failures), job.rows)

    def _lost(self, actor: int, why: str) -> None:
        """Have the jobs of a dead actor made by others, and another hired in its place."""
        node = self._crew.address_of(actor)
        for job in self._dispatch.lost(actor):
            often = (
                "an actor"
                if self._terms.max_attempts == 1
                else f"{self._terms.max_attempts} actors"
            )
            self._give_up(
                job,
                (
                    f"ended {often}; the last one, on node {node}, {why}; try it with workers=0 "
                    "and no backend="
                ),
            )
        self._crew.lost(actor)

    def _end_actor(self, actor: int, why: str) -> None:
        self._fleet.dismiss(actor)
        self._lost(actor, why)

    def _give_up(self, job: Job, why: str) -> None:
        """Have rows fail that no actor can make."""
        claim = job.ticket
        text = f"{self._source.describe_read(job.rows[0], claim.indices[job.rows[0]])} {why}"
        self._claims.fail(claim, encode(FunctionError(text)), job.rows)


def main(channel: Descriptor, _: tuple[int, ...]) -> None:
    """Run a bridge."""
    Bridge(channel).run()
