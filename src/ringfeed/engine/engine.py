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
from ringfeed.engine.faults import overwritten, sample_failed, slots_held, source_ended, stalled
from ringfeed.engine.lending import Lending, OvertakenError
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
from ringfeed.spec.array import copy_of
from ringfeed.spec.builder import BatchBuilder
from ringfeed.workers.pool import InProcess, Pool, PoolConfig, Threads
from ringfeed.workers.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.data.base import Delivery, Source
    from ringfeed.data.sampler import Epoch
    from ringfeed.engine.autotune import Tuner
    from ringfeed.engine.options import Settings
    from ringfeed.engine.plan import Plan
    from ringfeed.errors import RingfeedError
    from ringfeed.monitor.stats import Stats
    from ringfeed.ring._feed import Feed
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.workers.process import Launcher

HELD_NS = 10**9  # patience with views that hold every slot
FOREVER_NS = 2**62
SPIN_NS = 20_000


class Engine:
    """A segment, its ring and the pool that fills it."""

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        plan: Plan,
        source: Source,
        settings: Settings,
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
        spin = settings.workers > 0 and settings.backend == "process" and usable_cpus() > 1
        self._at_first = tuner.setting if tuner else Setting(settings.workers, plan.slots)
        self.segment = Segment(plan.sizes, SPIN_NS if spin else 0, self._at_first.slots if tuner else None)
        try:
            self.ring = self.segment.open()
            self.ring.become_consumer(self._capacity, settings.max_attempts)
            self.pool = self._make_pool(launcher)
        except BaseException:
            self.segment.close()
            raise
        self.observer = Observer(self.ring)
        self._ledger = Ledger(stats, self.observer)
        self._taken: tuple[_ring.Lease, int] | None = None  # a batch and its rows, until it is handed out
        self._version = 0
        self._epoch: Epoch | None = None
        self._number = 0
        self._ahead = plan.slots
        self._ended_by: RingfeedError | None = None  # what has ended an iterable, not raised yet
        self.taker = Taker(self.ring, self._fields, source.spec, layout.rows)
        self._lending = Lending(self.ring, self.taker)
        self._is_starting = settings.workers > 0  # no batch yet
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
            settings.workers,
            settings.start_method,
            settings.max_restarts,
            settings.max_attempts,
            self._at_first.workers,
            settings.timeout_s,
            launcher,
        )
        return _POOLS[settings.backend](config) if settings.workers else InProcess(config)

    # ---- epochs ----

    def start(self, dataset: Any) -> None:
        """Start the workers."""
        self.pool.start(dataset)

    def update(self, dataset: Any) -> None:
        """Have the coming batches read from the dataset as it is now."""
        self._version = self.pool.update(dataset)

    def begin(self, epoch: Epoch, number: int, *, pure: bool) -> None:
        """Begin an epoch; what was left of the one before is cancelled."""
        self.cancel()
        self._epoch = epoch
        self._number = number
        self._ended_by = None
        self._since_ns = _ring.now_ns()
        self._room.begin()
        self._ahead = self._capacity if pure else self.ring.slots
        self._top_up()

    def cancel(self) -> None:
        """Break the epoch off."""
        self._count_time(over=True)
        self._lending.recall()
        if self._taken is not None:
            self.ring.note_undelivered(1, self._taken[1])
        if self._waiting:
            self.ring.cancel()
        self._lending.waited_ns()  # for a batch of an epoch that is over
        self._epoch = None
        self._taken = None

    def stop(self) -> None:
        """End the workers and close the segment; views stay valid.

        What an interrupted call has left is done by the next.
        """
        with ExitStack() as ends:  # the last to be named is the first; each comes about whatever the others raise
            ends.callback(self.segment.close)
            ends.callback(self.taker.let_go)
            for end in reversed(self.on_stop):
                ends.callback(end)
            ends.callback(self.count)
            ends.callback(self._lending.recall)
            ends.callback(self._count_time, over=True)
            self.pool.stop()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Have the workers leave, where an interrupted `stop` has not come so far; at the exit they end anyway."""
        pool = None if is_exiting() else getattr(self, "pool", None)
        if pool is not None and self._forks == Forks.count:
            pool.dismiss()

    def _top_up(self) -> None:
        """Plan ahead: as far as a pure sampler gives indices in one go, or a slot's worth a slot."""
        while self._epoch is not None and self._waiting < self.ring.slots and self.ring.room:
            batches = min(self._ahead - self._waiting, self.ring.room)
            rows = self._layout.indices
            indices = self._epoch.take(batches * rows)
            if len(indices) < batches * rows:
                self._epoch = None
                if self._settings.drop_remainder:
                    indices = indices[: len(indices) // rows * rows]
            for part, lane in self._source.cut(indices, self._settings.workers):
                self.ring.plan(part, rows, self._number, self._version, lane)

    @property
    def _waiting(self) -> int:
        """Batches planned or bound, and not taken. By the ring's own count: Ctrl-C may end any call of it unheard."""
        return self.ring.planned

    # ---- other takers ----

    def lend(self, feed: Feed, turn: int) -> bool:
        """Let C code take for ``turn`` what is planned, until the engine is asked again; False at the epoch's end.

        The last batch is left to `next`, and so are those during which it is to plan more.
        """
        self._lending.recall()
        batches = self._to_lend() - (self._epoch is None)
        if batches > 0:
            self._is_starting = False  # C code does not tell the wait for the first batch from others
            if self._sizing is not None:
                self._sizing.look()
            self._lending.to_feed(feed, turn, self._in_stride(batches), self._timeout_ns())
        return self._epoch is not None or self._waiting > 0 or self._ended_by is not None

    def _lend_on(self, turn: int, recalls: int, *, lets_go: bool) -> None:
        """Let the iterator take by itself what needs no more than to be there, and until the tuner is to look."""
        plain = not self._settings.copy and self._ended_by is None
        batches = self._in_stride(self._to_lend()) if plain else 0
        until_ns = 0 if self._sizing is None else self._sizing.due_ns
        self._lending.to_iterator(turn, batches, self._timeout_ns(), recalls, until_ns, lets_go=lets_go)

    def _to_lend(self) -> int:
        """Return how many batches others may take: those during which there is nothing to plan or to fill here."""
        kept = 0 if self._epoch is None else self.ring.slots - 1
        return max(self._waiting - kept, 0) if self._settings.workers else 0

    def _in_stride(self, batches: int) -> int:
        return batches if self._sizing is None else min(batches, self._sizing.stride)

    # ---- batches ----

    def next(self, form: BuildBatch | None = None, *, patient: bool = False, turn: int = 0) -> Any:
        """Return the next batch, as arrays or as what ``form`` makes of it; lend those behind it to this ``turn``.

        StopIteration at the end of the epoch. OvertakenError where another caller has taken during a wait.
        """
        recalls = self._lending.recall()
        if self._sizing is not None:
            self._sizing.look()
        while self._taken is None:
            self._raise_end()
            self._taken = self._take(recalls, patient=patient)
        keeps = not self._settings.copy and (form is None or isinstance(form, BatchBuilder))
        private = keeps and not self._room.is_left(self._taken[0], form if isinstance(form, BatchBuilder) else None)
        if self.taker.recalls != recalls or self._taken is None:
            raise OvertakenError
        (lease, rows), self._taken = self._taken, None
        if Debug.since_ns:
            self.origins.note(lease.slot, self.observer.held_since_ns()[-1])  # the newest is this one's
        self._lend_on(turn, recalls, lets_go=self._room.lets_go or not keeps)
        if form is not None:
            return form.private(lease, rows) if private and isinstance(form, BatchBuilder) else form(lease, rows)
        leaves = self._fields.views(lease, rows)
        if self._settings.copy or private:
            leaves = [*map(copy_of, leaves)]
        return self._source.spec.unflatten(leaves)

    def _take(self, recalls: int, *, patient: bool) -> tuple[_ring.Lease, int] | None:
        """Take a batch and say how many rows it has; None where it has none, and its slot is free again."""
        if self._epoch is not None and self.ring.planned < self.ring.slots:
            self._top_up()
        while (lease := self.ring.take()) is None:
            ready = self._wait(patient=patient)
            if self.taker.recalls != recalls:
                raise OvertakenError
            if not ready:
                self._count_time(over=True)
                raise StopIteration
        try:
            self._note_start()
            rows = min(lease.rows, self._layout.rows)
            if not lease.failed:
                return lease, rows
            delivery = self._settled(lease, rows)
            if delivery.failed and self._settings.on_error == "raise":
                raise sample_failed(lease, delivery.failed, self._source, self.pool, self._settings)  # noqa: TRY301 - as Ctrl-C
            rows = self._without(lease, rows, delivery)
            self.ring.note_undelivered(not rows, lease.rows - rows)
        except BaseException:
            self.ring.note_undelivered(1, lease.rows)
            del lease  # in the traceback it would hold the slot for as long as the caller keeps the error
            raise
        return (lease, rows) if rows else None

    def _note_start(self) -> None:
        """Note the first batch of workers that were started."""
        if self._is_starting:
            self._is_starting = False
            self.stats.startup_busy_s += sum(worker.busy_ns for worker in self.observer.workers()) / 1e9

    def _wait(self, *, patient: bool) -> bool:
        """Wait for the head batch; False when the epoch is over."""
        began_ns = _ring.now_ns()
        try:
            return self._wait_until(began_ns - self._lending.waited_ns(), patient=patient)
        finally:
            stall_ns = _ring.now_ns() - began_ns
            self.stats.startup_s += self._is_starting * stall_ns / 1e9
            self.ring.note_stall(stall_ns)

    def _timeout_ns(self) -> int:
        timeout_s = self._settings.timeout_s
        return FOREVER_NS if timeout_s is None else int(min(timeout_s * 1e9, FOREVER_NS))

    def _wait_until(self, began_ns: int, *, patient: bool) -> bool:
        timeout_ns = self._timeout_ns()
        deadline_ns = began_ns + timeout_ns
        while True:
            answer = self.ring.look()
            while answer == _ring.PENDING and self.pool.step():
                answer = self.ring.look()
            if answer == _ring.HELD:
                answer = self._wait_for_views(min(timeout_ns, FOREVER_NS if patient else HELD_NS))
                deadline_ns = _ring.now_ns() + timeout_ns
            elif answer == _ring.PENDING:
                answer = self.ring.wait(deadline_ns - _ring.now_ns())
            if answer in (_ring.TAKEABLE, _ring.DRY):
                return bool(answer == _ring.TAKEABLE)
            self._judge(answer)
            if answer == _ring.PENDING and _ring.now_ns() >= deadline_ns:
                pause_ns = self._stalled()
                deadline_ns = _ring.now_ns() + pause_ns

    def _wait_for_views(self, patience_ns: int) -> int:
        """Wait until views let go of a slot; garbage is collected only where none does soon by itself."""
        answer = self.ring.wait(min(patience_ns, SOON_NS), held=True)
        while answer == _ring.HELD and self._sizing is not None and self._sizing.open_another():
            answer = self.ring.look()
        if answer == _ring.HELD:
            gc.collect()  # tens of milliseconds beside a framework
            answer = self.ring.wait(patience_ns, held=True)
        if answer == _ring.HELD:
            self._room.distrust()
            raise slots_held(self.observer, self.origins)
        return answer

    def _judge(self, answer: int) -> None:
        """Raise what ended the ring."""
        if answer == _ring.STOPPED:
            message = "the loader was closed while this iterator waited"
            raise ClosedError(message)
        if damage := self.ring.damage():  # first: it may be why workers do not start, or are stuck
            self.pool.failure = overwritten(damage, self._source)
        if answer in (_ring.ALARMED, _ring.DAMAGED) and self.pool.failure is not None:
            raise self.pool.failure

    # ---- what went wrong ----

    def _stalled(self) -> int:
        """Raise StallError, or end the workers that are stuck; returns how long to wait before the next look."""
        pause_ns = self.pool.kill_stuck(self._timeout_ns()) if self._settings.on_stall == "restart" else 0
        if self.pool.unkillable and self._sizing is not None and self._sizing.replace_lost():
            return pause_ns or self._timeout_ns()
        if pause_ns:
            return pause_ns
        raise stalled(self.observer, self._source, self.pool.stalled(), self._settings.timeout_s)

    def _settled(self, lease: _ring.Lease, rows: int) -> Delivery:
        """Say what has become of a batch with failures; the end of the last stream in it ends the epoch."""
        delivery = self._source.settle(lease, rows, self._epoch)
        if delivery.ended is not None and self._settings.on_error == "skip":
            self._ended_by = source_ended(*delivery.ended)
        if delivery.is_over:
            self.cancel()
        return delivery

    def _without(self, lease: _ring.Lease, rows: int, delivery: Delivery) -> int:
        """Close the gaps that failures have left in a batch; returns the rows that are left."""
        self.stats.none_batches += delivery.is_none
        self.stats.skipped += [index for _, index, _ in delivery.failed]
        if not delivery.keeps_others or (self._settings.drop_remainder and lease.rows < self._layout.rows):
            return 0
        kept = np.setdiff1d(np.arange(rows), [row for row, _, _ in delivery.failed])
        for leaf in self._fields.views(lease, rows):
            leaf[: len(kept)] = leaf[kept]
        return len(kept)

    def _raise_end(self) -> None:
        if self._ended_by is not None:
            error, self._ended_by = self._ended_by, None
            raise error

    # ---- statistics ----

    def count(self) -> Stats:
        """Return the statistics, brought up to date; in a forked child as they were."""
        self._count_time()
        waiting = self._taken
        self._ledger.count(self.pool.restarts, None if waiting is None else waiting[1])
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
        return look(plan, self._descriptors, self.worker_pids(), held)

    def worker_pids(self) -> list[int]:
        """Return the worker processes, if there are any."""
        return self.pool.pids() if isinstance(self.pool, Processes) else []

    def _descriptors(self) -> list[int]:
        sent = self.pool.descriptors() if isinstance(self.pool, Processes) else ()
        return [fd for fd in (self.segment.control_fd, self.segment.slots_fd, *sent) if fd >= 0]


_POOLS: dict[str, type[Processes | Threads]] = {"process": Processes, "thread": Threads}
