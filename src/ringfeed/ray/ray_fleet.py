"""A fleet on a Ray cluster. Only this module and `ray_connection` import Ray; they run in bridges and actors.

Ray's own retries are off, since a bridge has rows made again elsewhere at once, and chooses the node of each actor.
Rows come back within the answer up to `INLINE` bytes, which takes no round trips to the nodes' object stores and cannot
be lost with one; larger ones come through the stores.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ringfeed._failure import decode, encode
from ringfeed._units import show_bytes
from ringfeed.errors import WorkerError
from ringfeed.monitor.stacks import keep_own, of_process
from ringfeed.ray.connection import connect
from ringfeed.ray.desk import Desk, Facts, guard
from ringfeed.ray.fleet import Answer, Broken, Died, Hired, Node, Refused, Stack, Unreached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from ringfeed.ray.desk import Reply
    from ringfeed.ray.fleet import Event
    from ringfeed.ray.options import BridgeTerms

INLINE = 8 << 20  # bytes of an answer
_ENVIRONMENT = {
    "RAY_max_direct_call_object_size": str(INLINE),
    "RAY_task_rpc_inlined_bytes_limit": str(2 * INLINE),
}


class Actor:
    """What Ray runs on a node."""

    def __init__(self) -> None:
        """Start with nothing: what fails here would be told as text alone."""
        self._desk: Desk

    def begin(self, papers: bytes, version: int, *pieces: Any) -> tuple[Facts, tuple[int, int]] | bytes:
        """Open the dataset; returns what this process is and what `of_process` takes, or the record of an error."""
        try:
            guard()
            stack = os.getpid(), keep_own()
            self._desk = Desk(papers)
            self._desk.open(version, pieces)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the bridge decides
            return encode(error)
        return Facts.here(), stack

    def open(self, version: int, *pieces: Any) -> None:
        """Open another version of the dataset."""
        self._desk.open(version, pieces)

    def fill(self, epoch: int, version: int, indices: list[int]) -> Reply:
        """Make rows."""
        return self._desk.fill(epoch, version, indices)


class RayFleet:
    """Actors of one connection to a Ray cluster."""

    def __init__(self, terms: BridgeTerms) -> None:
        """Connect, or start a cluster where that is asked for; WorkerError where it cannot be done."""
        self._terms = terms
        self._done: SimpleQueue[tuple[Any, int, Future[Any]]] = SimpleQueue()
        self._handles: dict[int, Any] = {}
        self._stacks: dict[int, tuple[str, int, int]] = {}  # of actors: the node, and what `of_process` takes there
        connect(terms.address)
        need = dict(terms.need)
        cpus, gpus = need.pop("CPU", 0), need.pop("GPU", 0)
        self._class = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            resources=need,
            max_restarts=0,
            max_task_retries=0,
            runtime_env=_environment(terms.runtime_env),
        )(Actor)
        # In no environment of ours: a process that waits for work there can take it.
        self._of_process = ray.remote(num_cpus=0, max_retries=0, runtime_env=dict(terms.runtime_env or {}))(of_process)

    # ---- the cluster ----

    def nodes(self) -> list[Node]:
        """Return the nodes that Ray takes for alive."""
        return [
            Node(
                one["NodeID"],
                one["NodeManagerAddress"],
                one["Resources"],
                int(one["Resources"].get("object_store_memory", 0)),
            )
            for one in ray.nodes()
            if one["Alive"]
        ]

    def put(self, piece: Any) -> Any:
        """Put a piece into the object store of this node; others fetch it once each."""
        try:
            return ray.put(piece)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            here = ray.get_runtime_context().get_node_id()
            address = next((node.address for node in self.nodes() if node.name == here), here)
            message = (
                f"node {address}, to which the bridge is connected, has no room for {show_bytes(piece.nbytes)} of the "
                f"dataset in its object store, nor on its disk; start it with a larger --object-store-memory, or keep "
                f"less in the dataset and read files on demand"
            )
            raise WorkerError(message) from error

    # ---- actors ----

    def hire(self, actor: int, node: str, papers: bytes, version: int, pieces: Sequence[Any]) -> None:
        """Start an actor on a node, and have it open the dataset."""
        placed = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        handle: Any = self._class.options(scheduling_strategy=placed).remote()
        self._handles[actor] = handle
        self._watch(partial(self._begun, node), actor, handle.begin.remote(papers, version, *pieces))

    def send(self, actor: int, version: int, pieces: Sequence[Any]) -> None:
        """Have an actor open another version of the dataset."""
        if (handle := self._handles.get(actor)) is not None:
            self._watch(self._opened, actor, handle.open.remote(version, *pieces))

    def call(self, actor: int, flight: int, order: tuple[int, int, list[int]]) -> None:
        """Have an actor make rows."""
        if (handle := self._handles.get(actor)) is not None:
            self._watch(partial(self._answered, flight), actor, handle.fill.remote(*order))

    def _watch(self, event_of: Any, actor: int, ref: Any) -> None:
        # The future keeps the reference: Ray aborts the process where one is dropped before its answer. Its callback
        # runs on Ray's only thread for all answers.
        ref.future().add_done_callback(lambda future: self._done.put((event_of, actor, future)))

    def dismiss(self, actor: int) -> None:
        """Kill an actor."""
        self._stacks.pop(actor, None)
        if (handle := self._handles.pop(actor, None)) is not None:
            with contextlib.suppress(RayError, ValueError):
                ray.kill(handle)

    def ask_stack(self, actor: int) -> None:
        """Have a task on the actor's node read it: the actor answers one call after the other."""
        if (found := self._stacks.get(actor)) is not None:
            node, *where = found
            placed = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            task: Any = self._of_process.options(scheduling_strategy=placed)
            self._watch(self._told, actor, task.remote(*where))

    # ---- what comes of calls ----

    def next(self, timeout_s: float) -> Event | None:
        """Return what has become of the next call that is over."""
        try:
            event_of, actor, future = self._done.get(timeout=timeout_s)
        except Empty:
            return None
        event: Event | None = event_of(actor, future)
        return event

    def _begun(self, node: str, actor: int, future: Future[Any]) -> Event | None:
        try:
            found = future.result()
        except Exception as error:  # noqa: BLE001 - of Ray's
            return Refused(actor, error) if actor in self._handles else None
        if isinstance(found, bytes):
            why = decode(found).error
            assert why is not None
            return Refused(actor, why)
        facts, stack = found
        self._stacks[actor] = node, *stack
        return Hired(actor, facts)

    def _opened(self, actor: int, future: Future[Any]) -> Event | None:
        """Tell of an actor that could not open a version; of one that has died its calls tell."""
        error = future.exception()
        return Died(actor, f"could not open the dataset: {error}") if isinstance(error, RayTaskError) else None

    def _answered(self, flight: int, actor: int, future: Future[Any]) -> Event | None:
        try:
            return Answer(flight, future.result())
        except ActorUnavailableError:
            return Unreached(flight)
        except (ActorDiedError, RayActorError) as error:
            self._stacks.pop(actor, None)
            if self._handles.pop(actor, None) is None:
                return None  # that was told with another of its calls
            return Died(actor, _why(error))
        except Exception as error:  # noqa: BLE001 - of Ray's, or an environment that cannot be unpickled here
            return Broken(flight, error, is_full=_is_about_room(error))

    def _told(self, actor: int, future: Future[Any]) -> Event:
        """Tell of a stack."""
        try:
            return Stack(actor, future.result())
        except Exception as error:  # noqa: BLE001 - of Ray's
            return Stack(actor, f"no stack: {type(error).__name__}: {' '.join(str(error).split())}")

    def close(self) -> None:
        """Kill the actors, and disconnect; a cluster that was started here ends with that."""
        for actor in [*self._handles]:
            self.dismiss(actor)
        ray.shutdown()


def _is_about_room(error: BaseException) -> bool:
    """Whether an object store or a disk was full."""
    return isinstance(getattr(error, "cause", error), ObjectStoreFullError | OutOfDiskError)


def _why(error: BaseException) -> str:
    """Say how an actor has died, in Ray's words, in a line."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if "exit" in line.lower() or "killed" in line.lower() or "died" in line.lower()]
    return f"died ({(told or lines or ['no reason given'])[-1][:200]})"


def _environment(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the environment of actors: the user's, and Ray's limits for answers."""
    environment = dict(given or {})
    environment["env_vars"] = {**_ENVIRONMENT, **environment.get("env_vars", {})}
    return environment


os.environ.setdefault("RAY_DEDUP_LOGS", "0")
