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
from math import ceil, sqrt
from operator import add, sub
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from ringfeed._units import show_bytes
from ringfeed.errors import RingfeedError
from ringfeed.monitor.free_memory import check_free
from ringfeed.monitor.stats import Setting, Side, Step
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

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


class Window(NamedTuple):
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


class Level:
    """What was measured at one setting, in at most ``most`` windows."""

    def __init__(self, setting: Setting, most: int = MANY) -> None:
        self.setting, self._most = setting, most
        self.windows: list[Window] = []

    @property
    def _rates(self) -> list[float]:
        return [window.samples / window.elapsed_s for window in self.windows]

    @property
    def samples_per_s(self) -> float:
        """Throughput; 0 before anything was measured."""
        return median(self._rates or [0.0])

    @property
    def waited(self) -> float:
        """Share of the time that the consumer waited."""
        waits = [window.stall_s / window.elapsed_s for window in self.windows]
        return min(1.0, median(waits or [0.0]))

    @property
    def busy(self) -> float:
        """Share of their time that the workers were filling."""
        busy_s, elapsed_s = (
            sum(w.busy_s for w in self.windows),
            sum(w.elapsed_s for w in self.windows),
        )
        return min(1.0, busy_s / (max(1, self.setting.workers) * elapsed_s))

    @property
    def is_sure(self) -> bool:
        """Whether the throughput is known well enough, or more windows would take too long."""
        rates, count = self._rates, len(self.windows)
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
        """Search anew from the setting, which needs no proof."""
        self._search = self._moves()
        next(self._search)

    def _measure(self) -> None:
        """Measure the setting; the first window does not count, since it shows the move."""
        self._level, self._seen, self._since_s = Level(self.setting), Window(), 0.0

    @property
    def is_short(self) -> bool:
        """Whether training waits although the tuner has nothing left to try."""
        return self.is_settled and self._base.waited >= PAYS

    def look(self, window: Window) -> Step | None:
        """Add the window since the last look; return a move if one is due."""
        self._batches += window.batches
        if window.all_held:
            return self._open_another()
        seen = self._seen = Window(*map(add, self._seen, window))
        if seen.elapsed_s < LOOK_S or seen.batches < LOOK_BATCHES or not seen.samples:
            return None
        # A window still shows the move while slots run full, and while workers neither fill nor
        # wait yet.
        is_first, self._since_s = not self._since_s, self._since_s + seen.elapsed_s
        there = (seen.busy_s + seen.back_pressure_s) / seen.elapsed_s
        self._seen = Window()
        if is_first or (there < self.setting.workers - 0.5 and self._since_s < STARTING_S):
            return None
        self._level.windows.append(seen)
        return self._search.send(self._level) if self._level.is_sure else None

    # ---- deciding ----

    def _moves(self) -> Generator[Step | None, Level, None]:
        """Yield each move, or none; the level of the setting is sent once it is sure."""
        outcome = ""  # of the last trial
        while True:
            self._measure()
            self.is_settled = False
            # Why there are not more of a side: what did not pay from the base, or its limit.
            self._closed: dict[Side, str] = {}
            # The last level that was kept.
            self._base = self._level
            yield None
            while side := self._next_side():
                level = yield self._try(side, self._base, outcome)
                outcome, pays = self._judge(side, level)
                may_burst = not pays and level.waited >= PAYS and level.busy < BUSY
                if may_burst and self._has_more("slots", level.setting):
                    level = yield self._try("slots", level, outcome)
                    outcome, pays = self._judge("slots", level)
                if pays:
                    self._base = level
                    self._closed.clear()
                else:
                    self._closed[side] = outcome
            step = self._settle(outcome)
            usual = self._base.waited
            while self.is_settled:
                self._level = Level(self.setting, FEW)
                waited = (yield step).waited
                step = None
                is_usual = abs(waited - usual) < CHANGED or waited < PAYS
                self.is_settled = is_usual or len(self.history) >= MOST_MOVES
            outcome = f"training waited {_show_share(usual)} of the time before"

    def _next_side(self) -> Side | None:
        """Return the side of which more may pay, from the base; the likelier first."""
        base = self._base
        for side in _lacking(base) if base.waited >= PAYS else ():
            if side not in self._closed and self._has_more(side, base.setting):
                return side
        return None

    def _judge(self, side: Side, level: Level) -> tuple[str, bool]:
        """Return a trial's effect in words, and whether it pays."""
        base = self._base
        gain = level.samples_per_s / base.samples_per_s - 1
        # Noise may hide the gain.
        relieves = level.waited < PAYS <= base.waited - level.waited and gain > -PAYS
        words = f"{named(side, getattr(level.setting, side))} {gained(gain)}"
        return words, gain >= PAYS or relieves

    def _has_more(self, side: Side, setting: Setting) -> bool:
        """Whether this side may grow; notes the reason if it may not."""
        is_tuned, most = side in self._tuned, getattr(self._most, side)
        has_more = is_tuned and getattr(setting, side) < most
        if is_tuned and not has_more:
            self._closed[side] = f"there may be no more than {named(side, most)}"
        return has_more

    def _try(self, side: Side, level: Level, outcome: str) -> Step:
        """Move to about twice as many of a side."""
        now = getattr(level.setting, side)
        count, wait = min(2 * now, getattr(self._most, side)), ", so they wait for slots"
        if side == "workers":
            count, wait = min(count, ceil(HEADROOM * now / max(1 - level.waited, 0.01))), ""
        before = f"{outcome}; " if outcome else ""
        shortage = f"{_show_wait(level.waited)} and the workers are {level.busy:.0%} busy{wait}"
        why = f"{before}{shortage}: {named(side, count)}"
        return self._go(level.setting._replace(**{side: count}), why)

    def _settle(self, outcome: str) -> Step | None:
        """Stay at the setting that was kept; return the move back to it, if it is another."""
        base, step = self._base, None
        if self.setting != base.setting:
            workers, slots = base.setting
            counts = f"{named('workers', workers)} and {named('slots', slots)}"
            step = self._go(base.setting, f"{outcome}: back to {counts}")
        limits = self._closed.values() if base.waited >= PAYS else ()
        reasons = [outcome, *limits, _show_wait(base.waited)]
        self.why = ", ".join(dict.fromkeys(filter(None, reasons)))
        self.is_settled = True
        return step

    # ---- moving ----

    def _open_another(self) -> Step | None:
        """Move to one slot more, because no slot can be filled."""
        slots = self.setting.slots
        held = f"training holds all {named('slots', slots)}, so none can be filled"
        if self._has_more("slots", self.setting):
            more = self.setting._replace(slots=slots + 1)
            return self._restart(more, f"{held}: {named('slots', slots + 1)}")
        self.why = f"{held}, and {self._closed.get('slots', 'slots= is given')}"
        return None

    def refuse(self, why: str) -> None:
        """Undo the last move, which was impossible, and never try that many again."""
        before, tried = self._before, self.setting
        grown = [side for side in self._tuned if getattr(before, side) < getattr(tried, side)]
        self._most = self._most._replace(**{side: getattr(before, side) for side in grown})
        self._restart(Setting(*map(min, self._base.setting, before)), why)

    def make_do(self, workers: int, why: str) -> Step:
        """Continue with these workers, since no more could be started, and never try more again."""
        self._most = self._most._replace(workers=workers)
        return self._restart(Setting(*map(min, self._base.setting, self._most)), why)

    def _restart(self, setting: Setting, why: str) -> Step:
        step = self._go(setting, why)
        self._start()
        return step

    def _go(self, setting: Setting, why: str) -> Step:
        """Move to a setting; what was measured before counts for the one left."""
        level = self._level
        self.history.append(Step(self._batches, setting, why, level.waited, level.samples_per_s))
        self._before, self.setting, self.why = self.setting, setting, why
        self._measure()
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


class Resizer:
    """Carries out the tuner's decisions: opens and parks slots, starts and ends workers."""

    def __init__(self, tuner: Tuner, engine: Engine) -> None:
        """Open the tuner's first number of slots."""
        self._tuner, self._engine = tuner, engine
        self._seen = self._count()
        self._is_short = False
        self.due_ns = _ring.now_ns() + LOOK_NS  # when to look again
        engine.ring.set_open(tuner.setting.slots)

    def _count(self) -> Window:
        """Return what was measured since the loader was made."""
        totals = self._engine.count()
        return Window(*(getattr(totals, name) for name in Window._fields[:-1]))

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
        before, self._seen = self._seen, self._count()
        self.due_ns = _ring.now_ns() + LOOK_NS
        step = self._tuner.look(Window(*map(sub, self._seen, before))._replace(all_held=all_held))
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
