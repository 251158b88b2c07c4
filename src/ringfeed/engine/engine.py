"""One running ring: the plan kept full, batches waited for and handed out, failures turned into errors.

The loader decides when an epoch begins and ends; the engine runs it. Not thread-safe: the loader's lock is held.
"""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._process import Forks
from ringfeed.engine._iterator import Taker
from ringfeed.engine.autotune import Setting
from ringfeed.engine.faults import Loss, over_total, overwritten, sample_failed, slots_held, source_ended, stalled
from ringfeed.engine.kept_streams import KeptStreams
from ringfeed.engine.lookahead import Lookahead
from ringfeed.engine.resizer import Sizing
from ringfeed.engine.room import SOON_NS, Room
from ringfeed.errors import ClosedError
from ringfeed.monitor.lease_tracker import Debug, Origins
from ringfeed.monitor.memory import Held, Memory, look
from ringfeed.monitor.stats import Ledger
from ringfeed.ring import _ring
from ringfeed.ring._snapshot import Observer
from ringfeed.ring.machine import usable_cpus
from ringfeed.ring.segment import Segment
from ringfeed.spec._fields import Fields
from ringfeed.spec.builder import BatchBuilder
from ringfeed.workers.backends import make_pool
from ringfeed.workers.pool import PoolConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.data.base import Delivery, Source
    from ringfeed.engine._iterator import Progress
    from ringfeed.engine.autotune import Tuner
    from ringfeed.engine.options import Options
    from ringfeed.engine.plan import Plan
    from ringfeed.monitor.stats import Stats
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Epoch
    from ringfeed.ring._feed import Feed
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.workers.pool import Pool
    from ringfeed.workers.process import Launcher

HELD_NS = 10**9  # patience with views that hold every slot
PATIENCE_NS = 50_000_000  # of an iterator by itself, before the engine is asked what may be wrong
FOREVER_NS = 2**62
SPIN_NS = 20_000


class Engine:
    """A segment, its ring and the pool that fills it."""

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        plan: Plan,
        source: Source,
        settings: Options,
        stats: Stats,
        *,
        tuner: Tuner | None,
        launcher: Launcher | None,
    ) -> None:
        """Reserve the plan's memory, or with a tuner as much of it as it begins with; no worker runs yet."""
        layout = plan.layout
        self._forks = Forks.count
        self.stats = stats
        self.on_stop: list[Callable[[], None]] = []
        """Called in this order by `stop`, when the workers have ended and the slots are still mapped."""
        self._settings = settings
        self._source = source
        self._layout = layout
        self._capacity = plan.lookahead
        self._fields = Fields(source.spec, layout.offsets)
        self._workers = plan.workers
        spin = plan.workers > 0 and settings.backend == "process" and usable_cpus() > 1
        self._at_first = tuner.setting if tuner else Setting(plan.workers, plan.slots)
        self.segment = Segment(plan.sizes, SPIN_NS if spin else 0, self._at_first.slots if tuner else None)
        try:
            self.ring = self.segment.open()
            self.ring.become_consumer(self._capacity, settings.max_attempts)
            self.streams = KeptStreams(source, shared=plan.workers > 0 and settings.backend == "process")
        except BaseException:
            self.segment.close()
            raise
        try:
            self.pool = self._make_pool(launcher)
        except BaseException:
            self._close_memory()
            raise
        self.observer = Observer(self.ring)
        self._ledger = Ledger(stats, self.observer)
        self._lookahead = Lookahead(self.ring, source, layout, plan.workers, drop_remainder=settings.drop_remainder)
        self._turn = 0
        self._feed: Feed | None = None  # the last there was
        self._held_since_ns = 0  # views hold every slot; 0: they do not
        self.taker = Taker(self.ring, self._fields, source.spec, layout.rows)
        self._is_starting = plan.workers > 0  # no batch yet
        self.taker.patience_ns = self._patience_ns()
        self._since_ns = 0  # when time was last counted in the epoch under way; 0: there is none
        self.origins = Origins()
        self._counting = threading.RLock()  # held for a few steps: statistics are asked for by any thread
        self._sizing = Sizing(tuner, self.segment, self.ring, self.pool, self.count) if tuner else None
        self._room = Room(self.ring, self.origins, self._sizing, self._timeout_ns())

    def _make_pool(self, launcher: Launcher | None) -> Pool:
        settings = self._settings
        config = PoolConfig(
            self.ring,
            self.segment,
            self._source,
            self._layout.offsets,
            self._workers,
            settings.start_method,
            settings.max_restarts,
            settings.max_attempts,
            self._at_first.workers,
            settings.timeout_s,
            launcher,
            self.streams.states,
        )
        return make_pool(settings.backend, config)

    # ---- epochs ----

    def start(self, dataset: Any) -> None:
        """Start the workers; a forkserver imports and unpickles before it forks them, which is a wait for the start."""
        began_ns = _ring.now_ns()
        self.pool.start(dataset)
        self.stats.launch_s += (_ring.now_ns() - began_ns) / 1e9

    def update(self, dataset: Any) -> None:
        """Have the coming batches read from the dataset as it is now."""
        self._lookahead.version = self.pool.update(dataset)

    def is_ahead(self, number: int) -> bool:
        """Whether this epoch is planned from its start, and all before it is handed out."""
        return self._lookahead.is_beyond(number) and not self.waiting

    def begin(  # noqa: PLR0913 - what an epoch is
        self,
        order: Epoch,
        number: int,
        turn: int,
        progress: Progress,
        *,
        pure: bool,
        done: int = 0,
        following: Callable[[int], Epoch] | None = None,
    ) -> None:
        """Begin an epoch, for the iterator of this turn, or go on with it where `is_ahead`.

        What was left of the one before is cancelled. ``done``: batches of ``progress`` that are done with already.
        ``following``: gives the order of the next epoch, by its number, where that may be read ahead of its time.
        """
        if self.is_ahead(number):
            self._lookahead.cross(following)
        else:
            self.cancel()
            self._lookahead.begin(order, number, self._capacity if pure else self.ring.slots, following)
        progress.planned_before = self.ring.plan_taken - done
        if turn != self._turn:
            self.taker.error = None  # of an epoch before
        self._turn = turn
        self._since_ns = _ring.now_ns()
        self._room.begin()
        self.taker.set_lets_go(False)
        self.ring.begin(turn)
        self._set_due()
        self._lookahead.top_up()

    def cancel(self) -> None:
        """Break the epoch off."""
        self.taker.discard()
        self._break_off()

    def _break_off(self) -> None:
        """Have no more batches come."""
        self._count_time(over=True)
        self.ring.cancel()
        self._lookahead.clear()

    def stop(self) -> None:
        """End the workers and close the segment; views stay valid.

        What an interrupted call has left is done by the next.
        """
        with ExitStack() as ends:  # the last to be named is the first; each comes about whatever the others raise
            ends.callback(self._close_memory)
            ends.callback(self.taker.let_go)
            for end in reversed(self.on_stop):
                ends.callback(end)
            ends.callback(self.count)
            ends.callback(self._detach)
            ends.callback(self._count_time, over=True)
            self.pool.stop()

    def _close_memory(self) -> None:
        self.segment.close()
        self.streams.close()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Have the workers leave, where an interrupted `stop` has not come so far; at the exit they end anyway."""
        pool = None if is_exiting() else getattr(self, "pool", None)
        if pool is not None and self._forks == Forks.count:
            pool.dismiss()

    # ---- how far it is ----

    @property
    def waiting(self) -> int:
        """How many batches of the epoch its order has given, and are not handed out."""
        return self.ring.left + self._lookahead.kept + (self.taker.kept is not None)

    def withdraw(self) -> int:
        """Have nothing more be taken, of an epoch that none follows; returns how many batches were not handed out."""
        self.ring.begin(0)
        return self.taker.discard() + self.ring.planned + self._lookahead.kept

    @property
    def has_more(self) -> bool:
        """Whether the epoch has batches that are not handed out, or may have."""
        return not self._lookahead.is_planned or self.waiting > 0 or self.taker.error is not None

    # ---- C code that takes ----

    def attach(self, feed: Feed) -> None:
        """Have C code take the batches of the epoch under way, unless they are filled here."""
        self._detach()
        if not self._workers:
            return
        self._feed = feed
        self._is_starting = False  # C code does not tell the wait for the first batch from others
        self.taker.patience_ns = self._patience_ns()
        feed.attach(self.ring, self._timeout_ns())

    def _detach(self) -> None:
        if self._feed is not None:
            self._feed.detach()
            self._feed = None

    # ---- what the ring does not decide ----

    def resolve(self, answer: int, build: BuildBatch | None = None, *, patient: bool = False) -> None:
        """Do what an answer of the ring asks for, so that it has another, or a batch; raises what ends the epoch."""
        if self.taker.kept is not None:
            self._settle(build)  # Ctrl-C came while it was settled
        elif answer == _ring.DUE:
            self._look(build, patient=patient)
        elif answer == _ring.PLAN or (answer == _ring.DRY and not self._lookahead.is_planned):
            self._lookahead.top_up()
        elif answer in (_ring.DRY, _ring.STALE):
            self._end()
        elif answer in (_ring.GAPS, _ring.CROWDED):
            self._take(build)
        elif answer in (_ring.PENDING, _ring.HELD):
            self._wait(build, patient=patient)
        else:
            self._judge(answer)

    def _end(self) -> None:
        """End the epoch, unless it was planned anew since the ring was asked."""
        if not self.ring.left:
            self._count_time(over=True)
            raise StopIteration

    def _look(self, build: BuildBatch | None, *, patient: bool) -> None:
        """Let the tuner look, and note where a batch is taken, as far as either is wanted."""
        if self._sizing is not None:
            self._sizing.look()
        self._set_due()
        if Debug.since_ns:
            self._lookahead.top_up()
            answer = self.ring.look()
            self.resolve(_ring.GAPS if answer == _ring.TAKEABLE else answer, build, patient=patient)

    def _set_due(self) -> None:
        self.ring.set_due(-1 if self.taker.error is not None else self._sizing.due_ns if self._sizing else 0)

    # ---- batches ----

    def _take(self, build: BuildBatch | None) -> None:
        """Take the head batch, if it is there still, and settle what becomes of it."""
        if self.taker.take(self._turn):
            self._settle(build)

    def _settle(self, build: BuildBatch | None) -> None:
        """Have the batch handed out that was taken: without the rows that failed, in its slot or as a private copy."""
        if self.taker.kept_rows is None:
            self._find_rows()
        if self.taker.kept_rows is not None and not self.taker.settled:
            self._find_place(build)

    def _find_rows(self) -> None:
        """Know the rows to hand out, the gaps that failures have left closed; a batch without any is dropped."""
        lease = self.taker.kept
        if lease is None:
            return
        batch, rows = lease.batch, min(lease.rows, self._layout.rows)
        if not lease.failed:
            self.taker.keep_rows(batch, rows)
            return
        delivery = self._source.settle(lease, rows, self._lookahead.order)
        good = self._good_rows(lease, rows, delivery)
        loss = self._loss(lease, delivery)
        if (over := self._fields.needed(lease, rows)) is not None:
            good, loss = good[:0], self._over_total(lease.indices(rows), *over)
        del lease  # in a traceback it would hold the slot for as long as the caller keeps the error
        if loss.error is not None:
            self.ring.set_due(-1)  # ahead of the batch after this one, also where C code takes it
        if len(good):
            self.taker.close_gaps(batch, rows, good, self.stats, loss)
        else:
            self.taker.drop(batch, self.stats, loss)
        if delivery.is_over:  # last: it says the same of each later batch
            self._break_off()

    def _good_rows(self, lease: _ring.Lease, rows: int, delivery: Delivery) -> Indices:
        """Return the rows that are handed out of a batch with failures."""
        raises = delivery.failed and self._settings.on_error == "raise"
        is_short = self._settings.drop_remainder and lease.rows < self._layout.rows
        if raises or is_short or not delivery.keeps_others:
            return np.empty(0, np.int64)
        return np.setdiff1d(np.arange(rows), [row for row, _, _ in delivery.failed])

    def _loss(self, lease: _ring.Lease, delivery: Delivery) -> Loss:
        """Return what is to be raised for a batch with failures, after its good rows; or else what is counted."""
        if self._settings.on_error == "skip":
            error = None if delivery.ended is None else source_ended(*delivery.ended)
            return Loss(error, [index for _, index, _ in delivery.failed], delivery.is_none)
        if delivery.failed:
            return Loss(sample_failed(lease, delivery.failed, self._source, self.pool, self._settings))
        return Loss(None, [], delivery.is_none)

    def _over_total(self, indices: list[int], leaf: int, need: int) -> Loss:
        """Return what comes of a batch that has no room for its samples: which of them fit depends on the workers."""
        source = self._source
        if self._settings.on_error == "skip":
            return Loss(None, [*map(source.number_of, indices)])
        return Loss(over_total(indices, source.spec.leaves[leaf], need, source))

    def _find_place(self, build: BuildBatch | None) -> None:
        """Leave the batch in its slot, or have it handed out as a private copy."""
        taker = self.taker  # no lease here, as above
        builder = build if isinstance(build, BatchBuilder) else None
        keeps = not self._settings.copy and (build is None or builder is not None)
        batch = None if taker.kept is None else taker.kept.batch
        private = keeps and not self._room.is_left(taker.kept, builder)
        taker.set_lets_go(self._room.lets_go or not keeps)
        if batch is None:
            return
        if Debug.since_ns and (slot := _slot_of(taker.kept)) is not None:
            self.origins.note(slot, self.observer.held_since_ns()[-1])  # the newest is this one's
        taker.settle(batch, private)

    # ---- waiting ----

    def _wait(self, build: BuildBatch | None, *, patient: bool) -> None:
        """Wait for the head batch, and for slots to fill."""
        began_ns = _ring.now_ns()
        if self._is_starting and self.observer.consumer().batches:
            self._note_start()
        starting = self._is_starting
        try:
            self._wait_once(build, patient=patient)
        finally:
            stall_ns = _ring.now_ns() - began_ns
            self.stats.startup_s += starting * stall_ns / 1e9
            self.ring.note_stall(stall_ns)

    def _note_start(self) -> None:
        """Note that workers which were started have filled a batch: what is waited for from now on is no start."""
        self._is_starting = False
        self.stats.startup_busy_s += sum(worker.busy_ns for worker in self.observer.workers()) / 1e9
        self.taker.patience_ns = self._patience_ns()

    def _wait_once(self, build: BuildBatch | None, *, patient: bool) -> None:
        timeout_ns = self._timeout_ns()
        answer = self.ring.look()
        while answer == _ring.PENDING and self.pool.step():
            answer = self.ring.look()
        if answer == _ring.HELD:
            self._wait_for_views(build, min(timeout_ns, FOREVER_NS if patient else HELD_NS))
            self.ring.waited_ns = 0
        elif answer == _ring.PENDING:
            left_ns = timeout_ns - self.ring.waited_ns
            answer = self.ring.wait(self.streams.patience_ns(left_ns), turn=self._turn)
            self.streams.look()
            if answer == _ring.PENDING and self.ring.waited_ns >= timeout_ns:
                self._judge(self.ring.look())  # what is damaged may be why workers are stuck
                self.ring.waited_ns = 0  # after an error the next wait is as long
                self.ring.waited_ns = timeout_ns - self._stalled()
        if answer == _ring.TAKEABLE and self._is_starting:
            self._note_start()
        self._judge(answer)

    def _timeout_ns(self) -> int:
        timeout_s = self._settings.timeout_s
        return FOREVER_NS if timeout_s is None else int(min(timeout_s * 1e9, FOREVER_NS))

    def _patience_ns(self) -> int:
        """Return how long an iterator waits by itself: not for what is filled here, or for workers that start."""
        return min(PATIENCE_NS, self._timeout_ns()) if self._workers and not self._is_starting else 0

    def _wait_for_views(self, build: BuildBatch | None, patience_ns: int) -> None:
        """Wait until views let go of a slot; garbage is collected only where none does soon by itself."""
        self._held_since_ns = self._held_since_ns or _ring.now_ns()
        answer = self.ring.wait(min(patience_ns, SOON_NS), held=True)
        while answer == _ring.HELD and self._sizing is not None and self._sizing.open_another():
            answer = self.ring.look()
        if answer == _ring.HELD:
            gc.collect()  # tens of milliseconds beside a framework
            answer = self.ring.wait(patience_ns, held=True)
        builder = build if isinstance(build, BatchBuilder) else None
        if answer != _ring.HELD:
            self._held_since_ns = 0
        elif builder is None or not self._may_come_back(builder):
            self._held_since_ns = 0
            self._room.distrust()
            self.taker.set_lets_go(False)
            raise slots_held(self.observer, self.origins, "" if builder is None else builder.copied_by)

    def _may_come_back(self, builder: BatchBuilder) -> bool:
        """Whether the framework may let go of a slot by itself, and there is time left."""
        waited_ns = _ring.now_ns() - self._held_since_ns
        return waited_ns < self._timeout_ns() and builder.lets_go_later(waited_ns / 1e9, self.ring.slots)

    def _judge(self, answer: int) -> None:
        """Raise what ended the ring, if it has ended."""
        if answer == _ring.STOPPED:
            message = "the loader was closed while this iterator waited"
            raise ClosedError(message)
        if answer not in (_ring.ALARMED, _ring.DAMAGED):
            return
        if damage := self.ring.damage():  # first: it may be why workers do not start, or are stuck
            self.pool.failure = overwritten(damage, self._source)
        if self.pool.failure is not None:
            raise self.pool.failure

    # ---- what went wrong ----

    def _stalled(self) -> int:
        """Raise StallError, or end the workers that are stuck; returns how long to wait before the next look."""
        pause_ns = self.pool.kill_stuck(self._timeout_ns()) if self._settings.on_stall == "restart" else 0
        if pause_ns:
            return pause_ns
        raise stalled(self.observer, self._source, self.pool.stalled(), self._settings.timeout_s)

    # ---- statistics ----

    def count(self) -> Stats:
        """Return the statistics, brought up to date; in a forked child as they were."""
        self._count_time()
        waiting, rows = self.taker.kept, self.taker.kept_rows
        self._ledger.count(self.pool.restarts, None if waiting is None else waiting.rows if rows is None else rows)
        return self.stats

    def _count_time(self, *, over: bool = False) -> None:
        """Count the time since the last look, if an epoch is under way; ``over``: it ends now."""
        if self._forks != Forks.count:
            return  # the thread that held the lock when this process was forked is not in it
        with self._counting:
            now_ns = _ring.now_ns()
            if self._since_ns:
                self.stats.elapsed_s += (now_ns - self._since_ns) / 1e9
                self._since_ns = 0 if over else now_ns

    # ---- memory ----

    def memory(self, plan: Plan) -> Memory:
        """Ask the kernel about the memory of this loader; at any moment, from any thread."""
        now_ns = _ring.now_ns()
        held = [Held((now_ns - at_ns) / 1e9, self.origins.told(at_ns)) for at_ns in self.observer.held_since_ns()]
        return look(plan, self._descriptors, self.pool.pids(), held)

    def _descriptors(self) -> list[int]:
        fds = (self.segment.control_fd, self.segment.slots_fd, self.streams.fd, *self.pool.descriptors())
        return [fd for fd in fds if fd >= 0]


def _slot_of(lease: _ring.Lease | None) -> int | None:
    return None if lease is None else lease.slot
