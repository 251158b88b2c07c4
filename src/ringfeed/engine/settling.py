"""A batch that needs a decision: which of its rows are handed out, and whether in its slot.

    taken ──▶ find_rows: failed rows are left out, or raised after the good ones
                 └──▶ find_place: in its slot, or as a private copy ──▶ handed out by the iterator

The batch stays with the `Intake` meanwhile. A signal handler, or another thread, may take it, so
each step names it. The loader's lock is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ringfeed.monitor.faults import Loss, over_total, sample_failed, source_ended
from ringfeed.monitor.lease_tracker import Debug
from ringfeed.spec.builder import BatchBuilder

if TYPE_CHECKING:
    from ringfeed.datasets.terms import Delivery
    from ringfeed.engine.engine import Engine
    from ringfeed.orders.permutation import Indices
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.builder import BuildBatch


def find_rows(engine: Engine) -> bool:
    """Know the rows to hand out; returns whether the epoch is over: each later batch says the same.

    The gaps that failures have left are closed; a batch without any good row is dropped.
    """
    intake, stats = engine.intake, engine.stats
    lease = intake.kept
    if lease is None:
        return False
    batch, rows = lease.batch, min(lease.rows, engine.plan.layout.rows)
    if not lease.failed:
        intake.keep_rows(batch, rows)
        return False
    delivery = engine.source.delivery(lease, rows, engine.lookahead.order)
    good = _good_rows(engine, rows, delivery)
    loss = _loss(engine, lease, delivery)
    if (over := engine.fields.needed(lease, rows)) is not None:
        good, loss = good[:0], _over_total(engine, lease.indices(rows), *over)
    del lease  # in a traceback it would hold the slot for as long as the caller keeps the error
    if loss.error is not None:
        engine.ring.set_due(-1)  # ahead of the batch after this one, also where C code takes it
    if len(good):
        intake.close_gaps(batch, rows, good, stats, loss)
    else:
        intake.drop(batch, stats, loss)
    return delivery.is_over


def _good_rows(engine: Engine, rows: int, delivery: Delivery) -> Indices:
    """Return the rows that are handed out of a batch with failures."""
    options = engine.options
    raises = delivery.failed and options.on_error == "raise"
    is_short = options.drop_remainder and delivery.is_short
    if raises or is_short or not delivery.keeps_others:
        return np.empty(0, np.int64)
    return np.setdiff1d(
        np.arange(rows), [] if delivery.is_whole else [row for row, _, _ in delivery.failed]
    )


def _loss(engine: Engine, lease: Lease, delivery: Delivery) -> Loss:
    """Return what is to be raised for a batch with failures, after its good rows; or else what is counted."""
    if engine.options.on_error == "skip":
        error = None if delivery.ended is None else source_ended(*delivery.ended)
        return Loss(error, [index for _, index, _ in delivery.failed], delivery.is_none)
    if delivery.failed:
        attempts = engine.options.max_attempts
        return Loss(
            sample_failed(lease, delivery.failed, engine.source, engine.pool.death_of, attempts)
        )
    return Loss(None, [], delivery.is_none)


def _over_total(engine: Engine, indices: list[int], leaf: int, need: int) -> Loss:
    """Return what comes of a batch that has no room for its samples: which of them fit depends on the workers."""
    source = engine.source
    if engine.options.on_error == "skip":
        return Loss(None, [*map(source.number_of, indices)])
    return Loss(over_total(indices, source.spec.leaves[leaf], need, source))


def find_place(engine: Engine, build: BuildBatch | None) -> None:
    """Leave the batch in its slot, or have it handed out as a private copy."""
    intake, policy = (
        engine.intake,
        engine.copy_policy,
    )  # no lease here: as in `find_rows`, a traceback would hold it
    builder = build if isinstance(build, BatchBuilder) else None
    keeps = not engine.options.copy and (build is None or builder is not None)
    batch = None if intake.kept is None else intake.kept.batch
    private = keeps and not policy.is_left(intake.kept, builder)
    intake.set_lets_go(policy.lets_go or not keeps)
    if batch is None:
        return
    if Debug.since_ns and (slot := _slot_of(intake.kept)) is not None:
        engine.lease_tracker.note(
            slot, engine.observer.held_since_ns()[-1]
        )  # the newest is this one's
    intake.settle(batch, private)


def _slot_of(lease: Lease | None) -> int | None:
    return None if lease is None else lease.slot
