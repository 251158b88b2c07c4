"""What is simulated: the work of a sample, what a call costs, and a setting, read from JSON; and what comes of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringfeed.remote.pace import TICKET_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self


@dataclass(frozen=True)
class Work:
    """What a sample takes, as `ringfeed profile --json` tells it: seconds, their coefficient of variation, bytes."""

    sample_s: float
    cv: float
    sample_bytes: int

    def __post_init__(self) -> None:
        """Raise ValueError for what no sample can be."""
        _check("sample_s", self.sample_s, above=0.0)
        _check("cv", self.cv)
        _check("sample_bytes", self.sample_bytes)

    @classmethod
    def read(cls, path: Path) -> tuple[Self, int | None]:
        """Return what a profile says, and its batch size; None for a dataset of whole batches."""
        found = _loaded(path, "a profile; write one by `ringfeed profile --json mymodule:dataset > profile.json`")
        _check_names(path, found, {"sample_s", "cv", "sample_bytes", "batch_size"})
        size = found["batch_size"]
        return cls(found["sample_s"], found["cv"], found["sample_bytes"]), size


@dataclass(frozen=True)
class Costs:
    """What calls cost, in seconds, as a calibration tells it. The defaults were measured on two cores.

    call_s: of a bridge, for each ticket. inline_s_per_gb, plasma_s_per_gb: of a bridge, for what an answer holds, up to
    8 MB and above. actor_call_s: of an actor, for each ticket. start_s: of an actor. actor_lost_s, node_lost_s: until
    the death of an actor, of a node, is noticed.
    """

    call_s: float = 0.0003
    inline_s_per_gb: float = 0.84
    plasma_s_per_gb: float = 0.2
    actor_call_s: float = 0.0009
    start_s: float = 0.9
    actor_lost_s: float = 0.02
    node_lost_s: float = 1.7

    def __post_init__(self) -> None:
        """Raise ValueError for what is no time."""
        for one in fields(self):
            _check(one.name, getattr(self, one.name))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a calibration says."""
        found = _loaded(path, "a calibration; write one by `python bench/studies/remote.py --calibrate`")
        names = {field.name for field in fields(cls)}
        _check_names(path, found, names)
        return cls(**{name: found[name] for name in names})

    def land_s(self, size: int) -> float:
        """Return what an answer of so many bytes takes of a bridge."""
        return size / 1e9 * (self.inline_s_per_gb if size <= TICKET_BYTES else self.plasma_s_per_gb)


LostKind = Literal["actor", "node"]


@dataclass(frozen=True)
class Setting:
    """A trainer, and what feeds it.

    rows: of a ticket. window: tickets that an actor has at a time. step_s: of a batch; 0: as fast as they come.
    node_gbits, gbits: of each node's link and of the trainer's; infinite where nothing limits them. latency_s: one way.
    cores: that all actors and bridges share; None: each has its own. lost: when an actor or a node dies.
    """

    workers: int
    batch_size: int = 32
    rows: int = 1
    window: int = 2
    slots: int = 4
    bridges: int = 1
    actors_per_node: int = 16
    step_s: float = 0.0
    node_gbits: float = math.inf
    gbits: float = math.inf
    latency_s: float = 0.0
    cores: int | None = None
    lost: tuple[tuple[float, LostKind], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot run."""
        for name in ("workers", "batch_size", "rows", "window", "bridges", "actors_per_node"):
            _check(name, getattr(self, name), least=1)
        _check("slots", self.slots, least=2)
        _check("step_s", self.step_s)
        _check("latency_s", self.latency_s)
        for name in ("node_gbits", "gbits"):
            _check(name, getattr(self, name), above=0.0, finite=False)
        if self.cores is not None:
            _check("cores", self.cores, least=1)

    @property
    def nodes(self) -> int:
        """How many nodes the actors are on."""
        return math.ceil(self.workers / self.actors_per_node)

    @property
    def tickets(self) -> int:
        """Tickets of a batch."""
        return math.ceil(self.batch_size / self.rows)

    def bounds(self, work: Work, costs: Costs) -> dict[str, float]:
        """Return samples a second that each part could pass, if the others were free."""
        size = work.sample_bytes * min(self.rows, self.batch_size)
        ticket_s = costs.call_s + costs.land_s(size)
        rows = self.batch_size / self.tickets
        bits = 8e-9 * work.sample_bytes or math.inf
        return {
            "actors": self.workers / (work.sample_s + costs.actor_call_s / rows),
            "bridge": self.bridges * rows / ticket_s if ticket_s else math.inf,
            "node link": self.nodes * self.node_gbits / bits if math.isfinite(bits) else math.inf,
            "link": self.gbits / bits if math.isfinite(bits) else math.inf,
            "trainer": self.batch_size / self.step_s if self.step_s else math.inf,
        }


@dataclass(frozen=True)
class Outcome:
    """What a run has shown. Shares are of the time that counts; ``in_flight`` and ``flight_s`` are of all of it."""

    samples_per_s: float
    stall: float  # share of the time that the trainer waits
    busy: dict[str, float]  # share of the time that the busiest of each part is busy
    starved: float  # share of the time that actors have room, and all tickets of bound batches are under way
    took_s: float  # in all
    in_flight: float  # tickets, on average
    flight_s: float  # of a ticket, on average
    tickets: int
    batches: tuple[float, ...] = field(repr=False)  # when each was taken


def _check(name: str, value: Any, *, least: float = 0.0, above: float | None = None, finite: bool = True) -> None:
    """Raise ValueError unless it is a number from ``least`` on, or above ``above``."""
    expected = f"a number above {above:g}" if above is not None else f"a number of {least:g} or more"
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if is_number and (math.isfinite(value) or not finite) and (value > above if above is not None else value >= least):
        return
    message = f"{name}={value!r} must be {expected}"
    raise ValueError(message)


def _loaded(path: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        message = f"{path}: {error.strerror}; give {what}"
        raise ValueError(message) from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        message = f"{path} is no JSON object; give {what}"
        raise ValueError(message)  # noqa: TRY004 - it is the content of a file
    return found


def _check_names(path: Path, found: Mapping[str, Any], names: set[str]) -> None:
    if missing := sorted(names - {*found}):
        message = f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(found)) or 'nothing'}"
        raise ValueError(message)
