"""One running ring: the plan kept full, batches waited for and handed out, failures turned into errors.

The loader decides when an epoch begins and ends; the engine runs it. Not thread-safe: the loader's lock is held.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from ringfeed._process import Forks
from ringfeed.engine.lookahead import Lookahead
from ringfeed.engine.settling import Settler
from ringfeed.engine.waiting import Waiter
from ringfeed.monitor.lease_tracker import Debug
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.engine.parts import Parts
    from ringfeed.engine.place import Progress
    from ringfeed.orders.sampler import Epoch
    from ringfeed.spec.builder import BuildBatch


class Feed(Protocol):
    """C code that takes batches."""

    def attach(self, ring: _ring.Ring, timeout_ns: int) -> None:
        """Take them of this ring."""

    def detach(self) -> None:
        """Take no more."""


class Engine:
    """Hands out the batches of one ring, epoch after epoch."""

    def __init__(self, parts: Parts) -> None:
        """Run what was reserved; no worker runs yet."""
        self._forks = Forks.count
        self.on_stop: list[Callable[[], None]] = []
        """Called in this order by `stop`, when the workers have ended and the slots are still mapped."""
        self.parts = parts
        self.ring, self.pool, self.intake, self.observer = parts.ring, parts.pool, parts.intake, parts.observer
        self._lookahead = Lookahead(parts)
        self._settler = Settler(parts, self._lookahead)
        self._waiter = Waiter(parts)
        self._epoch_id = 0
        self._feed: Feed | None = None  # the last that was attached

    # ---- epochs ----

    def start(self, dataset: Any) -> None:
        """Start the workers; a forkserver imports and unpickles before it forks them, which is a wait for the start."""
        with self.parts.ledger.launching():
            self.pool.start(dataset)

    def update(self, changed: Any) -> None:
        """Have the coming batches read from the dataset as it is now; those that are read already are dropped."""
        self.cancel()  # first: a worker that starts after the update has no ticket of an older dataset
        self.pool.update(changed)

    def is_ahead(self, number: int) -> bool:
        """Whether this epoch is planned from its start, and all before it is handed out."""
        return self._lookahead.is_beyond(number) and not self.waiting

    def begin(  # noqa: PLR0913 - what an epoch is
        self,
        order: Epoch,
        number: int,
        epoch_id: int,
        progress: Progress,
        *,
        pure: bool,
        done: int = 0,
        following: Callable[[int], Epoch] | None = None,
    ) -> None:
        """Begin an epoch, for the iterator with this id, or go on with it where `is_ahead`.

        What was left of the one before is cancelled. ``done``: batches of ``progress`` that are done with already.
        ``following``: gives the order of the next epoch, by its number, where that may be read ahead of its time.
        """
        self._lookahead.version = self.pool.version
        if self.is_ahead(number):
            self._lookahead.cross(following)
        else:
            self.cancel()
            most = self.parts.plan.lookahead if pure else getattr(order, "most_ahead", None) or self.ring.slots
            self._lookahead.begin(order, number, most, following)
        progress.planned_before = self.ring.plan_taken - done
        if epoch_id != self._epoch_id:
            self.intake.error = None  # of an epoch before
        self._epoch_id = epoch_id
        self.parts.ledger.begin_epoch()
        self.parts.copy_policy.begin()
        self.intake.set_lets_go(False)
        self.ring.begin(epoch_id)
        self._set_due()
        self._lookahead.top_up()

    def cancel(self) -> None:
        """Break the epoch off."""
        self.intake.discard()
        self._break_off()

    def _break_off(self) -> None:
        """Have no more batches come."""
        self.parts.ledger.end_epoch()
        self.ring.cancel()
        self._lookahead.clear()

    def stop(self) -> None:
        """End the workers and close the segment; views stay valid.

        What an interrupted call has left is done by the next.
        """
        with ExitStack() as ends:  # the last to be named is the first; each comes about whatever the others raise
            ends.callback(self.parts.close)
            ends.callback(self.intake.let_go)
            for end in reversed(self.on_stop):
                ends.callback(end)
            ends.callback(self.parts.count)
            ends.callback(self._detach)
            ends.callback(self.parts.ledger.end_epoch)
            self.pool.stop()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Have the workers leave, where an interrupted `stop` has not come so far; at the exit they end anyway."""
        pool = None if is_exiting() else getattr(self, "pool", None)
        if pool is not None and self._forks == Forks.count:
            pool.request_stop()

    # ---- how far it is ----

    @property
    def waiting(self) -> int:
        """How many batches the order has given that are not handed out."""
        return self.ring.left + self._lookahead.kept + (self.intake.kept is not None)

    @property
    def has_more(self) -> bool:
        """Whether the epoch has batches that are not handed out, or may have."""
        return not self._lookahead.is_planned or self.waiting > 0 or self.intake.error is not None

    # ---- C code that takes ----

    def attach(self, feed: Feed) -> None:
        """Have C code take the batches of the epoch under way, unless they are filled here."""
        self._detach()
        if self.parts.plan.workers:
            self._feed = feed
            self._waiter.end_start()
            feed.attach(self.ring, self.parts.timeout_ns)

    def _detach(self) -> None:
        if self._feed is not None:
            self._feed.detach()
            self._feed = None

    # ---- what the ring does not decide ----

    def resolve(self, answer: int, build: BuildBatch | None = None, *, wait_for_slots: bool = False) -> None:
        """Do what an answer of the ring asks for, so that it has another, or a batch; raises what ends the epoch."""
        if self.intake.kept is not None:
            self._settle(build)  # Ctrl-C came while it was settled
        elif answer == _ring.DUE:
            self._look(build, wait_for_slots=wait_for_slots)
        elif answer == _ring.PLAN or (answer == _ring.DRY and not self._lookahead.is_planned):
            self._lookahead.top_up()
        elif answer in (_ring.DRY, _ring.STALE):
            self._end()
        elif answer in (_ring.GAPS, _ring.CROWDED):
            self._take(build)
        elif answer in (_ring.PENDING, _ring.HELD):
            self._waiter.wait(build, self._epoch_id, wait_for_slots=wait_for_slots)
        else:
            self._waiter.judge(answer)

    def _end(self) -> None:
        """End the epoch, unless it was planned anew since the ring was asked."""
        if not self.ring.left:
            self.parts.ledger.end_epoch()
            raise StopIteration

    def _look(self, build: BuildBatch | None, *, wait_for_slots: bool) -> None:
        """Let the tuner look, and note where a batch is taken, as far as either is wanted."""
        if self.parts.resizer is not None:
            self.parts.resizer.look()
        self._set_due()
        if Debug.since_ns:
            self._lookahead.top_up()
            answer = self.ring.look()
            self.resolve(_ring.GAPS if answer == _ring.TAKEABLE else answer, build, wait_for_slots=wait_for_slots)

    def _set_due(self) -> None:
        resizer = self.parts.resizer
        self.ring.set_due(-1 if self.intake.error is not None else resizer.due_ns if resizer else 0)

    # ---- batches ----

    def _take(self, build: BuildBatch | None) -> None:
        """Take the head batch, if it is there still, and settle what becomes of it."""
        if self.intake.take(self._epoch_id):
            self._settle(build)

    def _settle(self, build: BuildBatch | None) -> None:
        """Have the batch handed out that was taken: without the rows that failed, in its slot or as a private copy."""
        if self.intake.kept_rows is None and self._settler.find_rows():
            self._break_off()
        if self.intake.kept_rows is not None and not self.intake.settled:
            self._settler.find_place(build)
