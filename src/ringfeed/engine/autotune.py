"""Sets the workers and slots that are "auto", from the waits measured while training runs.

    training waits, the workers are busy   twice the workers, or as many as the throughput lacks
    training waits, the workers wait       twice the slots or the workers; what can gain more first
    the step pays                          keep it, and look again
    it does not, and the workers wait      twice the slots on top: bursts need several slots
    it still does not                      one step back; from there, this is not tried again

When nothing is left to try, the setting stays until training clearly waits a larger or smaller
share of the time. After `MOST_MOVES` moves the setting stays for good. `Tuner` has no clocks and no
processes; `Resizer` measures, and carries out what the tuner decides.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import astuple, dataclass
from math import ceil, sqrt
from operator import add
from statistics import mean, median, stdev
from typing import TYPE_CHECKING

from ringfeed._units import show_bytes
from ringfeed.errors import RingfeedError
from ringfeed.monitor.free_memory import check_free
from ringfeed.monitor.stats import Setting, Side, Step
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ringfeed.engine.engine import Engine

# A shorter window is too noisy to judge by.
LOOK_S, LOOK_BATCHES = 0.5, 8
# How many windows judge a setting: the fewest and the most; and the error that is small enough.
FEW, MANY, SURE = 3, 12, 0.02
# The time that new workers may take to start.
STARTING_S = 10.0
# Workers that fill for more than this share of their time are too few; otherwise slots are.
BUSY = 0.9
# A step is kept if throughput grows by this share; training that waits less needs no more.
PAYS = 0.04
# Add this much more than the missing throughput.
HEADROOM = 1.1
# Look again when the share of the time that training waits has changed by this much.
CHANGED = 0.05
# After this many moves the setting stays.
MOST_MOVES = 50
# The time between two looks, each of which takes microseconds.
LOOK_NS = 10**8


@dataclass(frozen=True)
class Window:
    """What was measured since the last look.

    ``stall_s``: the consumer waited; ``busy_s`` and ``back_pressure_s``: the time that all workers
    together filled, and waited for a slot. ``all_held``: the consumer holds every open slot, so
    that no slot can be filled.
    """

    elapsed_s: float = 0.0
    stall_s: float = 0.0
    busy_s: float = 0.0
    back_pressure_s: float = 0.0
    batches: int = 0
    samples: int = 0
    all_held: bool = False

    def __add__(self, other: Window) -> Window:
        """Return both windows as one."""
        return Window(*map(add, astuple(self), astuple(other)))


class Level:
    """What was measured at one setting, in at most ``most`` windows."""

    def __init__(self, setting: Setting, most: int = MANY) -> None:
        self.setting, self._most = setting, most
        self._rates: list[float] = []
        self._waits: list[float] = []
        self._busy_s = self._elapsed_s = 0.0

    def add(self, window: Window) -> None:
        """Count a window."""
        self._rates.append(window.samples / window.elapsed_s)
        self._waits.append(window.stall_s / window.elapsed_s)
        self._busy_s += window.busy_s
        self._elapsed_s += window.elapsed_s

    @property
    def samples_per_s(self) -> float:
        """Throughput; 0 before anything was measured."""
        return median(self._rates or [0.0])

    @property
    def waited(self) -> float:
        """Share of the time that the consumer waited."""
        return min(1.0, median(self._waits or [0.0]))

    @property
    def busy(self) -> float:
        """Share of their time that the workers were filling."""
        return min(1.0, self._busy_s / (max(1, self.setting.workers) * self._elapsed_s))

    @property
    def is_sure(self) -> bool:
        """Whether the throughput is known well enough, or more windows would take too long."""
        rates, count = self._rates, len(self._rates)
        is_steady = count >= FEW and stdev(rates) <= SURE * sqrt(count) * mean(rates)
        return count >= self._most or is_steady


class Tuner:
    """Decides the settings of one loader, from ``least`` to ``most``; ``tuned`` may change."""

    def __init__(
        self, least: Setting, most: Setting, tuned: Collection[Side] = ("workers", "slots")
    ) -> None:
        self.setting = least
        self.history: list[Step] = []
        self.why = "too early to say"
        self._most, self._tuned = most, tuned
        self._batches = 0
        self._start()

    def _start(self) -> None:
        """Measure a setting that needs no proof, as if it were the first."""
        self._level, self._seen = Level(self.setting), Window()
        self._since_s = 0.0  # the last move
        self._base = self._level  # the last one that was kept
        # Why there are not more: what did not pay from the base, or its limit.
        self._closed: dict[Side, str] = {}
        self._trial: list[Side] = []  # what there is twice of, compared with the base
        self._outcome = ""  # of the last trial
        self._decide: Callable[[], Step | None] = self._judge

    @property
    def is_short(self) -> bool:
        """Whether training waits although the tuner has nothing left to try."""
        return self._decide == self._watch and self._base.waited >= PAYS

    def look(self, window: Window) -> Step | None:
        """Add the window since the last look; return a move if one is due."""
        self._batches += window.batches
        if window.all_held:
            return self._open_another()
        seen = self._seen = self._seen + window
        if seen.elapsed_s < LOOK_S or seen.batches < LOOK_BATCHES or not seen.samples:
            return None
        # A window still shows the move while slots run full, and while workers neither fill nor
        # wait yet.
        is_first, self._since_s = not self._since_s, self._since_s + seen.elapsed_s
        there = (seen.busy_s + seen.back_pressure_s) / seen.elapsed_s
        self._seen = Window()
        if is_first or (there < self.setting.workers - 0.5 and self._since_s < STARTING_S):
            return None
        self._level.add(seen)
        return self._decide() if self._level.is_sure else None

    # ---- deciding ----

    def _judge(self) -> Step | None:
        """Keep a trial that paid as the base of the next one; otherwise try another."""
        level, base, trial = self._level, self._base, self._trial
        if trial:
            gain = level.samples_per_s / base.samples_per_s - 1
            self._outcome = f"{named(trial[-1], level.setting.count(trial[-1]))} {gained(gain)}"
            waits = level.waited >= PAYS
            # Noise may hide the gain.
            relieves = not waits and base.waited - level.waited >= PAYS and gain > -PAYS
            if gain < PAYS and not relieves:
                may_burst = waits and level.busy < BUSY and len(trial) == 1
                if may_burst and self._has_more("slots", level.setting):
                    return self._try("slots", level)
                self._closed[trial[0]] = self._outcome
                return self._next()
        self._closed.clear()
        self._base = level
        return self._next()

    def _next(self) -> Step | None:
        """Try the next step that may pay, from the base; settle if there is none."""
        base, self._trial = self._base, []
        for side in _lacking(base) if base.waited >= PAYS else ():
            if side not in self._closed and self._has_more(side, base.setting):
                return self._try(side, base)
        return self._settle()

    def _has_more(self, side: Side, setting: Setting) -> bool:
        """Whether this side may grow; notes the reason if it may not."""
        most = self._most.count(side)
        if side in self._tuned and setting.count(side) >= most:
            self._closed[side] = f"there may be no more than {named(side, most)}"
        return side in self._tuned and setting.count(side) < most

    def _try(self, side: Side, level: Level) -> Step:
        self._trial.append(side)
        self._decide = self._judge
        now = level.setting.count(side)
        count, wait = min(2 * now, self._most.count(side)), ", so they wait for slots"
        if side == "workers":
            count, wait = min(count, ceil(HEADROOM * now / max(1 - level.waited, 0.01))), ""
        before = f"{self._outcome}; " if self._outcome else ""
        shortage = f"{_show_wait(level.waited)} and the workers are {level.busy:.0%} busy{wait}"
        why = f"{before}{shortage}: {named(side, count)}"
        return self._go(level.setting.having(side, count), why)

    # ---- settled ----

    def _settle(self) -> Step | None:
        """Stay at the setting that was kept."""
        base = self._base
        limits = self._closed.values() if base.waited >= PAYS else ()
        self._decide = self._watch
        step = None
        if self.setting != base.setting:
            workers, slots = astuple(base.setting)
            counts = f"{named('workers', workers)} and {named('slots', slots)}"
            step = self._go(base.setting, f"{self._outcome}: back to {counts}")
        reasons = [self._outcome, *limits, _show_wait(base.waited)]
        self.why = ", ".join(dict.fromkeys(filter(None, reasons)))
        self._level = Level(base.setting, FEW)
        return step

    def _watch(self) -> Step | None:
        """Try again when training clearly waits more or less than before."""
        level, self._level = self._level, Level(self.setting, FEW)
        usual = self._base.waited
        is_usual = abs(level.waited - usual) < CHANGED or level.waited < PAYS
        if not is_usual and len(self.history) < MOST_MOVES:
            before = f"training waited {_show_share(usual)} of the time before"
            self._start()
            self._outcome = before
        return None

    # ---- moving ----

    def _open_another(self) -> Step | None:
        """Move to one slot more, because no slot can be filled."""
        slots = self.setting.slots
        held = f"training holds all {named('slots', slots)}, so none can be filled"
        if self._has_more("slots", self.setting):
            more = self.setting.having("slots", slots + 1)
            return self._restart(more, f"{held}: {named('slots', slots + 1)}")
        self.why = f"{held}, and {self._closed.get('slots', 'slots= is given')}"
        return None

    def refuse(self, why: str) -> None:
        """Undo the last move, which was impossible, and never try that many again."""
        before = self._before
        for side in self._tuned:
            if self.setting.count(side) > before.count(side):
                self._most = self._most.having(side, before.count(side))
        self._restart(Setting(*map(min, astuple(self._base.setting), astuple(before))), why)

    def make_do(self, workers: int, why: str) -> Step:
        """Continue with these workers, since no more could be started, and never try more again."""
        self._most = self._most.having("workers", workers)
        base = self._base.setting
        return self._restart(base.having("workers", min(base.workers, workers)), why)

    def _restart(self, setting: Setting, why: str) -> Step:
        step = self._go(setting, why)
        self._start()
        return step

    def _go(self, setting: Setting, why: str) -> Step:
        level = self._level
        self.history.append(Step(self._batches, setting, why, level.waited, level.samples_per_s))
        self._before, self.setting, self.why = self.setting, setting, why
        self._level, self._seen, self._since_s = Level(setting), Window(), 0.0
        return self.history[-1]


def _lacking(level: Level) -> list[Side]:
    """Return the sides that may be too few, workers or slots, the likelier first."""
    if level.busy >= BUSY:
        return ["workers"]
    # At best slots gain what the workers wait, and workers what training waits, but no more than
    # the double.
    workers_first = level.busy > HEADROOM * max(0.5, 1 - level.waited)
    return ["workers", "slots"] if workers_first else ["slots", "workers"]


def _show_share(share: float) -> str:
    """Return a share in percent: ``63%``, ``1.5%``."""
    return f"{share:.0%}" if share >= CHANGED else f"{share:.1%}"


def _show_wait(share: float) -> str:
    return f"training waits {_show_share(share)} of the time"


def named(side: Side, count: int) -> str:
    """Return the count with its noun."""
    return f"{count} {side if count != 1 else side[:-1]}"


def gained(gain: float) -> str:
    """Return a step's effect on the throughput, in words."""
    if abs(gain) < PAYS:
        return f"gained nothing ({round(gain, 2) + 0:+.0%})"
    return f"gained {gain:.0%}" if gain > 0 else f"lost {-gain:.0%}"


# ---- what the tuner decides, done ----

COUNTED = ("elapsed_s", "stall_s", "busy_s", "back_pressure_s", "batches", "samples")


class Resizer:
    """Carries out the tuner's decisions: opens and parks slots, starts and ends workers."""

    def __init__(self, tuner: Tuner, engine: Engine) -> None:
        """Open the tuner's first number of slots."""
        self._tuner, self._engine = tuner, engine
        self._seen = copy(engine.count())
        self._is_short = False
        self.due_ns = _ring.now_ns() + LOOK_NS  # when to look again
        engine.ring.set_open(tuner.setting.slots)

    def look(self) -> None:
        """If a look is due, carry out the tuner's move, if any."""
        if _ring.now_ns() < self.due_ns:
            return
        declined = self._engine.pool.scaled_down
        if declined is not None and declined[0] < self._tuner.setting.workers:
            self._make(self._tuner.make_do(*declined).setting)
        self._ask(all_held=False)

    def open_another(self) -> bool:
        """Open one more slot if allowed, because the consumer holds all open ones."""
        before = self._engine.ring.open_slots
        self._ask(all_held=True)
        return self._engine.ring.open_slots > before

    def _ask(self, *, all_held: bool) -> None:
        now_ns, totals = _ring.now_ns(), copy(self._engine.count())
        counted = {name: getattr(totals, name) - getattr(self._seen, name) for name in COUNTED}
        self._seen, self.due_ns = totals, now_ns + LOOK_NS
        step = self._tuner.look(Window(**counted, all_held=all_held))
        if step is not None:
            self._make(step.setting)
        if self._tuner.is_short and not self._is_short:
            self._engine.pool.note_shortage()
        self._is_short = self._tuner.is_short
        self._give_back()

    def _make(self, setting: Setting) -> None:
        segment, ring, pool = self._engine.segment, self._engine.ring, self._engine.pool
        try:
            for slot in range(ring.open_slots, setting.slots):
                size = segment.slot_size
                check_free(size, f"another slot needs {show_bytes(size)}")
                segment.reserve_slot(slot)
            ring.set_open(setting.slots)
            pool.resize(setting.workers)
        except RingfeedError as error:
            # The machine has no more to give: training goes on with what there is.
            self._tuner.refuse(str(error))
            ring.set_open(self._tuner.setting.slots)
            pool.resize(self._tuner.setting.workers)

    def _give_back(self) -> None:
        """Return the memory of the slots that have been parked."""
        segment, ring = self._engine.segment, self._engine.ring
        if beyond := [slot for slot in segment.reserved if slot >= ring.open_slots]:
            states = self._engine.observer.states()
            for slot in beyond:
                if states[slot] == "parked":
                    with suppress(OSError):  # locked in memory, say: it stays reserved
                        segment.give_back(ring, slot)
