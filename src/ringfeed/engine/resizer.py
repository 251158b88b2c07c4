"""Slots opened and parked, workers started and sent away, while the ring runs: what the tuner decides, done."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING

from ringfeed._units import show_bytes
from ringfeed.engine.autotune import Window
from ringfeed.errors import RingfeedError
from ringfeed.monitor._snapshot import Observer
from ringfeed.monitor.free_memory import check_free
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.engine.autotune import Tuner
    from ringfeed.monitor.stats import Setting, Stats
    from ringfeed.ring.segment import Segment
    from ringfeed.workers.pool import Pool

COUNTED = ("elapsed_s", "stall_s", "busy_s", "back_pressure_s", "batches", "samples")
LOOK_NS = 10**8  # between two looks, which take microseconds


class Resizer:
    """The slots and workers of one running ring, as a `Tuner` would have them."""

    def __init__(
        self,
        tuner: Tuner,
        segment: Segment,
        ring: _ring.Ring,
        pool: Pool,
        count: Callable[[], Stats],
    ) -> None:
        """Open as many slots as the tuner begins with; ``count`` brings the statistics up to date."""
        self._tuner = tuner
        self._segment = segment
        self._ring = ring
        self._pool = pool
        self._count = count
        self._observer = Observer(ring)
        self._seen = copy(count())
        self._is_short = False
        self.due_ns = _ring.now_ns() + LOOK_NS  # when to look again
        ring.set_open(tuner.setting.slots)

    def look(self) -> None:
        """Move, if it is time to look and the tuner wants to."""
        if _ring.now_ns() < self.due_ns:
            return
        declined = self._pool.scaled_down
        if declined is not None and declined[0] < self._tuner.setting.workers:
            self._make(self._tuner.make_do(*declined).setting)
        self._ask(all_held=False)

    def open_another(self) -> bool:
        """Open a slot, if that is allowed, because the consumer holds all there are."""
        before = self._ring.open_slots
        self._ask(all_held=True)
        return self._ring.open_slots > before

    def _ask(self, *, all_held: bool) -> None:
        now_ns, totals = _ring.now_ns(), copy(self._count())
        counted = {name: getattr(totals, name) - getattr(self._seen, name) for name in COUNTED}
        window = Window(**counted, all_held=all_held)
        self._seen, self.due_ns = totals, now_ns + LOOK_NS
        step = self._tuner.look(window)
        if step is not None:
            self._make(step.setting)
        if self._tuner.is_short and not self._is_short:
            self._pool.note_shortage()
        self._is_short = self._tuner.is_short
        self._give_back()

    def _make(self, setting: Setting) -> None:
        try:
            for slot in range(self._ring.open_slots, setting.slots):
                check_room(self._segment.slot_size)
                self._segment.reserve_slot(slot)
            self._ring.set_open(setting.slots)
            self._pool.resize(setting.workers)
        except (
            RingfeedError
        ) as error:  # the machine has no more to give: training goes on with what there is
            self._tuner.refuse(str(error))
            self._ring.set_open(self._tuner.setting.slots)
            self._pool.resize(self._tuner.setting.workers)

    def _give_back(self) -> None:
        """Return the memory of slots that are parked by now."""
        beyond = [slot for slot in self._segment.reserved if slot >= self._ring.open_slots]
        if beyond:
            states = self._observer.states()
            for slot in beyond:
                if states[slot] == "parked":
                    with suppress(OSError):  # locked in memory, say: it stays reserved
                        self._segment.give_back(self._ring, slot)


def check_room(slot_size: int) -> None:
    """Raise PlanError unless there is room for another slot."""
    check_free(slot_size, f"another slot needs {show_bytes(slot_size)}")
