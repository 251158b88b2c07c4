"""The actors of one bridge: hired, counted, replaced. The owner holds a lock."""

from __future__ import annotations

import pickle
import sys
import time
import warnings
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.errors import WorkerError
from ringfeed.ray.desk import Sent, facts_here
from ringfeed.ray.hiring import STRIKES, Node, Placing, Scaling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfeed.datasets.base import Source
    from ringfeed.ray.board import AtWork
    from ringfeed.ray.dispatch import Dispatch
    from ringfeed.ray.landing import Filled
    from ringfeed.ray.options import BridgeTerms
    from ringfeed.ray.ray_fleet import RayFleet

NAMED = 64  # actors, of those that are at a call
SILENT_S = 5.0  # that the head of a cluster may take to say which nodes there are
PENDING_S = (
    60.0  # without any start, after which training goes on without the actors that have not started
)


class Post(NamedTuple):
    """What an actor is: its seat gives its number, which the actor in its place has, too."""

    node: Node
    seat: int
    since_s: float


class Crew:
    """The actors that a bridge has, and those that it waits for."""

    def __init__(
        self, fleet: RayFleet, sent: Sent, dispatch: Dispatch, terms: BridgeTerms, source: Source
    ) -> None:
        """Hire nothing yet."""
        self._fleet, self._sent, self._dispatch = fleet, sent, dispatch
        self._terms, self._source = terms, source
        self._placing = Placing(terms.ray.need)
        self._nodes: dict[str, Node] = {}
        self._heard_s, self._is_silent = 0.0, False  # the cluster's head
        least = 0 if terms.local else 1
        is_auto = terms.finds_local or terms.ray.is_auto
        self.scaling = (
            Scaling(least, terms.most, may_grow=not terms.finds_local) if is_auto else None
        )
        self.wanted = least if is_auto else terms.most
        self.declined: tuple[int, str] | None = None  # how many actors there are at most, and why
        self._posts: dict[int, Post] = {}
        self.versions: dict[int, int] = {}  # of the dataset, that each actor was sent last
        self._starts: Counter[int] = Counter()  # by seat
        self._next = 1
        self._since_s = self._started_s = 0.0  # the first hello, and the last
        self._looked_s = 0.0
        self._began_cpu_s = time.process_time()
        self._out: dict[
            str, BaseException
        ] = {}  # nodes that start none: it is said of those that still live

    # ---- nodes ----

    def note_nodes(self, nodes: list[Node], now_s: float) -> list[int]:
        """Take over which nodes there are; returns the actors of those that are there no more."""
        self._heard_s, self._is_silent = now_s, False
        self._nodes = {node.name: node for node in nodes}
        for node in nodes:
            if (error := self._out.pop(node.name, None)) is not None:
                why = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"no actor of ringfeed starts on node {node.address}, and none is tried there "
                    f"any more: {why}",
                    UserWarning,
                    stacklevel=2,
                )
        return [actor for actor, post in self._posts.items() if post.node.name not in self._nodes]

    def address_of(self, actor: int | None) -> str:
        """Return the address of an actor's node."""
        post = None if actor is None else self._posts.get(actor)
        return "" if post is None else post.node.address

    # ---- hiring ----

    def scale(self, now_s: float, waited_s: float) -> None:
        """Have as many actors as training waits for, where that is to be found out."""
        if self.scaling is not None:
            worked_s, there = self._dispatch.counts.work_s, len(self._dispatch.actors)
            actors = self.scaling.look(now_s, waited_s, worked_s, self.wanted, there)
            self.wanted = actors if self.declined is None else min(actors, self.declined[0])

    def look(self, now_s: float) -> None:
        """Hire the actors that are missing, and end those that are too many or do not start.

        WorkerError where no actor can start at all.
        """
        there = len(self._dispatch.actors)
        self._dispatch.counts.there_s += there * (now_s - self._looked_s)
        self._looked_s = now_s
        if not self._nodes:
            return
        if now_s - self._heard_s > SILENT_S and not self._is_silent:
            self._is_silent = True
            warnings.warn(
                f"the head of the Ray cluster does not answer (no answer for {SILENT_S:g} s); "
                "training goes on with the actors that there are, and Ray ends them within a "
                "minute unless the head is back",
                UserWarning,
                stacklevel=2,
            )
        for actor, post in [*self._posts.items()]:
            if (
                actor not in self._dispatch.actors
                and now_s - max(post.since_s, self._started_s) > PENDING_S
            ):
                self._decline(f"an actor has not started within {PENDING_S:g} s")
                self._leave(actor)
        nodes, missing = self._nodes.values(), self.wanted - len(self._posts)
        if missing > 0:
            taken = Counter(post.node.name for post in self._posts.values())
            for node in self._placing.place(nodes, taken, self._dispatch.suspect_nodes, missing):
                self._hire(self._nodes[node], now_s)
            room = sum(self._placing.rooms(nodes).values())
            if room < self.wanted:
                self._decline(
                    f"the cluster has room for {room}: {self._placing.shown(nodes)}", room
                )
        for actor in self._dispatch.idlest(there - self.wanted):
            self._dispatch.lost(actor, blame=False)
            self._leave(actor)
        if not self._posts:
            self._refuse()

    def _hire(self, node: Node, now_s: float) -> None:
        terms, taken = self._terms, {post.seat for post in self._posts.values()}
        seat = next(seat for seat in range(len(taken) + 1) if seat not in taken)
        number = terms.local + seat * terms.ray.bridges + terms.number
        papers = {
            "source": self._source,
            "worker": (number, terms.local + terms.ray.most, self._starts[seat]),
            "path": sys.path,
            "private": terms.ray.private,
        }
        actor, self._next = self._next, self._next + 1
        self._starts[seat] += 1
        self._posts[actor] = Post(node, seat, now_s)
        self.versions[actor] = self._sent.version
        self._fleet.hire(actor, node.name, pickle.dumps(papers), self._sent.pieces)

    def _decline(self, why: str, most: int | None = None) -> None:
        """Go on with fewer actors than were asked for."""
        most = max(len(self._dispatch.actors), 1) if most is None else most
        if most and (self.declined is None or most < self.declined[0]):
            self.declined = most, why
            self.wanted = min(self.wanted, most)

    def _refuse(self) -> None:
        """Raise why no actor can start at all, if none can."""
        nodes = self._nodes.values()
        if any(self._placing.rooms(nodes).values()) or self.wanted == 0:
            return
        out = [node for node in nodes if node.name in self._placing.why]
        if not out:
            raise WorkerError(
                f"no actor has room in the cluster: {self._placing.shown(nodes)}; ask for less by "
                f"num_cpus= and resources= of ringfeed.ray.Ray, or add nodes"
            )
        error = self._placing.why[out[0].name]
        raise WorkerError(
            f"no actor starts on any node; on {out[0].address}: {type(error).__name__}: {error}; "
            f"install what is missing there, or give runtime_env= of ringfeed.ray.Ray"
        ) from error

    # ---- what becomes of them ----

    def started(self, actor: int, facts: Mapping[str, Any]) -> None:
        """Have an actor be sent jobs, if its process is what it must be."""
        post = self._posts.get(actor)
        if post is None:
            self._fleet.dismiss(actor)  # it was given up
        elif objection := self._objection(facts):
            self.refused(actor, WorkerError(objection), STRIKES)
        else:
            self._placing.note_start(post.node.name)
            self._started_s = time.monotonic()
            self._since_s = self._since_s or self._started_s
            self._dispatch.join(actor, post.node.name)

    @staticmethod
    def _objection(facts: Mapping[str, Any]) -> str:
        """Say how a node differs so that its rows might be others; "" where it does not."""
        here = facts_here()
        names = [name for name in here if facts[name] != here[name]]
        got = ", ".join(f"{name} {facts[name]}" for name in names)
        expected = ", ".join(f"{name} {here[name]}" for name in names)
        return f"has {got}, expected {expected} as here" if names else ""

    def refused(self, actor: int, error: BaseException, strikes: int = 1) -> None:
        """Take note that an actor has not started."""
        if (post := self._posts.get(actor)) is not None:
            self._leave(actor)
            if self._placing.note_refusal(post.node.name, error, strikes):
                self._out[post.node.name] = error

    def lost(self, actor: int) -> None:
        """Forget an actor that has died."""
        self._posts.pop(actor, None)
        self.versions.pop(actor, None)

    def _leave(self, actor: int) -> None:
        self._fleet.dismiss(actor)
        self.lost(actor)

    # ---- what is told of them ----

    def count(self, filled: Filled) -> None:
        """Count an answer."""
        counts = self._dispatch.counts
        counts.rows += filled.delivered
        counts.bytes += filled.size
        counts.work_s += filled.work_ns / 1e9
        counts.cpu_s += filled.cpu_ns / 1e9

    def said(self, now_s: float, tickets: int) -> dict[str, Any]:
        """Return what the board says; ``tickets``: that the bridge holds."""
        dispatch, counts = self._dispatch, self._dispatch.counts
        counts.wanted, counts.tickets = self.wanted, tickets
        counts.there, counts.suspects = len(dispatch.actors), len(dispatch.suspects)
        counts.declined = "" if self.declined is None else self.declined[1]
        counts.nodes = Counter(map(self.address_of, dispatch.actors))
        counts.bridge_cpu_s = time.process_time() - self._began_cpu_s
        if self._since_s:
            counts.bridge_busy = min(1.0, counts.bridge_cpu_s / (now_s - self._since_s))
        return {**vars(counts), "actors": self.at_work(now_s)}

    def at_work(self, now_s: float) -> list[AtWork]:
        """Return what each actor is at, the longest first, as far as all are named."""
        found = [
            (
                actor,
                self.address_of(actor),
                now_s - sent_s,
                job.ticket.indices[job.rows[0]],
                len(job.rows),
            )
            for actor, (job, sent_s) in self._dispatch.under_way()
        ]
        return sorted(found, key=itemgetter(2), reverse=True)[:NAMED]
