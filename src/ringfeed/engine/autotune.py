"""Which numbers of workers and slots to run with, decided from what waits for what while training runs.

    training waits, the workers are busy   twice the workers, or as many as the throughput lacks
    training waits, the workers wait       twice the slots, or as many workers; first what can gain more
    the step pays                          keep it, and look again
    it does not, and the workers wait      twice the slots on top: bursts need several, workers one each
    it still does not                      one step back; from there, this is not tried again

Where nothing is left to try, the setting stays until the share of the time that training waits is
clearly another. That ends after a number of moves. No clocks and no processes in here.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from statistics import mean, median, stdev
from typing import TYPE_CHECKING

from ringfeed.monitor.stats import Setting, Side, Step
from ringfeed.ring.segment import MIN_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["Setting", "Side", "Step", "Tuner", "Window"]

LOOK_S, LOOK_BATCHES = 0.5, 8  # a shorter window says nothing
FEW, MANY = 3, 12  # windows that are looked at of a setting
SURE = 0.02  # standard error of a throughput, from which no more windows are needed
STARTING_S = 10.0  # that new workers may take to start
BUSY = 0.9  # of the workers' time: above it they are what lacks, below it slots
PAYS = 0.04  # more samples a second, for a step to be kept; training that waits less has all it can use
HEADROOM = 1.1  # over what the throughput lacks
CHANGED = 0.05  # of the time, that training waits more or less than it did: another regime
MOST_MOVES = 50  # after them a setting is looked for no more


@dataclass(frozen=True)
class Window:
    """What was seen since the last look.

    ``stall_s``: the consumer waited; ``busy_s`` and ``back_pressure_s``: all workers together
    filled, and waited for something to fill. ``all_held``: the consumer holds every open slot, so
    that nothing can be filled.
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
        return Window(
            *(one + another for one, another in zip(astuple(self), astuple(other), strict=True))
        )


class Level:
    """What was seen at one setting, in no more than ``most`` windows."""

    def __init__(self, setting: Setting, most: int = MANY) -> None:
        self.setting, self._most = setting, most
        self.windows: list[Window] = []

    @property
    def samples_per_s(self) -> float:
        """Throughput; 0 where nothing was seen."""
        return median(self._rates) if self.windows else 0.0

    @property
    def waited(self) -> float:
        """Share of the time that the consumer waited."""
        return (
            min(1.0, median(one.stall_s / one.elapsed_s for one in self.windows))
            if self.windows
            else 0.0
        )

    @property
    def busy(self) -> float:
        """Share of their time that the workers were filling."""
        elapsed_s = sum(one.elapsed_s for one in self.windows)
        return min(
            1.0,
            sum(one.busy_s for one in self.windows) / (max(1, self.setting.workers) * elapsed_s),
        )

    @property
    def is_sure(self) -> bool:
        """Whether more windows would not change the throughput much, or would take too long."""
        count = len(self.windows)
        sure = SURE * math.sqrt(count)
        return count >= self._most or (
            count >= FEW and stdev(self._rates) <= sure * mean(self._rates)
        )

    @property
    def _rates(self) -> list[float]:
        return [one.samples / one.elapsed_s for one in self.windows]


class Tuner:
    """Decides on the settings of one loader, from ``least`` to ``most``; ``tuned`` says which of the two may change."""

    def __init__(
        self, least: Setting, most: Setting, tuned: Collection[Side] = ("workers", "slots")
    ) -> None:
        self.setting = least
        self.history: list[Step] = []
        self.why = "too early to say"
        self._most, self._tuned = most, tuned
        self._batches = 0
        self._begin()

    def _begin(self) -> None:
        """Look at a setting that needs no proof, as if it were the first."""
        self._level, self._seen = Level(self.setting), Window()
        self._since_s = 0.0  # the last move
        self._base = self._level  # the last one that was kept
        self._closed: dict[
            Side, str
        ] = {}  # why there are not more: what did not pay from the base, or its limit
        self._trial: list[Side] = []  # what there is twice of, compared with the base
        self._outcome = ""  # of the last trial
        self._usual: float | None = (
            None  # share of the time that training has waited since it settled
        )
        self._decide: Callable[[], Step | None] = self._consider

    # ---- looking ----

    @property
    def is_short(self) -> bool:
        """Whether training waits at a setting that was kept, and nothing is left to try."""
        return self._decide == self._watch and self._base.waited >= PAYS

    def look(self, window: Window) -> Step | None:
        """Take in what was seen since the last look; a move, where one is due."""
        self._batches += window.batches
        if window.all_held:
            return self._open_another()
        seen = self._seen = self._seen + window
        if seen.elapsed_s < LOOK_S or seen.batches < LOOK_BATCHES or not seen.samples:
            return None
        self._seen = Window()
        if self._is_starting(seen):
            return None
        self._level.windows.append(seen)
        return self._decide() if self._level.is_sure else None

    def _is_starting(self, window: Window) -> bool:
        """Whether the window still shows the move: slots that run full, or workers that neither fill nor wait yet."""
        is_first, self._since_s = not self._since_s, self._since_s + window.elapsed_s
        there = (window.busy_s + window.back_pressure_s) / window.elapsed_s
        return is_first or (there < self.setting.workers - 0.5 and self._since_s < STARTING_S)

    # ---- deciding ----

    def _consider(self) -> Step | None:
        """Take the setting as the base of what is tried next."""
        self._base = self._level
        return self._next()

    def _next(self) -> Step | None:
        """Try what may pay from the base; settle where there is nothing of the kind."""
        base, self._trial = self._base, []
        if base.waited >= PAYS:
            for side in _lacking(base):
                if side not in self._closed and self._has_more(side, base.setting):
                    return self._try(side, base)
        return self._settle()

    def _has_more(self, side: Side, setting: Setting) -> bool:
        """Whether there may be more of it; says so where there may not."""
        most = self._most.count(side)
        if side in self._tuned and setting.count(side) >= most:
            self._closed[side] = f"there may be no more than {named(side, most)}"
        return side in self._tuned and setting.count(side) < most

    def _try(self, side: Side, level: Level) -> Step:
        self._trial.append(side)
        self._decide = self._judge
        count = min(_wanted(side, level), self._most.count(side))
        outcome = f"{self._outcome}; " if self._outcome else ""
        return self._go(
            level.setting.having(side, count),
            f"{outcome}{_shortage(side, level)}: {named(side, count)}",
        )

    def _judge(self) -> Step | None:
        """Keep the trial, or go on to another."""
        level = self._level
        gain = level.samples_per_s / self._base.samples_per_s - 1
        first, last = self._trial[0], self._trial[-1]
        self._outcome = f"{named(last, level.setting.count(last))} {gained(gain)}"
        waits = level.waited >= PAYS
        relieves = not waits and self._base.waited - level.waited >= PAYS  # noise may hide the gain
        if gain >= PAYS or (relieves and gain > -PAYS):
            self._closed.clear()
            return self._consider()
        if (
            waits
            and level.busy < BUSY
            and len(self._trial) == 1
            and self._has_more("slots", level.setting)
        ):
            return self._try("slots", level)
        self._closed[first] = self._outcome
        return self._next()

    # ---- settled ----

    def _settle(self) -> Step | None:
        """Stay with what was kept."""
        base = self._base
        reasons = [self._outcome, *(self._closed.values() if base.waited >= PAYS else ())]
        reasons.append(f"training waits {_show_share(base.waited)} of the time")
        self._decide = self._watch
        step = None
        if self.setting != base.setting:
            counts = (
                f"{named('workers', base.setting.workers)} and {named('slots', base.setting.slots)}"
            )
            step = self._go(base.setting, f"{self._outcome}: back to {counts}")
        self.why = ", ".join(dict.fromkeys(filter(None, reasons)))
        self._level = Level(base.setting, FEW)
        return step

    def _watch(self) -> Step | None:
        """Look again where training waits clearly more than it did, or less."""
        level, self._level = self._level, Level(self.setting, FEW)
        if self._usual is None:
            self._usual = level.waited
        is_usual = abs(level.waited - self._usual) < CHANGED or level.waited < PAYS
        if not is_usual and len(self.history) < MOST_MOVES:
            waited = _show_share(self._usual)
            self._begin()
            self._outcome = f"training waited {waited} of the time before"
        return None

    # ---- moving ----

    def _open_another(self) -> Step | None:
        """Go to a slot more, because none can be filled."""
        slots = self.setting.slots
        held = f"training holds all {named('slots', slots)}, so none can be filled"
        if self._has_more("slots", self.setting):
            return self._restart(
                self.setting.having("slots", slots + 1), f"{held}: {named('slots', slots + 1)}"
            )
        self.why = (
            f"{held}, and {self._closed['slots'] if 'slots' in self._tuned else 'slots= is given'}"
        )
        return None

    def refuse(self, why: str) -> None:
        """Take the last move back, because it could not be made, and never go so far again."""
        for side in self._tuned:
            if self.setting.count(side) > self._before.count(side):
                self._most = self._most.having(side, self._before.count(side))
        self._restart(Setting(*map(min, astuple(self._base.setting), astuple(self._before))), why)

    def make_do(self, workers: int, why: str) -> Step:
        """Go on with so many workers, because those that were to come could not be had; never try more again."""
        self._most = self._most.having("workers", workers)
        base = self._base.setting
        return self._restart(base.having("workers", min(base.workers, workers)), why)

    def _restart(self, setting: Setting, why: str) -> Step:
        step = self._go(setting, why)
        self._begin()
        return step

    def _go(self, setting: Setting, why: str) -> Step:
        level = self._level
        self.history.append(Step(self._batches, setting, why, level.waited, level.samples_per_s))
        self._before, self.setting, self.why = self.setting, setting, why
        self._level, self._seen, self._since_s = Level(setting), Window(), 0.0
        return self.history[-1]


def make_tuner(auto: Collection[Side], most: Setting) -> Tuner:
    """Return the tuner of what is "auto", from little to no more than ``most``."""
    workers = min(1, most.workers) if "workers" in auto else most.workers
    return Tuner(Setting(workers, MIN_SLOTS if "slots" in auto else most.slots), most, auto)


def _lacking(level: Level) -> list[Side]:
    """Return what may be too few, the likelier first."""
    if level.busy >= BUSY:
        return ["workers"]
    # At best slots gain what the workers wait, and workers what training waits, but no more than
    # the double.
    workers_first = level.busy > HEADROOM * max(0.5, 1 - level.waited)
    return ["workers", "slots"] if workers_first else ["slots", "workers"]


def _wanted(side: Side, level: Level) -> int:
    """Return how many to try."""
    now = level.setting.count(side)
    lacking = math.ceil(HEADROOM * now / max(1 - level.waited, 0.01))
    return min(2 * now, lacking) if side == "workers" else 2 * now


def _shortage(side: Side, level: Level) -> str:
    """Return what is short, and how that shows."""
    busy = f"the workers are {level.busy:.0%} busy"
    what = busy if side == "workers" else f"{busy}, so they wait for slots"
    return f"training waits {_show_share(level.waited)} of the time and {what}"


def _show_share(share: float) -> str:
    """Return a share as people read it: ``63%``, ``1.5%``."""
    return f"{share:.0%}" if share >= CHANGED else f"{share:.1%}"


def named(side: Side, count: int) -> str:
    """Return the count with its noun."""
    return f"{count} {side if count != 1 else side[:-1]}"


def gained(gain: float) -> str:
    """Return what a step did to the throughput."""
    if abs(gain) < PAYS:
        return f"gained nothing ({round(gain, 2) + 0:+.0%})"
    return f"gained {gain:.0%}" if gain > 0 else f"lost {-gain:.0%}"
