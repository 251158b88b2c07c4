"""The loader's ``backend=Ray(...)``: its parameters, checked. Nothing here imports Ray."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
import warnings
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ringfeed._callers import callers_depth
from ringfeed._checks import AUTO, check_integer, is_auto
from ringfeed.ray.pace import flights_size, in_flight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfeed.datasets.base import Source
    from ringfeed.workers.pool import Pool, PoolConfig

MOST_ACTORS = 10_000
MOST_BRIDGES = 16
AUTO_ACTORS = 64  # "auto": at most
LOCAL = "local"
TICKET_ROWS = 8  # that slots are for, by default
MOST_SLOTS = 62  # by default: whole batches for more actors are the user's to ask for


@dataclass(frozen=True)
class Ray:
    """Workers on the nodes of a Ray cluster: ``Loader(..., backend=ringfeed.ray.Ray(workers=64))``.

    A separate process, the bridge, connects to the cluster; Ray never runs in the training process.
    Order, content, states, errors and hooks are those of local workers, whichever process dies. The
    loader's ``workers=`` is the number of workers on this host, which take rows first; with
    ``workers=0`` actors make all rows. See docs/remote.md.

    workers: how many actors; "auto": as many as training waits for.
    num_cpus, resources: what each actor asks of its node, as in ``ray.remote``.
    address: of the cluster; None: RAY_ADDRESS, or one that this user or root has started on this
        machine; "local" starts one with the loader, and ends it with the loader.
    runtime_env: of the actors, as in ``ray.init``: packages and modules that their nodes lack.
    bridges: how many processes connect; more than one if one is the limit (`stats` says so).
    private: whether each actor has its own writable copy of the dataset's large arrays, which are
        else read-only.
    """

    workers: int | Literal["auto"] = AUTO  # type: ignore[assignment]
    num_cpus: float = 1
    resources: Mapping[str, float] | None = None
    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    bridges: int = 1
    private: bool = False

    fleet: ClassVar[tuple[str, str]] = "ringfeed.ray.ray_fleet", "RayFleet"
    """The module and the class that a bridge hires actors with."""

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError that names the parameter and what it takes."""
        if not is_auto("Ray(workers)", self.workers):
            check_integer("Ray(workers)", self.workers, 1, MOST_ACTORS)
        check_integer("Ray(bridges)", self.bridges, 1, MOST_BRIDGES)
        _check_amount("Ray(num_cpus)", self.num_cpus)
        for name, amount in (self.resources or {}).items():
            _check_amount(f"Ray(resources)[{name!r}]", amount)
        for name, value, kind in (("address", self.address, str), ("private", self.private, bool)):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"Ray({name})={value!r} must be a {kind.__name__}")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                f"Ray(address)={self.address!r} is that of a Ray Client server, through which no "
                "bridge can connect; give the address of the head itself, as in 'head:6379'"
            )
        if self.address == LOCAL and self.bridges > 1:
            raise ValueError(
                f"Ray(bridges)={self.bridges} with address='local': each bridge would start a "
                "cluster of its own; start one (`ray start --head`) and leave address= out, or "
                "have one bridge"
            )
        if not self.is_auto and self.bridges > self.most:
            raise ValueError(
                f"Ray(bridges)={self.bridges} for {self.most} actors; give no more bridges than "
                "actors"
            )

    @property
    def is_auto(self) -> bool:
        """Whether the number of actors is found out."""
        return self.workers == AUTO

    @property
    def most(self) -> int:
        """The most actors there may be."""
        return AUTO_ACTORS if isinstance(self.workers, str) else self.workers

    @property
    def need(self) -> dict[str, float]:
        """What an actor asks of its node."""
        return {"CPU": self.num_cpus, **(self.resources or {})}

    def slots(self, source: Source) -> int:
        """Return how many slots have rows for all calls of the actors, within reason."""
        calls, one_each = in_flight(self), source.at_once
        return min(MOST_SLOTS, calls if one_each else ceil(calls * TICKET_ROWS / source.indices))

    def check_fits(self, source: Source, workers: object) -> None:
        """Raise ImportError, ValueError or PermissionError where such a loader cannot have it."""
        self.check_ready()
        if source.local_only:
            raise ValueError(
                f"backend=Ray(...) with a {type(source.given).__name__}, an iterator that a thread "
                "of this process reads; give an iterable that makes a new iterator each time, or "
                "leave backend= out"
            )
        if source.streams == 1 and workers != 0:
            warnings.warn(
                "backend=Ray(...) with an iterable, which one worker reads, and workers here come "
                "first; give workers=0 to have an actor read it, or several iterables by "
                "ringfeed.datasets.Interleave",
                UserWarning,
                stacklevel=callers_depth(),
            )

    def figures(self, source: Source) -> dict[str, int]:
        """Return what a plan counts: the calls under way, and the bytes of their rows."""
        return {"more": in_flight(self), "flights_size": flights_size(self, source)}

    def make_pool(self, config: PoolConfig) -> Pool:
        """Return worker processes here and bridges; they do not run yet."""
        from ringfeed.ray.pool import Mixed  # noqa: PLC0415 - only a loader needs it

        return Mixed(config, self)

    def check_ready(self) -> None:
        """Raise ImportError without Ray, ValueError where no address says which cluster."""
        if importlib.util.find_spec("ray") is None:
            raise ImportError('backend=Ray(...) needs ray; pip install "ringfeed[ray]"')
        if not self.found_address():
            raise ValueError(
                "backend=Ray(...) without address=, and no Ray cluster runs on this machine, nor "
                "does RAY_ADDRESS name one; give the address= of a cluster's head, or "
                "address='local', which starts a cluster with the loader and ends it with the "
                "loader"
            )

    def found_address(self) -> str:
        """Return the address of the cluster, "" where there is none.

        PermissionError where another user may have named it.
        """
        said = [
            one
            for one in (self.address, os.environ.get("RAY_ADDRESS"))
            if one not in {None, "", AUTO}
        ]
        return (said[0] if said else None) or _address_here() or _newest_here()


def _check_amount(name: str, amount: object) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"{name}={amount!r} must be a number")
    if amount < 0:
        raise ValueError(f"{name}={amount!r} must be at least 0")


def _address_here() -> str:
    """Return the address of the cluster that this process is connected to, as in Ray Train."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().gcs_address)


def _newest_here() -> str:
    """Return the address of the cluster that was started last on this machine, where Ray keeps it.

    Code is sent there, and so a file that another user may have written is none.
    """
    folder = os.environ.get("RAY_TMPDIR", "/tmp")  # noqa: S108 - Ray's own
    place = Path(folder) / "ray" / "ray_current_cluster"
    try:
        with open(place, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            found, address = os.fstat(file.fileno()), file.read().strip()
    except OSError:
        return ""
    if found.st_uid not in {0, os.getuid()} or found.st_mode & stat.S_IWOTH:
        whose = (
            "which all users may write"
            if found.st_uid == os.getuid()
            else f"of another user (uid {found.st_uid})"
        )
        raise PermissionError(
            f"backend=Ray(...) without address=, and a file {whose} names the Ray cluster of this "
            f"machine: {place}; give the address= of the cluster's head"
        )
    return address


class BridgeTerms(NamedTuple):
    """What a bridge is told of its loader."""

    ray: Ray
    address: str  # of the cluster
    number: int  # of this bridge
    local: int  # workers here: they come first, and have the numbers ahead of those of all actors
    finds_local: bool  # whether their number is found out first
    stream: int  # of the ring, which the actors read; 0: all
    max_attempts: int

    @property
    def most(self) -> int:
        """How many actors this bridge has at most."""
        return self.ray.most // self.ray.bridges + (self.number < self.ray.most % self.ray.bridges)
