"""What is seen of a running loader at one setting, and where it may go from there: what a `Tuner` decides from."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from statistics import mean, median, stdev
from typing import TYPE_CHECKING

from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from ringfeed.monitor.stats import Setting, Side, Stats

LOOK_S, LOOK_BATCHES = 0.5, 8  # a shorter window says nothing
WAITS = 0.02  # of the time: below it training has all it can use
WAITS_AGAIN = 0.05  # of the time, from which a settled tuner looks again
PAYS = 0.04  # more samples a second, for a step to be kept
FEW, MANY = 3, 12  # windows that are looked at of a setting
SURE = 0.02  # standard error of a throughput, from which no more windows are needed


@dataclass(frozen=True)
class Window:
    """What was seen since the last look.

    ``stall_s``: the consumer waited; ``busy_s`` and ``back_pressure_s``: all workers together filled, and waited for
    something to fill. ``all_held``: the consumer holds every open slot, so that nothing can be filled.
    """

    elapsed_s: float = 0.0
    stall_s: float = 0.0
    busy_s: float = 0.0
    back_pressure_s: float = 0.0
    batches: int = 0
    samples: int = 0
    all_held: bool = False

    def __add__(self, other: Window) -> Window:
        """Return both as one."""
        return Window(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def between(cls, before: Stats, now: Stats, *, all_held: bool) -> Window:
        """Return what the statistics have counted from one moment to another."""
        names = ("elapsed_s", "stall_s", "busy_s", "back_pressure_s", "batches", "samples")
        counted = {name: getattr(now, name) - getattr(before, name) for name in names}
        return cls(**counted, all_held=all_held)

    @property
    def is_long(self) -> bool:
        """Whether it means something."""
        return self.elapsed_s >= LOOK_S and self.batches >= LOOK_BATCHES and self.samples > 0


@dataclass(frozen=True)
class Bounds:
    """What a setting may be; sizes in bytes: ``fixed`` is what the budget holds besides slots and workers."""

    least: Setting
    most: Setting
    slot_size: int
    worker_size: int
    budget: int
    fixed: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError where not even the least is within the budget."""
        if self.size(self.least) > self.budget:
            raise ValueError(
                f"{named('workers', self.least.workers)} and {named('slots', self.least.slots)} take "
                f"{show_bytes(self.size(self.least))}, but the budget is {show_bytes(self.budget)}; raise memory= or "
                f"make batch_size smaller"
            )

    def size(self, setting: Setting) -> int:
        """Return the bytes that a setting takes."""
        return self.fixed + setting.slots * self.slot_size + setting.workers * self.worker_size

    def limit(self, side: Side, setting: Setting) -> tuple[int, str]:
        """Return how many there may be of one while the other stays, and what says so."""
        each = self.slot_size if side == "slots" else self.worker_size
        most = self.most.count(side)
        room = self.budget - self.size(setting)
        affordable = setting.count(side) + room // each if each else most
        if affordable < most:
            return affordable, f"the memory budget holds no more {side}"
        return most, f"there may be no more than {named(side, most)}"


@dataclass(frozen=True)
class Move:
    """A setting to go to, and why."""

    setting: Setting
    why: str


class Level:
    """What was seen at one setting."""

    def __init__(self, setting: Setting, windows: list[Window] | None = None) -> None:
        self.setting = setting
        self.windows = windows or []

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return median(self._rates) if self.windows else 0.0

    @property
    def waited(self) -> float:
        """Share of the time that the consumer waited."""
        return min(1.0, median(one.stall_s / one.elapsed_s for one in self.windows)) if self.windows else 0.0

    @property
    def busy(self) -> float:
        """Share of their time that the workers were filling."""
        elapsed_s = sum(one.elapsed_s for one in self.windows)
        return min(1.0, sum(one.busy_s for one in self.windows) / (max(1, self.setting.workers) * elapsed_s))

    @property
    def error(self) -> float:
        """Standard error of the throughput, as a share of it; 1 where it is not known yet."""
        count = len(self.windows)
        return stdev(self._rates) / math.sqrt(count) / mean(self._rates) if count >= FEW else 1.0

    @property
    def is_sure(self) -> bool:
        """Whether more windows would not change the throughput much, or would take too long."""
        return self.error <= SURE or len(self.windows) >= MANY

    @property
    def costs_s(self) -> tuple[list[float], list[float]]:
        """What a sample took the workers, and the training, in each window; never 0."""
        fill_s = [max(one.busy_s, 1e-9) / one.samples for one in self.windows]
        return fill_s, [max(one.elapsed_s - one.stall_s, WAITS * one.elapsed_s) / one.samples for one in self.windows]

    @property
    def _rates(self) -> list[float]:
        return [one.samples / one.elapsed_s for one in self.windows]


def named(side: Side, count: int) -> str:
    """Return the count with its noun."""
    return f"{count} {side if count != 1 else side[:-1]}"


def shortage(side: Side, level: Level) -> str:
    """Return what is short, and how that shows."""
    busy = f"the workers are {level.busy:.0%} busy"
    what = busy if side == "workers" else f"{busy}, so they wait for slots"
    return f"training waits {show_share(level.waited)} of the time and {what}"


def show_share(share: float) -> str:
    """Return a share as people read it: ``63%``, ``1.5%``."""
    return f"{share:.0%}" if share >= WAITS_AGAIN else f"{share:.1%}"


def gained(gain: float) -> str:
    """Return what a step did to the throughput."""
    if abs(gain) < PAYS:
        return f"gained nothing ({round(gain, 2) + 0:+.0%})"
    return f"gained {gain:.0%}" if gain > 0 else f"lost {-gain:.0%}"
