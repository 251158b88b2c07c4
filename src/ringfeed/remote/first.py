"""A bridge's claims and an actor's slot by what the core has: to be replaced by claims, private and _land."""
# ruff: noqa: D101, D102, SLF001, FBT001, FBT002, ARG002, BLE001 - for an hour

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.data.reader import Port
from ringfeed.remote.filled import Filled
from ringfeed.ring import _ring
from ringfeed.ring.failure import encode
from ringfeed.ring.segment import Segment, Sizes
from ringfeed.spec._fields import Fields
from ringfeed.spec._rows import RowWriter
from ringfeed.spec.layout import Layout
from ringfeed.waiting import _claims

if TYPE_CHECKING:
    from collections.abc import Callable


class PrivateSlot:
    def __init__(self, source: Any, dataset: Any, *, worker: tuple[int, int, int]) -> None:
        layout = Layout.of(source.spec, source.rows, source.indices, 1)
        sizes = Sizes(
            2, 1, 1, layout.indices, 1, layout.slot_size, layout.indices_at, layout.marks_at, layout.failures_at
        )
        self._segment = Segment(sizes, open_slots=1)
        self._ring = self._segment.open()
        self._ring.become_consumer(4, 1000)
        self._ring.set_open(1)
        self._end = _ring.WorkerEnd(self._ring, 0)
        self.reader = source.reader(
            dataset, Port(self._end, self._ring, layout.offsets, is_consumer=True, worker=worker)
        )
        self.reader._begin()
        self._fields = Fields(source.spec, layout.offsets)
        self._ring.begin(1)

    def fill(self, epoch: int, version: int, indices: list[int]) -> Filled:
        began_ns = time.monotonic_ns()
        self._ring.plan(np.array(indices, np.int64), len(indices), epoch, version)
        assert self._end.claim(0) == _ring.TAKEABLE
        try:
            filled = self.reader.fill()
        except BaseException as error:
            for row in range(len(indices)):
                self._end.fail(row, encode(error))
            filled = True
        self._end.publish(cancelled=not filled)
        lease = self._ring.take()
        assert lease is not None
        records = dict(lease.failures())
        failures = tuple((row, records.get(row, b"")) for row, _, _ in lease.failed_rows(len(indices)))
        leaves = tuple(self._fields.views(lease, lease.rows))
        return Filled(leaves, lease.rows, failures, max(1, time.monotonic_ns() - began_ns))

    def close(self) -> None:
        self.reader.close()
        self._segment.close()


class Claim:
    def __init__(self, end: Any) -> None:
        self.end = end
        self.epoch, self.version, self.indices = end.epoch, end.version, end.indices
        self.attempt = _claims.attempt_of(end.claim_address)
        self.rows = [row for row, _ in _claims.rows_to_read(end.claim_address)]
        self.missing = set(self.rows)
        self.since_ns = _ring.now_ns()


class Given:
    def __init__(self) -> None:
        self.index: Any = None


class Lander:
    def __init__(self, spec: Any, offsets: Any, ring: Any, whole: bool = False) -> None:
        self.spec, self.whole = spec, whole
        self._writer = RowWriter(spec, offsets, ring, 2**64 - 1)
        self._context = Given()

    def land(self, end: Any, filled: Filled, rows: list[int]) -> None:
        failed = dict(filled.failures)
        if self.whole and not failed:
            self._writer.batch(
                end.claim_address,
                lambda _: self.spec.unflatten(list(filled.leaves)),
                filled.delivered,
                self._context,
                self._raise,
            )
        else:
            at = {row: place for place, row in enumerate(rows)}
            sample = iter(range(len(end.indices)))

            def get(_: int) -> Any:
                row = next(sample)
                if row not in at or at[row] in failed or at[row] >= filled.delivered:
                    raise LookupError
                return self.spec.unflatten([leaf[at[row]] for leaf in filled.leaves])

            self._writer.samples(end.claim_address, get, self._context, self._skip)
            if filled.delivered < len(rows):
                end.cut(filled.delivered)
        for place, record in failed.items():
            end.fail(rows[place], record)

    def _skip(self, row: int, index: int, error: BaseException) -> None:
        if not isinstance(error, LookupError):
            raise error

    def _raise(self, row: int, index: int, error: BaseException) -> None:
        raise error


class Claims:
    def __init__(self, end: Any, lander: Lander) -> None:
        self._end, self._lander = end, lander
        self._lock = threading.RLock()
        self._open: dict[Claim, None] = {}
        self.is_over = False

    def next(self, timeout_ns: int) -> Claim | None:
        end = self._end.another()
        answer = end.claim(timeout_ns)
        if answer == _ring.STOPPED:
            self.is_over = True
        if answer != _ring.TAKEABLE:
            return None
        claim = Claim(end)
        with self._lock:
            self._open[claim] = None
            self._show()
        return claim

    def _show(self) -> None:
        for claim in self._open:
            _claims.show(claim.end.claim_address, 0)
            return

    def land(self, claim: Claim, filled: Filled, rows: list[int] | None = None) -> bool:
        rows = claim.rows if rows is None else rows
        with self._lock:
            if claim not in self._open:
                return False
            self._lander.land(claim.end, filled, rows)
            claim.missing -= set(rows)
            if not claim.missing:
                self._publish(claim)
        return True

    def fail(self, claim: Claim, error: bytes) -> bool:
        with self._lock:
            if claim not in self._open:
                return False
            for row in claim.missing:
                claim.end.fail(row, error)
            self._publish(claim)
        return True

    def _publish(self, claim: Claim, cancelled: bool = False) -> None:
        claim.end.publish(cancelled)
        del self._open[claim]
        self._show()

    def watch(self, told: Callable[[list[Claim]], None]) -> None:
        while not self.is_over or self._open:
            time.sleep(0.02)
            with self._lock:
                gone = [one for one in self._open if _claims.is_cancelled(one.end.claim_address)]
                for claim in gone:
                    self._publish(claim, cancelled=True)
            if gone:
                told(gone)

    def __len__(self) -> int:
        return len(self._open)
