"""The wait for a batch that is not there: for its workers, or for slots that views hold; bounded, and explained.

PENDING   filled here with workers=0; else waited for up to `timeout_s`, then StallError or the stuck are killed
HELD      views hold every slot: a second, or up to `timeout_s` where a framework lets go by itself
ALARMED   the workers have failed, or wrote over shared memory: raised
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ringfeed.engine.copy_policy import SOON_NS
from ringfeed.engine.parts import FOREVER_NS
from ringfeed.errors import ClosedError
from ringfeed.monitor.faults import overwritten, slots_held, stalled
from ringfeed.ring import _ring
from ringfeed.spec.builder import BatchBuilder

if TYPE_CHECKING:
    from ringfeed.engine.parts import Parts
    from ringfeed.spec.builder import BuildBatch

HELD_NS = 10**9  # how long to wait where views hold every slot
OWN_WAIT_NS = 50_000_000  # of an iterator by itself, before the engine is asked what may be wrong


class Waiter:
    """Waits for the batches of one engine. Not thread-safe: the loader's lock is held."""

    def __init__(self, parts: Parts) -> None:
        """Wait for the first batch of workers, where there are any, as for their start."""
        self._parts = parts
        self._held_since_ns = 0  # views hold every slot; 0: they do not
        self._is_starting = parts.plan.workers > 0  # no batch yet
        self._set_own_wait()

    def wait(self, build: BuildBatch | None, epoch_id: int, *, wait_for_slots: bool) -> None:
        """Wait for the head batch, and for slots to fill."""
        parts, began_ns = self._parts, _ring.now_ns()
        if self._is_starting and parts.observer.consumer().batches:
            self._note_start()
        starting = self._is_starting
        try:
            self._wait_once(build, epoch_id, wait_for_slots=wait_for_slots)
        finally:
            stall_ns = _ring.now_ns() - began_ns
            parts.stats.startup_s += starting * stall_ns / 1e9
            is_computing = None if starting else getattr(build, "is_computing", None)
            parts.ring.note_stall(0 if is_computing and is_computing() else stall_ns)

    def _wait_once(self, build: BuildBatch | None, epoch_id: int, *, wait_for_slots: bool) -> None:
        ring, timeout_ns = self._parts.ring, self._parts.timeout_ns
        answer = ring.look()
        while answer == _ring.PENDING and self._parts.pool.step():
            answer = ring.look()
        if answer == _ring.HELD:
            self._wait_for_views(build, min(timeout_ns, FOREVER_NS if wait_for_slots else HELD_NS))
            ring.waited_ns = 0
        elif answer == _ring.PENDING:
            answer = self._wait_for_workers(epoch_id, timeout_ns)
        if answer == _ring.TAKEABLE and self._is_starting:
            self._note_start()
        self.judge(answer)

    # ---- workers ----

    def _wait_for_workers(self, epoch_id: int, timeout_ns: int) -> int:
        """Wait until the head batch is there; StallError, or an end of what is stuck, after so long."""
        ring, streams = self._parts.ring, self._parts.streams
        answer = ring.wait(streams.look_in_ns(timeout_ns - ring.waited_ns), epoch_id=epoch_id)
        streams.look()
        if answer == _ring.PENDING and ring.waited_ns >= timeout_ns:
            self.judge(ring.look())  # what is damaged may be why workers are stuck
            ring.waited_ns = 0  # after an error the next wait is as long
            ring.waited_ns = timeout_ns - self.stalled()
        return answer

    def stalled(self) -> int:
        """Raise StallError, or end the workers that are stuck; returns how long to wait before the next look."""
        parts = self._parts
        pause_ns = parts.pool.kill_stuck(parts.timeout_ns) if parts.options.on_stall == "restart" else 0
        if pause_ns:
            return pause_ns
        options, lines = parts.options, parts.pool.stalled()
        are_forked = options.sends and options.start_method == "fork"
        raise stalled(parts.observer, parts.source, lines, options.timeout_s, are_forked=are_forked)

    def end_start(self) -> None:
        """Tell the wait for the first batch no longer from others: C code takes, which does not."""
        self._is_starting = False
        self._set_own_wait()

    def _note_start(self) -> None:
        """Note that workers which were started have filled a batch: what is waited for from now on is no start."""
        self._parts.stats.startup_busy_s += self._parts.observer.totals()["busy_ns"] / 1e9
        self.end_start()

    def _set_own_wait(self) -> None:
        """Set how long an iterator waits by itself: not for what is filled here, or for workers that start."""
        parts = self._parts
        waits = parts.plan.workers and not self._is_starting
        parts.intake.own_wait_ns = min(OWN_WAIT_NS, parts.timeout_ns) if waits else 0

    # ---- views ----

    def _wait_for_views(self, build: BuildBatch | None, timeout_ns: int) -> None:
        """Wait until views let go of a slot; garbage is collected only where none does soon by itself."""
        parts, ring = self._parts, self._parts.ring
        self._held_since_ns = self._held_since_ns or _ring.now_ns()
        answer = ring.wait(min(timeout_ns, SOON_NS), held=True)
        while answer == _ring.HELD and parts.resizer is not None and parts.resizer.open_another():
            answer = ring.look()
        if answer == _ring.HELD:
            gc.collect()  # tens of milliseconds beside a framework
            answer = ring.wait(timeout_ns, held=True)
        builder = build if isinstance(build, BatchBuilder) else None
        if answer != _ring.HELD:
            self._held_since_ns = 0
        elif builder is None or not self._may_come_back(builder):
            self._held_since_ns = 0
            parts.copy_policy.distrust()
            parts.intake.set_lets_go(False)
            raise slots_held(parts.observer, parts.lease_tracker, "" if builder is None else builder.copied_by)

    def _may_come_back(self, builder: BatchBuilder) -> bool:
        """Whether the framework may let go of a slot by itself, and there is time left."""
        waited_ns = _ring.now_ns() - self._held_since_ns
        return waited_ns < self._parts.timeout_ns and builder.lets_go_later(waited_ns / 1e9, self._parts.ring.slots)

    # ---- ends ----

    def judge(self, answer: int) -> None:
        """Raise what ended the ring, if it has ended."""
        if answer == _ring.STOPPED:
            message = "the loader was closed while this iterator waited"
            raise ClosedError(message)
        if answer not in (_ring.ALARMED, _ring.DAMAGED):
            return
        pool = self._parts.pool
        if damage := self._parts.ring.damage():  # first: it may be why workers do not start, or are stuck
            pool.failure = overwritten(damage, self._parts.source)
        if pool.failure is not None:
            raise pool.failure
