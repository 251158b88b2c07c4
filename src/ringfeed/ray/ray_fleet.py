"""A fleet on a Ray cluster: its nodes, actors on them, and calls whose answers come as events.

Only this module imports Ray; it runs in bridges and actors. Whatever else places actors and moves
bytes is a class with the same methods, which `Ray.fleet` names. No method but ``next`` waits for an
actor.

Ray's own retries are off, since a bridge has rows made again elsewhere at once, and chooses the
node of each actor. Rows come back within the answer up to `INLINE` bytes, which takes no round
trips to the nodes' object stores and cannot be lost with one; larger ones come through the stores.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import time
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
from ringfeed.ray.desk import Desk, facts_here, guard
from ringfeed.ray.hiring import Node
from ringfeed.ray.options import LOCAL, BridgeTerms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future


CONNECT_S = 10.0  # for a head to answer
INLINE = 8 << 20  # bytes of an answer
_ENVIRONMENT = {
    "RAY_max_direct_call_object_size": str(INLINE),
    "RAY_task_rpc_inlined_bytes_limit": str(2 * INLINE),
}


class Actor(Desk):
    """What Ray runs on a node."""

    def __init__(self) -> None:
        """Start with nothing: what fails here would be told as text alone."""

    def begin(self, papers: bytes, *pieces: Any) -> tuple[dict[str, Any], tuple[int, int]] | bytes:
        """Open the dataset; returns facts about this process, or the record of an error.

        The facts are those of `facts_here`, and what `of_process` takes to read its stack.
        """
        try:
            guard()
            stack = os.getpid(), keep_own()
            super().__init__(papers)
            self.open(*pieces)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the bridge decides
            return encode(error)
        return facts_here(), stack


class RayFleet:
    """Actors of one connection to a Ray cluster."""

    def __init__(self, terms: BridgeTerms) -> None:
        """Connect to the cluster, or start one; WorkerError says why that fails."""
        self._terms = terms
        self._done: SimpleQueue[tuple[Any, int, Future[Any]]] = SimpleQueue()
        self._handles: dict[int, Any] = {}
        self._stacks: dict[
            int, tuple[str, int, int]
        ] = {}  # of actors: the node, and what `of_process` takes there
        connect(terms.address)
        need = terms.ray.need
        cpus, gpus = need.pop("CPU", 0), need.pop("GPU", 0)
        self._class = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            resources=need,
            max_restarts=0,
            max_task_retries=0,
            runtime_env=_environment(terms.ray.runtime_env),
        )(Actor)
        # In no environment of ours: a process that waits for work there can take it.
        given = dict(terms.ray.runtime_env or {})
        self._of_process = ray.remote(num_cpus=0, max_retries=0, runtime_env=given)(of_process)

    # ---- the cluster ----

    def nodes(self) -> list[Node]:
        """Return the nodes that Ray takes for alive."""
        return [
            Node(one["NodeID"], one["NodeManagerAddress"], one["Resources"])
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
            raise WorkerError(
                f"node {address}, to which the bridge is connected, has no room for "
                f"{show_bytes(piece.nbytes)} of the dataset in its object store, nor on its disk; "
                "start it with a larger --object-store-memory, or keep less in the dataset and "
                "read files on demand"
            ) from error

    # ---- actors ----

    def hire(self, actor: int, node: str, papers: bytes, pieces: Sequence[Any]) -> None:
        """Start an actor on a node, and have it open the dataset: see `Desk`."""
        placed = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        handle: Any = self._class.options(scheduling_strategy=placed).remote()
        self._handles[actor] = handle
        self._watch(partial(self._begun, node), actor, handle.begin.remote(papers, *pieces))

    def send(self, actor: int, pieces: Sequence[Any]) -> None:
        """Have an actor open another version of the dataset, ahead of the calls that name it."""
        if (handle := self._handles.get(actor)) is not None:
            self._watch(self._opened, actor, handle.open.remote(*pieces))

    def call(self, actor: int, flight: int, order: tuple[int, int, list[int]]) -> None:
        """Have an actor make rows: see `Desk.fill`."""
        if (handle := self._handles.get(actor)) is not None:
            self._watch(partial(self._answered, flight), actor, handle.fill.remote(*order))

    def _watch(self, event_of: Any, actor: int, ref: Any) -> None:
        # The future keeps the reference: Ray aborts the process where one is dropped before its
        # answer. Its callback runs on Ray's only thread for all answers.
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

    def next(self, timeout_s: float) -> tuple[Any, ...] | None:
        """Return what has become of the next call that is over; None where nothing has.

        "hired", actor, facts           an actor has started, and can be called
        "refused", actor, error         it lacks room, or its dataset does not open there
        "died", actor, why              it is no more; its calls are answered no more
        "stack", actor, text            its Python stack, or why there is none
        "answered", flight, filled      what a call has given
        "unreached", flight             a call or its answer was lost on its way; the actor may live
        "broken", flight, why           a call was not carried out, by no fault of a sample's
        """
        try:
            event_of, actor, future = self._done.get(timeout=timeout_s)
        except Empty:
            return None
        event: tuple[Any, ...] | None = event_of(actor, future)
        return event

    def _begun(self, node: str, actor: int, future: Future[Any]) -> tuple[Any, ...] | None:
        try:
            found = future.result()
        except Exception as error:  # noqa: BLE001 - of Ray's
            return ("refused", actor, error) if actor in self._handles else None
        if isinstance(found, bytes):
            return "refused", actor, decode(found).error
        facts, stack = found
        self._stacks[actor] = node, *stack
        return "hired", actor, facts

    def _opened(self, actor: int, future: Future[Any]) -> tuple[Any, ...] | None:
        """Tell of an actor that could not open a version; of one that has died its calls tell."""
        error = future.exception()
        return (
            ("died", actor, f"could not open the dataset: {error}")
            if isinstance(error, RayTaskError)
            else None
        )

    def _answered(self, flight: int, actor: int, future: Future[Any]) -> tuple[Any, ...] | None:
        try:
            return "answered", flight, future.result()
        except ActorUnavailableError:
            return "unreached", flight
        except (ActorDiedError, RayActorError) as error:
            self._stacks.pop(actor, None)
            if self._handles.pop(actor, None) is None:
                return None  # that was told with another of its calls
            return "died", actor, _why(error)
        except Exception as error:  # noqa: BLE001 - Ray's, or one that cannot be unpickled here
            why = str(error)
            if isinstance(getattr(error, "cause", error), ObjectStoreFullError | OutOfDiskError):
                why += "; start it with a larger --object-store-memory, or have less in a batch"
            return "broken", flight, why

    def _told(self, actor: int, future: Future[Any]) -> tuple[Any, ...]:
        try:
            return "stack", actor, future.result()
        except Exception as error:  # noqa: BLE001 - of Ray's
            return (
                "stack",
                actor,
                f"no stack: {type(error).__name__}: {' '.join(str(error).split())}",
            )

    def close(self) -> None:
        """Kill the actors, and disconnect; a cluster that was started here ends with that."""
        for actor in [*self._handles]:
            self.dismiss(actor)
        ray.shutdown()


def _why(error: BaseException) -> str:
    """Say how an actor has died, in Ray's words, in a line."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [
        line
        for line in lines
        if "exit" in line.lower() or "killed" in line.lower() or "died" in line.lower()
    ]
    return f"died ({(told or lines or ['no reason given'])[-1][:200]})"


def _environment(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the environment of actors: the user's, and Ray's limits for answers."""
    environment = dict(given or {})
    environment["env_vars"] = {**_ENVIRONMENT, **environment.get("env_vars", {})}
    return environment


# ---- connecting ----


def connect(address: str) -> None:
    """Connect this process to a cluster; WorkerError says what to do where that fails."""
    quiet: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "namespace": None,
    }
    if address == LOCAL:
        os.environ.setdefault(
            "RAY_AUTH_TOKEN", secrets.token_hex(32)
        )  # else Ray writes one to the home of this user
        ray.init(address=LOCAL, include_dashboard=False, **quiet)
        return
    _wait_for(address)
    try:
        ray.init(address=address, **quiet)
    except RuntimeError as error:
        here = f"Ray {ray.__version__}, Python {sys.version.split()[0]}"
        told = " ".join(str(error).split())
        raise WorkerError(
            f"the Ray cluster at {address!r} cannot be joined: here is {here}; {told}"
        ) from error
    except OSError as error:  # ConnectionError, too
        if not _is_about_token(error):
            raise _nothing_at(address, error) from error
        mode = os.environ.get("RAY_AUTH_MODE", "disabled")
        raise WorkerError(
            f"the Ray cluster at {address!r} asks for a token, and RAY_AUTH_MODE is {mode!r} here; "
            "have training run with RAY_AUTH_MODE=token and the token of that cluster, as Ray's "
            "page on token authentication says"
        ) from error


def _wait_for(address: str) -> None:
    """Wait until a head answers at an address; WorkerError where none does."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
                return
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline_s or isinstance(error, ValueError):
                raise _nothing_at(address, error) from error
            time.sleep(0.2)


def _nothing_at(address: str, why: Exception) -> WorkerError:
    return WorkerError(
        f"no Ray cluster answers at {address!r} within {CONNECT_S:g} s ({why}); `ray status "
        f"--address {address}` says whether one runs there; start one by `ray start --head`, or "
        "give address='local'"
    )


def _is_about_token(error: BaseException | None) -> bool:
    """Whether a cluster has refused what led to this for want of its token."""
    while error is not None:
        if "AuthToken" in str(error) or type(error).__name__ == "AuthenticationError":
            return True
        error = error.__cause__ or error.__context__
    return False


os.environ.setdefault("RAY_DEDUP_LOGS", "0")
