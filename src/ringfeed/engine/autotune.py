"""Which numbers of workers and slots to run with, decided from what waits for what while training runs.

Each step is a trial. It is kept if it pays; if not, it is undone or gives way to another trial, and its direction is
closed. So a setting is returned to once at most, until what the samples cost or the training takes has changed, or
training waits again: a new regime, of which there is a limited number. No clocks and no processes in here.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import astuple, replace
from statistics import median
from typing import TYPE_CHECKING

from ringfeed.engine.measurements import (
    FEW,
    PAYS,
    WAITS,
    WAITS_AGAIN,
    Bounds,
    Level,
    Move,
    Window,
    gained,
    named,
    shortage,
    show_share,
)
from ringfeed.monitor.stats import Setting, Side, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["Bounds", "Move", "Setting", "Side", "Step", "Tuner", "Window"]

BUSY = 0.8  # of the workers' time: above it they are what lacks, below it slots
IDLE = 0.5  # of the workers' time: below it no more of them are tried
FULL = 0.93  # of the workers' time: above it no slots are tried
CLEAR = 0.25  # gained: that takes few windows to see
DECIDED = 3  # standard errors from that
STARTING = 8  # windows that new workers may take to start
SPARE = 0.1  # workers beyond what the throughput asks for
WORTH_FEWER = 0.75  # of the workers: to try fewer must save a quarter
LEAP = 3  # times the slots, where bursts are to be outlasted
CHANGED = 1.5  # times the cost of a sample or a step: another regime
SEVERAL = 5  # windows that all say so
MOST_REGIMES = 6


class Tuner:
    """Decides on the settings of one loader; ``tuned`` says which of the two it may change."""

    def __init__(self, bounds: Bounds, tuned: Collection[Side] = ("workers", "slots")) -> None:
        self.setting = bounds.least
        self.history: list[Step] = []
        self.why = "too early to say"
        self._bounds, self._tuned = bounds, tuned
        self._batches = 0
        self._seen = Window()  # not long enough yet
        self._settle_in = STARTING  # windows in which workers may still be starting
        self._fresh = True  # nothing seen since the last move
        self._ask: Callable[[], Move | None] = self._consider
        self._level = Level(self.setting)  # being looked at
        self._base = self._level  # the last one that was kept
        self._before = self.setting
        self._trial: Side = "workers"
        self._leapt = False
        self._regimes = 0
        self._reference: Level | None = None  # what it was like when it had settled
        self._begin_regime(changed=True)

    def _begin_regime(self, *, changed: bool) -> None:
        self._regimes += 1
        self._entered = Counter({self.setting: 1})
        if changed:
            self._closed: dict[Side, Setting] = {}  # where more of it did not pay
            self._reasons: dict[Side, str] = {}  # why there are not more
            self._bend = 0  # so many workers should do what the last step to more of them has gained
            self._outcome = ""

    # ---- looking ----

    def look(self, window: Window) -> Move | None:
        """Take in what was seen since the last look; a move, where one is due."""
        self._batches += window.batches
        if window.all_held:
            return self._relieve(f"training holds all {named('slots', self.setting.slots)}, so none can be filled")
        self._seen += window
        if not self._seen.is_long:
            return None
        window, self._seen = self._seen, Window()
        if self._is_starting(window):
            return None
        self._level.windows.append(window)
        return self._ask()

    def _is_starting(self, window: Window) -> bool:
        """Whether the window still shows workers that start, which neither fill nor wait, and slots that run full."""
        there = (window.busy_s + window.back_pressure_s) / window.elapsed_s
        self._settle_in -= 1
        starting = self._fresh or (there < self.setting.workers - 0.5 and self._settle_in > 0)
        self._fresh = False
        return starting

    def replace_lost(self) -> Move | None:
        """Go to a slot more, where workers that cannot be ended are in those there are."""
        return self._relieve(f"workers that cannot be ended are in {named('slots', self.setting.slots)}")

    def _relieve(self, why: str) -> Move | None:
        """One slot more than cannot be filled, at once."""
        slots = self.setting.slots
        limit, reason = self._bounds.limit("slots", self.setting)
        if "slots" not in self._tuned or slots >= limit:
            self.why = f"{why}, and {reason if 'slots' in self._tuned else 'slots= is given'}"
            return None
        self._outcome, self._ask = "", self._consider
        move = self._go(self.setting.having("slots", slots + 1), f"{why}: {named('slots', slots + 1)}")
        self._base = self._level
        return move

    def refuse(self, why: str) -> None:
        """Take the last move back, because it could not be made, and never go so far again."""
        base, before, refused = self._base.setting, self._before, self.setting
        ways = zip(astuple(self._bounds.most), astuple(before), astuple(refused), strict=True)
        self._bounds = replace(self._bounds, most=Setting(*(was if now > was else most for most, was, now in ways)))
        is_less = base.workers <= before.workers and base.slots <= before.slots
        self._go(base if is_less else before, why)
        self._entered[before] -= self.setting == before  # it was never left
        self._outcome, self._ask = "", self._consider

    def make_do(self, workers: int, why: str) -> Move:
        """Go on with so many workers, because those that were to come could not be had; never try more again."""
        self._bounds = replace(self._bounds, most=self._bounds.most.having("workers", workers))
        base = self._base.setting
        setting = base.having("workers", min(base.workers, workers))
        move = self._go(setting, why)
        self._entered[setting] = 1  # what was tried has shown nothing: it may be left for something else
        self._outcome, self._ask = "", self._consider
        return move

    # ---- deciding ----

    def _consider(self) -> Move | None:
        """Decide what to try first, or next."""
        if not self._level.is_sure:
            return None
        self._base = self._level
        return self._next()

    def _next(self) -> Move | None:
        """Try what is not known not to pay; settle when there is nothing of the kind."""
        base, self._leapt = self._base, False
        if base.waited >= WAITS and self._entered[base.setting] == 1:  # it may be come back to
            for side in self._lacking(base):
                count = self._target(side, base)
                if count:
                    return self._try(side, base.setting.having(side, count), shortage(side, base))
        if self._bend and self._bend <= WORTH_FEWER * base.setting.workers and self._entered[base.setting] == 1:
            return self._try_fewer()
        return self._settle()

    def _lacking(self, level: Level) -> list[Side]:
        """Return which of the two may be too few, the likelier first."""
        busy = level.busy
        sides: list[Side] = ["workers"] if busy >= IDLE else []
        if busy < FULL:  # at best slots gain what the workers waited, twice the workers what training waits
            workers_first = busy >= min(BUSY, max(IDLE, 1 - level.waited))
            sides.insert(len(sides) if workers_first else 0, "slots")
        return [side for side in sides if side in self._tuned]

    def _target(self, side: Side, level: Level) -> int | None:
        """Return how many to try; None where no more can pay."""
        now = level.setting.count(side)
        count = now + max(1, now // 2)
        if side == "workers":
            wanted = now / max(1 - level.waited, 0.01) * (1 + SPARE)
            count = max(now + 1, min(2 * now, math.ceil(wanted)))
        closed = self._closed.get(side)
        other: Side = "slots" if side == "workers" else "workers"
        if closed and level.setting.count(other) <= closed.count(other):  # with more of that it may pay
            most = closed.count(side)
            count = min(count, (now + most) // 2) if most - now > max(1, now // 2) else now
        limit, reason = self._bounds.limit(side, level.setting)
        if now >= limit:
            self._reasons[side] = reason
        count = min(count, limit)
        return count if count > now and not self._entered[level.setting.having(side, count)] else None

    def _try(self, side: Side, setting: Setting, why: str) -> Move:
        self._trial, self._ask = side, self._judge
        outcome = f"{self._outcome}; " if self._outcome else ""
        return self._go(setting, f"{outcome}{why}: {named(side, setting.count(side))}")

    def _try_fewer(self) -> Move | None:
        """Try as many workers as should do."""
        fewer, self._bend = self._base.setting.having("workers", self._bend), 0
        if self._entered[fewer]:
            return self._settle()
        return self._try("workers", fewer, "fewer workers may do")

    # ---- judging ----

    def _judge(self) -> Move | None:
        """Keep the trial, or go on to another."""
        level, base = self._level, self._base
        gain = level.samples_per_s / base.samples_per_s - 1
        clear = len(level.windows) >= FEW - 1 and gain >= CLEAR  # a loss may be a pause in one of them
        decided = abs(gain - PAYS) >= DECIDED * math.hypot(level.error, base.error)
        if not (clear or decided or level.is_sure):
            return None
        if level.setting.workers < base.setting.workers:
            return self._judge_fewer(gain)
        self._outcome = f"{named(self._trial, level.setting.count(self._trial))} {gained(gain)}"
        waits_less = level.waited <= min(base.waited / 2, base.waited - WAITS)
        if gain >= PAYS or (waits_less and gain >= 0):
            return self._keep(gain)
        if level.busy < BUSY and level.waited >= WAITS_AGAIN and "slots" in self._tuned:
            slots = self._further(level)
            if slots:
                return self._try("slots", level.setting.having("slots", slots), shortage("slots", level))
        self._close(gain)
        return self._next()

    def _further(self, level: Level) -> int | None:
        """Return how many slots may yet make a trial pay, which has workers that wait for slots."""
        if self._trial == "workers":
            return self._target("slots", level)
        if self._leapt:  # bursts need a stock: one slot shows little, where several show much
            return None
        self._leapt = True
        count = min(LEAP * self._base.setting.slots, self._bounds.limit("slots", level.setting)[0])
        return (
            count if count > level.setting.slots and not self._entered[level.setting.having("slots", count)] else None
        )

    def _keep(self, gain: float) -> Move | None:
        workers = self._base.setting.workers
        if self._level.setting.workers > workers:
            self._bend = math.ceil(workers * (1 + gain) * (1 + SPARE / 2))
        self._ask = self._consider
        return self._consider()

    def _close(self, gain: float) -> None:
        """Remember that so many do not pay."""
        sides: tuple[Side, Side] = ("workers", "slots")
        for side in sides:
            count = self._level.setting.count(side)
            if count > self._base.setting.count(side):
                self._closed[side] = self._level.setting
                self._reasons[side] = f"{named(side, count)} {gained(gain)}"

    def _judge_fewer(self, gain: float) -> Move | None:
        """Keep fewer workers where they do."""
        level, base = self._level, self._base
        count = named("workers", level.setting.workers)
        if gain > -PAYS / 2 and level.waited <= base.waited + WAITS:
            self._base = level
            self._outcome = f"{count} do as well as {base.setting.workers}"
        else:
            self._outcome = f"{count} {gained(gain)}"
        return self._settle()

    # ---- settled ----

    def _settle(self) -> Move | None:
        """Stay with what was kept."""
        base = self._base
        reasons = [self._outcome, *(self._reasons.values() if base.waited >= WAITS else ())]
        reasons.append(f"training waits {show_share(base.waited)} of the time")
        self.why = ", ".join(dict.fromkeys(filter(None, reasons)))
        self._ask, self._reference = self._watch, None
        if self.setting != base.setting:
            why = f"{self._outcome}: back to {named('workers', base.setting.workers)}"
            return self._go(base.setting, f"{why} and {named('slots', base.setting.slots)}", self.why)
        self._level = Level(self.setting)
        return None

    def _watch(self) -> Move | None:
        """Look again where the waiting has come back, or where the regime is another."""
        windows = self._level.windows
        del windows[:-SEVERAL]
        if len(windows) < SEVERAL:
            return None
        if self._reference is None:
            self._reference = Level(self.setting, windows[:])
        changed = self._is_changed(self._reference)
        enough = self._base.waited < WAITS
        waits = all(one.stall_s >= WAITS_AGAIN * one.elapsed_s for one in windows)
        if self._regimes == MOST_REGIMES or not waits or not (changed or enough):
            return None
        self._begin_regime(changed=changed)
        self._outcome = "the cost of a sample or a step has changed" if changed else "training waits again"
        self._base = self._level
        return self._next()

    def _is_changed(self, reference: Level) -> bool:
        """Whether a sample, or the training on one, costs much more in every window, or much less."""
        for then, now in zip(reference.costs_s, self._level.costs_s, strict=True):
            ratios = [cost_s / median(then) for cost_s in now]
            if min(ratios) > CHANGED or max(ratios) < 1 / CHANGED:
                return True
        return False

    def _go(self, setting: Setting, why: str, settled: str = "") -> Move:
        level = self._level
        self.history.append(Step(self._batches, setting, why, level.waited, level.samples_per_s))
        self._settle_in = STARTING if setting.workers > self.setting.workers else 1
        self._before, self.setting, self.why = self.setting, setting, settled or why
        self._entered[setting] += 1
        self._level, self._seen, self._fresh = Level(setting), Window(), True
        return Move(setting, why)
