"""What remote workers have done, for `Loader.stats`, and what the user can do about it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringfeed._units import show_bytes, show_s
from ringfeed.monitor.bottleneck import BUSY, HEADROOM, WAITED, bound, share_waited
from ringfeed.monitor.stats import Stats, Verdict
from ringfeed.ray.pace import WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


PAYS = 2.0  # CPU seconds for a GB of rows, below which the way costs about as much as the work


@dataclass
class RemoteStats:
    """Counts of all bridges since each was started; times in seconds.

    ``wanted``, ``there``, ``suspects``: actors that are wanted, that run, and that are late;
    ``there_s``: when all ran; ``declined``: why there are fewer than wanted. ``tickets`` are in
    flight now. ``calls`` were answered, with ``rows`` of ``bytes``; a call took ``flight_s`` on
    average, ``work_s`` of it in the actor. ``cpu_s``: of all actors, in ``dataset[i]``;
    ``bridge_cpu_s``: of the bridges. ``busy``: share of their time that actors work;
    ``bridge_busy``: share of a CPU that a bridge uses. ``hedged`` calls were repeated for being
    late, ``rerun`` rows were made again after a death, ``dropped`` answers came too late.
    ``nodes``: actors by address.
    """

    wanted: int = 0
    there: int = 0
    there_s: float = 0.0
    suspects: int = 0
    declined: str = ""
    tickets: int = 0
    calls: int = 0
    rows: int = 0
    bytes: int = 0
    flight_s: float = 0.0
    work_s: float = 0.0
    cpu_s: float = 0.0
    bridge_cpu_s: float = 0.0
    busy: float = 0.0
    bridge_busy: float = 0.0
    deaths: int = 0
    hedged: int = 0
    rerun: int = 0
    dropped: int = 0
    nodes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, bridges: Iterable[Mapping[str, Any]]) -> RemoteStats:
        """Return what the boards of several bridges say, as one."""
        found = cls(nodes=Counter())
        for said in filter(None, bridges):
            for name, own in [*vars(found).items()]:
                if name == "bridge_busy":
                    value = max(own, said[name])
                elif isinstance(own, str):
                    value = own or said[name]
                else:  # a number, or a Counter, of which JSON has made a dict
                    value = own + type(own)(said[name])
                setattr(found, name, value)
        found.busy = min(1.0, found.work_s / found.there_s) if found.there_s else 0.0
        calls = max(1, found.calls)
        found.flight_s, found.work_s = found.flight_s / calls, found.work_s / calls
        found.nodes = dict(found.nodes)
        return found

    @property
    def cpu_s_a_gb(self) -> float:
        """CPU seconds to make a GB of rows."""
        return self.cpu_s / (self.bytes / 1e9) if self.bytes else 0.0


def verdict_with(stats: Stats, remote: RemoteStats, otherwise: Verdict) -> Verdict:
    """Say what waits for what, and what to change; ``otherwise``: what is said of workers here."""
    few = f"there are {remote.there} of {remote.wanted} actors: {remote.declined}"
    limits = [(few,)] if remote.declined else []
    waited = share_waited(stats)
    if waited is None or not remote.calls:
        return Verdict(otherwise.kind, *otherwise.lines, *limits)
    advice = _surplus(remote) if waited < WAITED else _shortage(remote)
    return bound(waited, stats.waits, advice, *limits)


def _surplus(remote: RemoteStats) -> tuple[str, str]:
    enough = max(1, math.ceil(remote.there * remote.busy * HEADROOM))
    spare = (
        f"{enough} actor{'s' * (enough > 1)} would do"
        if enough < remote.there
        else "nothing to change"
    )
    return f"actors are {remote.busy:.0%} busy", spare


def _shortage(remote: RemoteStats) -> tuple[str, str]:
    """Say what the actors, their calls or the bridge lack, and what to change."""
    rows = remote.rows / remote.calls
    bridge = (
        f"{show_s(remote.bridge_cpu_s / remote.calls)} a ticket of {rows:.0f} "
        f"row{'s' * (round(rows) != 1)}"
    )
    if remote.bridge_busy >= BUSY:
        seen = f"the bridge is {remote.bridge_busy:.0%} busy, {bridge}"
        return seen, "raise batch_size= or bridges= of ringfeed.ray.Ray"
    if remote.bytes and remote.cpu_s_a_gb < PAYS:
        way_s = remote.bridge_cpu_s / (remote.bytes / 1e9)
        cost = (
            f"a GB of rows takes {show_s(remote.cpu_s_a_gb)} of CPU to make and {show_s(way_s)} to "
            "bring here"
        )
        return f"{cost}, so remote workers do not pay", "use workers= alone"
    if remote.busy >= BUSY:
        cost = show_s(remote.work_s / max(rows, 1))
        seen = f"actors are {remote.busy:.0%} busy in dataset[i], {cost} a sample"
        return seen, f"add actors (now {remote.there}), or make it cheaper"
    call = f"a call of {show_s(remote.work_s)} of work takes {show_s(remote.flight_s)}"
    way = f"the way of {show_bytes(remote.bytes // remote.calls)}, {WINDOW} at a time"
    return (
        f"actors are only {remote.busy:.0%} busy: {call} with {way}",
        "raise slots= or batch_size=, or have a quicker link",
    )
