"""The tickets that a bridge holds: any number of them, under one worker id.

One thread claims, others land what has come or watch for breaks. Once its epoch is broken off a
claim is published as cancelled at once, whatever the actors do that make its rows: what they answer
later is dropped.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ringfeed._failure import encode
from ringfeed.datasets.reader import IDLE_NS
from ringfeed.ray.landing import Filled, Lander, Part, failed
from ringfeed.reading import _claims
from ringfeed.ring._ring import STOPPED, TAKEABLE, WorkerEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


NOTHING_NS = 1  # what a ticket counts as that was given up


class Claim:
    """A ticket that a bridge holds."""

    def __init__(self, end: WorkerEnd) -> None:
        """Take over what the end has claimed."""
        self.end = end.another()
        self.address = self.end.claim_address
        _claims.move(end.claim_address, self.address)
        self.epoch, self.version = end.epoch, end.version
        self.indices = end.indices
        """One a row of the ticket."""
        self.rows = tuple(row for row, _ in _claims.rows_to_read(self.address))
        """Those of the ticket that are to be made: all but what was given up before."""
        self.missing = set(self.rows)
        self.parts: list[Part] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether its epoch was broken off."""
        return _claims.is_cancelled(self.address)


class Claims:
    """All that one bridge holds. The worker's line shows the oldest, and blames no row."""

    def __init__(self, end: WorkerEnd, lander: Lander) -> None:
        """Claim by this end, and land in the slots of its ring."""
        self.is_over = False
        """Whether the ring has stopped, or this worker is to leave: nothing more is claimed."""
        self._end, self._lander = end, lander
        self._lock = threading.Lock()  # of a few steps, and of one landing
        self._held: dict[Claim, None] = {}  # in the order of their claims

    def __len__(self) -> int:
        """Return how many are held."""
        return len(self._held)

    # ---- claiming ----

    def next(self, timeout_ns: int) -> Claim | None:
        """Claim a ticket, waiting so long; None where none has come. Of one thread."""
        while (answer := self._end.claim(timeout_ns)) == TAKEABLE:
            claim = Claim(self._end)
            with self._lock:
                self._held[claim] = None
                is_held = claim.rows and not claim.is_cancelled
                if not is_held:
                    self._publish(claim, NOTHING_NS)
                self._show()
            if is_held:
                return claim
        self.is_over |= answer == STOPPED
        return None

    def _show(self) -> None:
        for claim in self._held:
            _claims.show(claim.address, min(claim.missing, default=0))
            return

    def _publish(self, claim: Claim, work_ns: int) -> None:
        del self._held[claim]
        claim.parts.clear()
        claim.end.publish(claim.is_cancelled, work_ns)

    # ---- breaks ----

    def watch(self, told: Callable[[list[Claim]], None]) -> None:
        """Publish what is broken off at once, as cancelled, and tell which; in its own thread."""
        while True:
            seen = self._end.breaks
            gone = self.cancel()
            if gone:
                told(gone)
            if _claims.is_stopped(self._end.claim_address):
                return
            self._end.wait_break(seen, IDLE_NS)

    def cancel(self) -> list[Claim]:
        """Publish what is broken off as cancelled; returns it."""
        with self._lock:
            gone = [claim for claim in self._held if claim.is_cancelled]
            for claim in gone:
                self._publish(claim, NOTHING_NS)
            self._show()
        return gone

    # ---- landing ----

    def land(self, claim: Claim, filled: Filled, rows: Sequence[int] | None = None) -> bool:
        """Take the answer for these rows, by default for all; the last one has the claim written.

        False, and nothing is done, where they came before or the claim is held no more.
        """
        rows = claim.rows if rows is None else tuple(rows)
        with self._lock:  # a slot that is written is not given up: a break waits for it
            is_held = claim in self._held and not claim.is_cancelled
            if not is_held or not claim.missing.issuperset(rows):
                return False
            claim.parts.append((rows, filled))
            claim.missing.difference_update(rows)
            if not claim.missing:
                self._write(claim)
                self._publish(claim, sum(filled.work_ns for _, filled in claim.parts) or NOTHING_NS)
            self._show()
        return True

    def fail(self, claim: Claim, record: bytes, rows: Sequence[int] | None = None) -> bool:
        """Fail these rows, by default those that have not come; ``record``: of `encode`."""
        rows = sorted(claim.missing) if rows is None else rows
        return self.land(claim, failed(len(rows), record), rows)

    def _write(self, claim: Claim) -> None:
        try:
            self._lander.land(claim, claim.parts)
        except BaseException as error:  # noqa: BLE001 - the consumer waits for these rows
            for row in claim.rows:
                claim.end.fail(row, encode(error))
