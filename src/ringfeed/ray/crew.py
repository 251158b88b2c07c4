"""The actors of one bridge: hired, counted, replaced. The owner holds a lock."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed._units import show_bytes
from ringfeed.errors import WorkerError
from ringfeed.ray.desk import Facts, Papers
from ringfeed.ray.limit import show_calls
from ringfeed.ray.pace import calls_in, ticket_size
from ringfeed.ray.placing import Placing
from ringfeed.ray.scaling import Scaling, Seen

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.ray.dispatch import Dispatch
    from ringfeed.ray.filled import Filled
    from ringfeed.ray.fleet import Fleet, Hired, Node, Refused
    from ringfeed.ray.options import BridgeTerms
    from ringfeed.ray.sent import Sent
    from ringfeed.ray.stalls import AtWork

SILENT_S = 5.0  # that the head of a cluster may take to say which nodes there are
PENDING_S = 60.0  # without any start, after which training goes on without the actors that have not started
EXACT = ("python", "abi", "byte_order")  # of `Facts`: the others may differ a little


class Post(NamedTuple):
    """What an actor is: its seat gives its number, which the actor in its place has, too."""

    node: str
    seat: int
    since_s: float
    version: int  # of the dataset, that it was hired with


class Crew:
    """The actors that a bridge has, and those that it waits for."""

    def __init__(self, fleet: Fleet, sent: Sent, dispatch: Dispatch, terms: BridgeTerms, source: Source) -> None:
        """Hire nothing yet."""
        self._fleet, self._sent, self._dispatch = fleet, sent, dispatch
        self._terms, self._source = terms, source
        self._placing = Placing(terms.need)
        self._nodes: dict[str, Node] = {}
        self._heard_s, self._silence = 0.0, ""  # of the cluster's head
        self._addresses: dict[str, str] = {}  # of all nodes that were ever there
        least = 0 if terms.leaves else 1
        self.scaling = Scaling(least, terms.most, may_grow=not terms.waits) if terms.is_auto else None
        self.wanted = least if terms.is_auto else terms.most
        self.declined: tuple[int, str] | None = None  # how many actors there are at most, and why
        self._posts: dict[int, Post] = {}
        self._there: set[int] = set()  # of them, those that have said hello
        self._starts: Counter[int] = Counter()  # by seat
        self._next = 1
        self.deaths = 0
        self._counts = Counter[str](rows=0, bytes=0, work_ns=0, cpu_ns=0)
        self._since_s = self._started_s = 0.0  # the first hello, and the last
        self._began_cpu_s = time.process_time()
        self._out: dict[str, BaseException] = {}  # nodes that start none: it is said of those that still live
        self._full = ""  # which node had no room for an answer

    # ---- nodes ----

    def note_nodes(self, nodes: list[Node], now_s: float) -> list[int]:
        """Take over which nodes there are; returns the actors of those that are there no more."""
        self._heard_s, self._silence = now_s, ""
        self._nodes = {node.name: node for node in nodes}
        self._addresses.update((node.name, node.address) for node in nodes)
        for node in nodes:
            if (error := self._out.pop(node.name, None)) is not None:
                why = f"{type(error).__name__}: {error}"
                message = f"no actor of ringfeed starts on node {node.address}, and none is tried there any more: {why}"
                warnings.warn(message, UserWarning, stacklevel=2)
        if stores := [node.store for node in nodes if node.store]:
            self._dispatch.limit.stores = calls_in(min(stores), self._source, self._terms.bridges)
        return [actor for actor, post in self._posts.items() if post.node not in self._nodes]

    def note_silence(self, why: str) -> None:
        """Take note that the cluster's head does not answer; say so once."""
        if not self._silence:
            self._silence = why
            warnings.warn(
                f"the head of the Ray cluster does not answer ({why}); training goes on with the actors that there "
                f"are, and Ray ends them within a minute unless the head is back",
                UserWarning,
                stacklevel=2,
            )

    def address_of(self, actor: int | None) -> str:
        """Return the address of an actor's node."""
        post = None if actor is None else self._posts.get(actor)
        return "" if post is None else self._addresses.get(post.node, post.node)

    def version_of(self, actor: int) -> int:
        """Return the version of the dataset that an actor was hired with; -1 where it has left."""
        post = self._posts.get(actor)
        return -1 if post is None else post.version

    # ---- hiring ----

    def scale(self, now_s: float, waited_s: float) -> None:
        """Have as many actors as training waits for, where that is to be found out."""
        if self.scaling is not None:
            seen = Seen(now_s, waited_s, self._counts["work_ns"] / 1e9)
            actors = self.scaling.look(seen, self.wanted, len(self._there))
            self.wanted = actors if self.declined is None else min(actors, self.declined[0])

    def look(self, now_s: float) -> None:
        """Hire what is missing, and end what is too many or does not start; WorkerError where none can start."""
        if not self._nodes:
            return
        if now_s - self._heard_s > SILENT_S:
            self.note_silence(f"no answer for {SILENT_S:g} s")
        for actor, post in [*self._posts.items()]:
            if actor not in self._there and now_s - max(post.since_s, self._started_s) > PENDING_S:
                self._decline(f"an actor has not started within {PENDING_S:g} s")
                self._leave(actor)
        there = Counter(post.node for post in self._posts.values())
        missing = self.wanted - len(self._posts)
        nodes = self._nodes.values()
        if missing > 0:
            for node in self._placing.place(nodes, there, self._dispatch.actors.suspect_nodes, missing):
                self._hire(node, now_s)
            room = sum(self._placing.rooms(nodes).values())
            if room < self.wanted:
                self._decline(f"the cluster has room for {room}: {self._placing.shown(nodes)}", room)
        for actor in self._dispatch.actors.idlest(len(self._there) - self.wanted):
            self._dispatch.lost(actor, blame=False)
            self._leave(actor)
        if not self._posts:
            self._refuse()

    def _hire(self, node: str, now_s: float) -> None:
        terms = self._terms
        taken = {post.seat for post in self._posts.values()}
        seat = next(seat for seat in range(len(taken) + 1) if seat not in taken)
        number = terms.first + seat * terms.bridges + terms.number
        papers = Papers(self._source, (number, terms.workers, self._starts[seat]), sys.path, terms.private)
        actor, self._next = self._next, self._next + 1
        self._starts[seat] += 1
        self._posts[actor] = Post(node, seat, now_s, self._sent.version)
        self._fleet.hire(actor, node, papers.pickled(), self._sent.version, self._sent.pieces)

    def _decline(self, why: str, most: int | None = None) -> None:
        """Go on with fewer actors than were asked for."""
        most = max(len(self._there), 1) if most is None else most
        if most and (self.declined is None or most < self.declined[0]):
            self.declined = most, why
            self.wanted = min(self.wanted, most)

    def _refuse(self) -> None:
        """Raise why no actor can start at all, if none can."""
        rooms = self._placing.rooms(self._nodes.values())
        if any(rooms.values()) or self.wanted == 0:
            return
        if not self._placing.why:
            message = (
                f"no actor has room in the cluster: {self._placing.shown(self._nodes.values())}; ask for less by "
                f"num_cpus= and resources= of ringfeed.Ray, or add nodes"
            )
            raise WorkerError(message)
        node, error = next(iter(self._placing.why.items()))
        message = (
            f"no actor starts on any node; on {self._addresses.get(node, node)}: {type(error).__name__}: {error}; "
            f"install what is missing there, or give runtime_env= of ringfeed.Ray"
        )
        raise WorkerError(message) from error

    # ---- what becomes of them ----

    def started(self, hired: Hired) -> None:
        """Have an actor be sent jobs, if its process is what it must be."""
        post = self._posts.get(hired.actor)
        if post is None:
            self._fleet.dismiss(hired.actor)  # it was given up
            return
        if objection := self._objection(hired.facts):
            self._strike(hired.actor, post, WorkerError(objection), at_once=True)
            return
        self._placing.note_start(post.node)
        self._started_s = time.monotonic()
        self._since_s = self._since_s or self._started_s
        self._there.add(hired.actor)
        self._dispatch.actors.join(hired.actor, post.node)

    @staticmethod
    def _objection(facts: Facts) -> str:
        """Say how a node differs so that its rows might be others; "" where it does not."""
        here = Facts.here()
        minor = [version.rpartition(".")[0] for version in (facts.numpy, here.numpy)]
        names = [name for name in EXACT if getattr(facts, name) != getattr(here, name)]
        names += ["numpy"] * (minor[0] != minor[1])
        got = ", ".join(f"{name} {getattr(facts, name)}" for name in names)
        expected = ", ".join(f"{name} {getattr(here, name)}" for name in names)
        return f"has {got}, expected {expected} as here" if names else ""

    def refused(self, refused: Refused) -> None:
        """Take note that an actor has not started."""
        post = self._posts.get(refused.actor)
        if post is not None:
            self._strike(refused.actor, post, refused.error)

    def _strike(self, actor: int, post: Post, error: BaseException, *, at_once: bool = False) -> None:
        self._leave(actor)
        is_out = self._placing.note_refusal(post.node, error)
        while at_once and not is_out:
            is_out = self._placing.note_refusal(post.node, error)
        if is_out:
            self._out[post.node] = error

    def lost(self, actor: int) -> None:
        """Forget an actor that has died."""
        self.deaths += actor in self._there
        self._forget(actor)

    def _leave(self, actor: int) -> None:
        self._fleet.dismiss(actor)
        self._forget(actor)

    def _forget(self, actor: int) -> None:
        self._posts.pop(actor, None)
        self._there.discard(actor)

    # ---- room for answers ----

    def note_full(self, actor: int | None) -> str:
        """Take note that the node of an actor had no room for an answer; returns that in words."""
        node = None if actor is None or actor not in self._posts else self._nodes.get(self._posts[actor].node)
        size = show_bytes(ticket_size(self._source))
        store = f" of {show_bytes(node.store)}" if node is not None and node.store else ""
        self._full = f"node {self.address_of(actor)} has no room for {size} in its object store{store}"
        return self._full

    @property
    def narrowed(self) -> str:
        """Why fewer calls are under way than the actors could take; "" where that is not so."""
        limit, there = self._dispatch.limit, len(self._there)
        if limit.found < min(limit.stores, sys.maxsize):
            return f"{self._full}: {show_calls(limit.found)} at a time"
        if limit.stores >= limit.wished(there, self._dispatch.answers.window):
            return ""
        node = min((node for node in self._nodes.values() if node.store), key=attrgetter("store"))
        return (
            f"answers may take a quarter of an object store, and that of node {node.address} has "
            f"{show_bytes(node.store)}: {show_calls(limit.stores)} of {show_bytes(ticket_size(self._source))} at a time"
        )

    # ---- what is told of them ----

    def count(self, filled: Filled) -> None:
        """Count an answer."""
        self._counts.update(
            rows=filled.delivered,
            bytes=filled.size,
            work_ns=filled.work_ns,
            cpu_ns=filled.cpu_ns,
        )

    def said(self, now_s: float, claims: Any) -> dict[str, Any]:
        """Return what the board says."""
        dispatch = self._dispatch
        return {
            "wanted": self.wanted,
            "there": len(self._there),
            "suspects": len(dispatch.actors.suspects),
            "declined": self.declined,
            "narrowed": self.narrowed,
            "deaths": self.deaths,
            "hedged": dispatch.hedged,
            "rerun": dispatch.rerun,
            "dropped": dispatch.dropped,
            "window": dispatch.answers.window,
            "silence": self._silence,
            "capacity": dispatch.capacity,
            "tickets": len(claims),
            "calls": dispatch.answers.count,
            "flight_s": dispatch.answers.flight_s,
            "idle": dispatch.answers.idle,
            "bridge_cpu_s": time.process_time() - self._began_cpu_s,
            "since_s": now_s - self._since_s if self._since_s else 0.0,
            "nodes": Counter(self.address_of(actor) for actor in self._there),
            **self._counts,
            "actors": self.at_work(now_s),
        }

    def at_work(self, now_s: float) -> list[AtWork]:
        """Return what each actor is at, the longest first."""
        return [
            (actor, self._addresses.get(node, node), now_s - sent_s, job.ticket.indices[job.rows[0]], len(job.rows))
            for actor, node, sent_s, job in sorted(self._dispatch.actors.under_way(), key=itemgetter(2))
        ]
