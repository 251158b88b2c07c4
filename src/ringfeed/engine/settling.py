"""Decides which rows of a batch are handed out, and whether the batch keeps its slot.

    taken ──▶ find_rows: failed rows are left out, or raised after the good ones
                 └──▶ find_place: in its slot, or as a private copy ──▶ handed out by the iterator
    none, since views hold every slot ──▶ wait_for_views

Meanwhile the `Intake` keeps the batch. A signal handler or another thread may take it, so each step
names the batch. The loader's lock is held.

The workers always keep at least one slot to fill: a batch that would take the last one is handed
out as a private copy. With two slots that would be every batch of a plain loop, since a loop drops
a batch only after it gets the next. So with two slots, a single held slot does not count once the
loop is known to drop it: the second batch of the epoch is a copy, which shows that.
"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from typing import TYPE_CHECKING

import numpy as np

from ringfeed._callers import callers_depth
from ringfeed.errors import SlotsHeldWarning
from ringfeed.monitor.faults import (
    Loss,
    over_total,
    sample_failed,
    slots_held,
    slots_kept,
    source_ended,
)
from ringfeed.monitor.lease_tracker import Debug
from ringfeed.ring import _ring
from ringfeed.spec.builder import BatchBuilder

if TYPE_CHECKING:
    from ringfeed.datasets.terms import Delivery
    from ringfeed.engine.engine import Engine
    from ringfeed.orders.permutation import Indices
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.builder import BuildBatch

SOON_NS = 10**7  # what a step may take to let go of its batch
HELD_NS = 10**9  # how long to wait while views hold every slot
OVER = (_ring.STOPPED, _ring.ALARMED)


class Settler:
    """Decides on batches of one engine, which makes it for the first that needs a decision."""

    def __init__(self, engine: Engine) -> None:
        # Dropped engines end at once, without the garbage collector: this refers to none.
        self._engine: Engine = weakref.proxy(engine)
        self._wait_ns = engine.timeout_ns  # for a framework
        self._has_warned = False
        self._is_in_vain = False  # what garbage and a short wait can do was tried once
        self._held_since_ns = 0  # views hold every slot; 0: they do not
        self.begin()

    def begin(self) -> None:
        """Begin an epoch; nothing is known of its caller yet."""
        self._lets_go = False  # whether the caller drops a batch when it has the next
        # When the batch was taken that the caller had while the copy was made that shows it.
        self._watched_ns = 0
        self._keeps = False
        self._engine.intake.set_lets_go(False)

    def distrust(self) -> None:
        """Note, until the epoch ends, that the caller keeps batches."""
        self._lets_go, self._keeps = False, True
        self._engine.intake.set_lets_go(False)

    # ---- its rows ----

    def find_rows(self) -> bool:
        """Find the rows to hand out; return whether the epoch is over, by later batches, too.

        Gaps left by failed rows are closed; a batch without a good row is dropped.
        """
        engine = self._engine
        intake, lease = engine.intake, engine.intake.kept
        if lease is None:
            return False
        batch, rows = lease.batch, min(lease.rows, engine.plan.layout.rows)
        if not lease.failed:
            intake.keep_rows(batch, rows)
            return False
        delivery = engine.source.delivery(lease, rows, engine.lookahead.order)
        good, loss = self._good_rows(rows, delivery), self._loss(lease, delivery)
        if (over := engine.fields.needed(lease, rows)) is not None:
            good, loss = good[:0], self._over_total(lease.indices(rows), *over)
        del lease  # in a traceback it would hold the slot for as long as the caller keeps the error
        if loss.error is not None:
            engine.ring.set_due(-1)  # ahead of the batch after this one, also where C code takes it
        intake.close_gaps(batch, rows, good, engine.stats, loss)
        return delivery.is_over

    def _good_rows(self, rows: int, delivery: Delivery) -> Indices:
        """Return the good rows of a batch with failures."""
        options = self._engine.options
        raises = delivery.failed and options.on_error == "raise"
        is_short = options.drop_remainder and delivery.is_short
        if raises or is_short or not delivery.keeps_others:
            return np.empty(0, np.int64)
        failed = [] if delivery.is_whole else [row for row, _, _ in delivery.failed]
        return np.setdiff1d(np.arange(rows), failed)

    def _loss(self, lease: Lease, delivery: Delivery) -> Loss:
        """Return a batch's loss: the error after its good rows, or the skipped samples."""
        engine, failed, is_none = self._engine, delivery.failed, delivery.is_none
        if engine.options.on_error == "skip":
            error = None if delivery.ended is None else source_ended(*delivery.ended)
            return Loss(error, [index for _, index, _ in failed], is_none)
        if not failed:
            return Loss(is_none=is_none)
        attempts, death_of = engine.options.max_attempts, engine.pool.death_of
        return Loss(sample_failed(lease, failed, engine.source, death_of, attempts))

    def _over_total(self, indices: list[int], leaf: int, need: int) -> Loss:
        """Return the loss of a batch whose samples exceed its room; workers decide which fit."""
        source = self._engine.source
        if self._engine.options.on_error == "skip":
            return Loss(None, [*map(source.number_of, indices)])
        return Loss(over_total(indices, source.spec.leaves[leaf], need, source))

    # ---- its slot ----

    def find_place(self, build: BuildBatch | None) -> None:
        """Decide whether the batch stays in its slot or is handed out as a private copy."""
        # No local is the lease, which a traceback would hold.
        engine, intake = self._engine, self._engine.intake
        builder = build if isinstance(build, BatchBuilder) else None
        keeps = not engine.options.copy and (build is None or builder is not None)
        batch = None if intake.kept is None else intake.kept.batch
        private = keeps and not self._is_left(intake.kept, builder)
        intake.set_lets_go(self._lets_go or not keeps)
        if batch is None:
            return
        if Debug.since_ns and (slot := getattr(intake.kept, "slot", None)) is not None:
            # The newest is this one's.
            engine.lease_tracker.note(slot, engine.observer.held_since_ns()[-1])
        intake.settle(batch, private)

    def _is_left(self, lease: Lease | None, builder: BatchBuilder | None) -> bool:
        """Whether a batch just taken may keep its slot; warns once if views are in the way."""
        if lease is None or lease.has_room():
            return True
        is_quiet = builder is not None and builder.is_quiet
        *held, _ = self._engine.observer.held_since_ns()  # the newest is the lease's own
        if len(held) == 1 and held[0] != self._watched_ns and not (self._keeps or is_quiet):
            self._lets_go, self._watched_ns = self._watched_ns > 0, held[0]
            return self._lets_go
        if not held or self._makes_room(lease, builder, len(held)):
            return lease.has_room()
        self.distrust()
        self._is_in_vain = True
        if not (self._has_warned or is_quiet) and self._engine.ring.look() not in OVER:
            del lease  # else a warning that is raised would hold the slot by its traceback
            self._has_warned = True
            self._warn("" if builder is None else builder.copied_by)
        return False

    def _makes_room(self, lease: Lease, builder: BatchBuilder | None, held: int) -> bool:
        """Get a slot without the caller: open another, or wait for a framework to release one."""
        engine, began_ns, waited_ns = self._engine, _ring.now_ns(), 0
        while engine.resizer is not None and engine.resizer.open_another():
            if lease.has_room():
                return True
        while (
            builder is not None
            and waited_ns < self._wait_ns
            and builder.lets_go_later(waited_ns / 1e9, held)
        ):
            if lease.wait_room(SOON_NS) or engine.ring.look() in OVER:
                self._wait_ns = engine.timeout_ns
                return True
            waited_ns = _ring.now_ns() - began_ns
        if waited_ns:
            self._wait_ns = SOON_NS  # until that was not in vain
        if not self._is_in_vain and not lease.wait_room(SOON_NS):
            gc.collect()  # tens of milliseconds beside a framework
        return lease.has_room()

    def _warn(self, copied_by: str) -> None:
        message = slots_kept(self._engine.observer, self._engine.lease_tracker)
        if copied_by:
            message += f" ({copied_by})"
        if hasattr(sys, "ps1"):
            message += "; Out and sys.last_traceback refer to arrays, too"
        warnings.warn(message, SlotsHeldWarning, stacklevel=callers_depth())

    # ---- no slot for it ----

    def wait_for_views(self, build: BuildBatch | None) -> None:
        """Wait until views release a slot; collect garbage if none does soon."""
        engine, ring = self._engine, self._engine.ring
        builder = build if isinstance(build, BatchBuilder) else None
        waits = build is not None if builder is None else builder.waits_for_slots
        timeout_ns = engine.timeout_ns if waits else min(engine.timeout_ns, HELD_NS)
        self._held_since_ns = self._held_since_ns or _ring.now_ns()
        answer, pause_ns = ring.wait(min(timeout_ns, SOON_NS), held=True), SOON_NS
        while answer == _ring.HELD and engine.resizer is not None and engine.resizer.open_another():
            answer = ring.look()
        while answer == _ring.HELD and timeout_ns:
            # Another thread may leave garbage at any time. A collection takes tens of milliseconds
            # beside a framework, so each comes twice as late.
            gc.collect()
            pause_ns = min(timeout_ns, 2 * pause_ns)
            timeout_ns -= pause_ns
            answer = ring.wait(pause_ns, held=True)
        if answer == _ring.HELD and builder is not None:
            # The framework may let go of a slot by itself, as long as there is time left.
            waited_ns = _ring.now_ns() - self._held_since_ns
            if waited_ns < engine.timeout_ns and builder.lets_go_later(waited_ns / 1e9, ring.slots):
                return
        self._held_since_ns = 0
        if answer == _ring.HELD:
            self.distrust()
            raise slots_held(
                engine.observer, engine.lease_tracker, "" if builder is None else builder.copied_by
            )
