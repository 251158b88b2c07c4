"""Whether a batch may keep its slot: of those that the caller's arrays hold, one slot at least is left to the workers.

A batch that would take the last slot that can be filled is handed out as a private copy. With two
slots that is every batch of a plain loop, which drops a batch only when it has the next: there a
single held slot does not count, once the loop was seen to do so. The second batch of such an epoch
is a copy, and shows it.
"""

from __future__ import annotations

import gc
import sys
import warnings
from typing import TYPE_CHECKING

from ringfeed._callers import callers_depth
from ringfeed.errors import SlotsHeldWarning
from ringfeed.monitor.faults import slots_kept
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from ringfeed.engine.resizer import Resizer
    from ringfeed.monitor._snapshot import Observer
    from ringfeed.monitor.lease_tracker import LeaseTracker
    from ringfeed.ring._ring import Lease, Ring
    from ringfeed.spec.builder import BatchBuilder

SOON_NS = 10**7  # what a step may take to let go of its batch
OVER = (_ring.STOPPED, _ring.ALARMED)


class CopyPolicy:
    """Decides it for one ring. Not thread-safe: the loader's lock is held."""

    def __init__(
        self,
        ring: Ring,
        observer: Observer,
        tracker: LeaseTracker,
        resizer: Resizer | None,
        timeout_ns: int,
    ) -> None:
        """Wait for a framework up to ``timeout_ns``."""
        self._ring, self._observer, self._lease_tracker = ring, observer, tracker
        self._resizer = resizer
        self._timeout_ns = self._wait_ns = timeout_ns
        self._is_told = False
        self.begin()

    def begin(self) -> None:
        """Begin an epoch, of whose caller nothing is known."""
        self.lets_go = False
        """Whether the caller drops a batch when it has the next."""
        self._watched_ns = (
            0  # when the batch was taken that it had while the copy was made that shows it
        )
        self._keeps = False

    def distrust(self) -> None:
        """Note, until the epoch ends, that the caller keeps batches."""
        self.lets_go, self._keeps = False, True

    def is_left(self, lease: Lease | None, form: BatchBuilder | None) -> bool:
        """Whether the batch of this lease, just taken, may keep its slot; warns once if views are in the way."""
        if lease is None or lease.has_room():
            return True
        *held, _ = self._observer.held_since_ns()  # the newest is the lease's own
        if len(held) == 1 and held[0] != self._watched_ns and not self._keeps:
            self.lets_go, self._watched_ns = self._watched_ns > 0, held[0]
            return self.lets_go
        if not held or self._makes_room(lease, form, len(held)):
            return lease.has_room()
        self.distrust()
        if not self._is_told and self._ring.look() not in OVER:
            del lease  # else a warning that is raised would hold the slot by its traceback
            self._is_told = True
            self._warn("" if form is None else form.copied_by)
        return False

    def _makes_room(self, lease: Lease, form: BatchBuilder | None, held: int) -> bool:
        """Get a slot back in the ways that need nothing of the caller: another is opened, or a framework lets go."""
        began_ns = _ring.now_ns()
        waited_ns = 0
        if not self._is_told:  # once in vain is enough
            while self._resizer is not None and self._resizer.open_another():
                if lease.has_room():
                    return True
            if lease.wait_room(SOON_NS):
                return True
        while (
            form is not None
            and waited_ns < self._wait_ns
            and form.lets_go_later(waited_ns / 1e9, held)
        ):
            if lease.wait_room(SOON_NS) or self._ring.look() in OVER:
                self._wait_ns = self._timeout_ns
                return True
            waited_ns = _ring.now_ns() - began_ns
        if waited_ns:
            self._wait_ns = SOON_NS  # until that was not in vain
        if not self._is_told:
            gc.collect()  # tens of milliseconds beside a framework
        return lease.has_room()

    def _warn(self, copied_by: str) -> None:
        message = slots_kept(self._observer, self._lease_tracker)
        if copied_by:
            message += f" ({copied_by})"
        if hasattr(sys, "ps1"):
            message += "; Out and sys.last_traceback refer to arrays, too"
        warnings.warn(message, SlotsHeldWarning, stacklevel=callers_depth())
