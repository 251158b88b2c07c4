"""One running ring: its memory, workers and plan, its waits for batches, its failures as errors.

The iterator itself takes a batch that is ready. For any other answer of the ring it calls
`Engine.resolve`:

    PLAN      plan more batches
    GAPS, CROWDED   the batch is taken; `settling` decides which of its rows are handed out
    PENDING   with workers=0 fill the batch here; else wait up to `timeout_s`, then raise
              StallError or kill stuck workers
    HELD      views hold every slot: wait a second, or up to `timeout_s` if a framework
              releases slots by itself
    ALARMED, DAMAGED   the workers have failed, or wrote over shared memory: raise

The loader decides when an epoch begins and ends. Not thread-safe: the loader's lock is held.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ringfeed._process import Forks
from ringfeed.engine._iterator import Intake
from ringfeed.engine.lookahead import Lookahead
from ringfeed.errors import ClosedError
from ringfeed.monitor._snapshot import Observer
from ringfeed.monitor.lease_tracker import Debug, LeaseTracker
from ringfeed.monitor.stats import Ledger, Setting
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec._fields import Fields
from ringfeed.system.machine import HAS_PROCESSES, usable_cpus
from ringfeed.workers.pool import PoolConfig, make_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.engine._iterator import Progress
    from ringfeed.engine.autotune import Resizer, Tuner
    from ringfeed.engine.options import Options
    from ringfeed.engine.plan import Plan
    from ringfeed.engine.settling import Settler
    from ringfeed.monitor.memory import Memory
    from ringfeed.monitor.stats import Stats
    from ringfeed.orders.sampler import Epoch
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.transport.shared_dataset import SharedDataset
    from ringfeed.workers.pool import Pool
    from ringfeed.workers.process import Launcher

FOREVER_NS = 2**62
# How long an iterator waits by itself before it asks the engine for a reason.
OWN_WAIT_NS = 50_000_000
# How long a waiter polls before it sleeps.
SPIN_NS = 20_000


class Engine:
    """Runs one ring: its segment, the pool of workers that fills it, and each epoch's batches."""

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place
        self,
        plan: Plan,
        source: Source,
        options: Options,
        stats: Stats,
        tuner: Tuner | None,
        launcher: Launcher | None,
        sent: SharedDataset | None = None,
    ) -> None:
        """Reserve the memory of the plan, or of the tuner's first setting; start no worker."""
        self._forks = Forks.count
        self.on_stop: list[Callable[[], None]] = []
        """Called by `stop`, in order, when the workers have ended and slots are still mapped."""
        self.plan, self.source, self.options, self.stats = plan, source, options, stats
        shared = plan.workers > 0 and options.backend == "process"
        at_first = tuner.setting if tuner else Setting(plan.workers - options.bridges, plan.slots)
        spin_ns = SPIN_NS if shared and usable_cpus() > 1 else 0
        with ExitStack() as undo:
            self.segment = Segment(plan.sizes, spin_ns, at_first.slots if tuner else None)
            undo.callback(self.segment.close)
            self.ring = self.segment.open()
            self.ring.become_consumer(plan.lookahead, options.max_attempts)
            self.streams = source.keep(plan.store, shared=shared)
            undo.callback(self.streams.close)
            self.pool: Pool = make_pool(
                options.backend,
                PoolConfig(
                    ring=self.ring,
                    segment=self.segment,
                    source=source,
                    offsets=plan.layout.offsets,
                    workers=plan.workers,
                    start_method=options.start_method,
                    max_attempts=options.max_attempts,
                    initial_workers=at_first.workers,
                    timeout_s=options.timeout_s,
                    launcher=launcher,
                    states=self.streams.states,
                    remote=options.remote,
                    is_auto="workers" in options.auto,
                    sent=sent,
                ),
            )
            undo.pop_all()
        self.fields = Fields(source.spec, plan.layout.offsets)
        self.intake = Intake(self.ring, self.fields, source.spec, plan.layout.rows)
        self.observer = Observer(self.ring)
        self.lease_tracker = LeaseTracker()
        self.ledger = Ledger(stats, self.observer)
        self.resizer: Resizer | None = None
        if tuner is not None:
            from ringfeed.engine.autotune import Resizer  # noqa: PLC0415 - only where it is needed

            self.resizer = Resizer(tuner, self)
        self.lookahead = Lookahead(self.ring, source, plan, drops=options.drop_remainder)
        self._epoch_id = 0
        self._feed: Any = None  # C code that takes this epoch's batches: see `attach`
        self._is_starting = (
            plan.workers > 0
        )  # no batch has come yet of workers that are being started
        self._set_own_wait()

    @property
    def timeout_ns(self) -> int:
        """How long to wait for a batch."""
        timeout_s = self.options.timeout_s
        return FOREVER_NS if timeout_s is None else int(min(timeout_s * 1e9, FOREVER_NS))

    def count(self) -> Stats:
        """Update and return the statistics; any thread may call.

        A forked child gets the statistics at the fork.
        """
        waiting, rows = self.intake.kept, self.intake.kept_rows
        self.ledger.count(
            self.pool.restarts, None if waiting is None else waiting.rows if rows is None else rows
        )
        return self.stats

    # ---- epochs ----

    def start(self, dataset: Any) -> None:
        """Start the workers; the statistics count the time that forking takes."""
        self.ledger.launch.start()
        try:
            self.pool.start(dataset)
        finally:
            self.ledger.launch.stop()

    def update(self, changed: Any) -> None:
        """Send the changed dataset to the workers.

        Batches read from the old dataset are dropped.
        """
        # First: a worker that starts after the update has no ticket of an older dataset.
        self.cancel()
        self.pool.update(changed)

    def is_ahead(self, number: int) -> bool:
        """Whether this epoch is planned from its start, and all earlier batches are handed out."""
        return self.lookahead.is_beyond(number) and not self.waiting

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
        """Begin an epoch for the iterator with this id, or continue it if `is_ahead`.

        The rest of the previous epoch is cancelled. ``done``: batches of ``progress`` that are
        finished already. ``following``: returns the order of an epoch by its number, if the next
        epoch may be read early.
        """
        self.lookahead.version = self.pool.version
        if not self.is_ahead(number):
            self.cancel()
        most = self.plan.lookahead if pure else order.most_ahead or self.ring.slots
        self.lookahead.begin(order, number, most, following)
        progress.planned_before = self.ring.plan_taken - done
        if epoch_id != self._epoch_id:
            self.intake.error = None  # of an epoch before
        self._epoch_id = epoch_id
        self.ledger.epochs.start()
        if "settler" in vars(self):
            self.settler.begin()
        self.ring.begin(epoch_id)
        self._set_due()
        if not order.whole.waits:
            self.lookahead.top_up()

    def cancel(self) -> None:
        """Break the epoch off."""
        self.intake.discard()
        self._break_off()

    def _break_off(self) -> None:
        """Cancel the planned batches, so that no more come."""
        self.ledger.epochs.stop()
        self.ring.cancel()
        self.lookahead.clear()

    def stop(self) -> None:
        """End the workers and close the segment; views stay valid.

        If Ctrl-C interrupts this call, the next one finishes its work.
        """
        with (
            ExitStack() as ends
        ):  # the last to be named is the first; each comes about whatever the others raise
            ends.callback(self.streams.close)
            ends.callback(self.segment.close)
            ends.callback(self.intake.let_go)
            for end in reversed(self.on_stop):
                ends.callback(end)
            ends.callback(self.count)
            ends.callback(self._detach)
            ends.callback(self.ledger.epochs.stop)
            self.pool.stop()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the workers if `stop` was interrupted; at the exit they end anyway."""
        pool = None if is_exiting() else getattr(self, "pool", None)
        if pool is not None and self._forks == Forks.count:
            pool.request_stop()

    # ---- how far it is ----

    @property
    def waiting(self) -> int:
        """How many batches the order gave that are not handed out yet."""
        return self.ring.left + self.lookahead.kept + (self.intake.kept is not None)

    # ---- C code that takes ----

    def attach(self, feed: Any) -> None:
        """Let C code take the batches of this epoch, unless they are filled here.

        ``feed.attach`` gets the ring and how long to wait; ``feed.detach`` ends it.
        """
        self._detach()
        if self.plan.workers:
            self._feed = feed
            self._end_start()  # C code does not tell the wait for the first batch from others
            feed.attach(self.ring, self.timeout_ns)

    def _detach(self) -> None:
        if self._feed is not None:
            self._feed.detach()
            self._feed = None

    # ---- what the ring does not decide ----

    def resolve(self, answer: int, build: BuildBatch | None = None) -> None:
        """Do what the ring's answer requires; then it has a batch, or another answer.

        Raises the error that ends the epoch.
        """
        if self.intake.kept is not None:
            self._settle(build)  # Ctrl-C came while the batch was settled
        elif answer == _ring.DUE:
            self._look(build)
        elif answer == _ring.PLAN or (answer == _ring.DRY and not self.lookahead.is_planned):
            self.lookahead.top_up()
        elif answer in (_ring.DRY, _ring.STALE):
            if not self.ring.left:  # else it was planned anew since the ring was asked
                self.ledger.epochs.stop()
                raise StopIteration
        elif answer in (_ring.GAPS, _ring.CROWDED):
            # Unless another thread has it, or has found an error, which is raised before.
            if self.intake.error is None and self.intake.take(self._epoch_id):
                self._settle(build)
        elif answer in (_ring.PENDING, _ring.HELD):
            self.wait(build)
        else:
            self._judge(answer)

    def _look(self, build: BuildBatch | None) -> None:
        """Let the tuner look, and record where the batch is taken, if these are in use."""
        if self.resizer is not None:
            self.resizer.look()
        self._set_due()
        if Debug.since_ns:
            self.lookahead.top_up()
            answer = self.ring.look()
            self.resolve(_ring.GAPS if answer == _ring.TAKEABLE else answer, build)

    def _set_due(self) -> None:
        resizer = self.resizer
        self.ring.set_due(-1 if self.intake.error is not None else resizer.due_ns if resizer else 0)

    @cached_property
    def settler(self) -> Settler:
        """The `Settler`, for batches that the ring does not hand out by itself."""
        from ringfeed.engine.settling import Settler  # noqa: PLC0415 - few loops need it

        return Settler(self)

    def _settle(self, build: BuildBatch | None) -> None:
        """Settle the taken batch: leave out failed rows, and decide whether to copy it."""
        if self.intake.kept_rows is None and self.settler.find_rows():
            self._break_off()
        if self.intake.kept_rows is not None and not self.intake.settled:
            self.settler.find_place(build)

    def _judge(self, answer: int) -> None:
        """Raise the error that ended the ring, if any."""
        if answer == _ring.STOPPED:
            raise ClosedError("the loader was closed while this iterator waited")
        if answer not in (_ring.ALARMED, _ring.DAMAGED):
            return
        if damage := self.ring.damage():  # first: it may be why workers do not start, or are stuck
            from ringfeed.monitor.faults import overwritten  # noqa: PLC0415 - for errors only

            self.pool.failure = overwritten(damage, self.source)
        if self.pool.failure is not None:
            raise self.pool.failure

    # ---- the wait for a batch ----

    def wait(self, build: BuildBatch | None) -> None:
        """Wait for the head batch, and for slots to fill."""
        began_ns = _ring.now_ns()
        if self._is_starting and self.observer.consumer().batches:
            self._note_start()
        starting = self._is_starting
        try:
            self._wait_once(build)
        finally:
            stall_ns = _ring.now_ns() - began_ns
            self.stats.startup_s += starting * stall_ns / 1e9
            is_computing = None if starting else getattr(build, "is_computing", None)
            self.ring.note_stall(0 if is_computing and is_computing() else stall_ns)

    def _wait_once(self, build: BuildBatch | None) -> None:
        ring = self.ring
        answer = ring.look()
        while answer == _ring.PENDING and self.pool.step():
            answer = ring.look()
        if answer == _ring.HELD:
            self.settler.wait_for_views(build)
            ring.waited_ns = 0
        elif answer == _ring.PENDING:
            answer = self._wait_for_workers()
        if answer == _ring.TAKEABLE and self._is_starting:
            self._note_start()
        self._judge(answer)

    def _wait_for_workers(self) -> int:
        """Wait for the head batch; after `timeout_s` raise StallError, or end stuck workers."""
        ring, streams, timeout_ns = self.ring, self.streams, self.timeout_ns
        answer = ring.wait(streams.look_in_ns(timeout_ns - ring.waited_ns), epoch_id=self._epoch_id)
        streams.look()
        if answer == _ring.PENDING and ring.waited_ns >= timeout_ns:
            self._judge(ring.look())  # what is damaged may be why workers are stuck
            ring.waited_ns = 0  # after an error the next wait is as long
            ring.waited_ns = timeout_ns - self.stalled()
        return answer

    def stalled(self) -> int:
        """Raise StallError, or end the workers that are stuck.

        Returns the time until the next look.
        """
        options = self.options
        pause_ns = self.pool.kill_stuck(self.timeout_ns) if options.on_stall == "restart" else 0
        if pause_ns:
            return pause_ns
        from ringfeed.monitor.faults import stalled  # noqa: PLC0415 - for errors only

        are_forked = options.sends and options.start_method == "fork"
        raise stalled(
            self.observer,
            self.source,
            self.pool.stalled(),
            options.timeout_s,
            are_forked=are_forked,
        )

    def _note_start(self) -> None:
        """Note that the first workers have filled a batch; later waits are not for their start."""
        self.stats.startup_busy_s += sum(worker.busy_ns for worker in self.observer.workers()) / 1e9
        self._end_start()

    def _end_start(self) -> None:
        self._is_starting = False
        self._set_own_wait()

    def _set_own_wait(self) -> None:
        """Set an iterator's own wait: 0 while the first workers start, or without workers."""
        waits = self.plan.workers and not self._is_starting
        self.intake.own_wait_ns = min(OWN_WAIT_NS, self.timeout_ns) if waits else 0


def memory_of(plan: Plan, engine: Engine | None) -> Memory:
    """Ask the kernel about the memory of a loader, from any thread.

    A loader without an engine takes none.
    """
    from ringfeed.monitor.memory import Held, Memory, look  # noqa: PLC0415 - if needed

    if engine is None:
        return Memory(plan)
    now_ns, tracker, pool = _ring.now_ns(), engine.lease_tracker, engine.pool

    def descriptors() -> list[int]:
        fds = (
            engine.segment.control_fd,
            engine.segment.slots_fd,
            engine.streams.fd,
            *pool.descriptors(),
        )
        return [fd for fd in fds if fd >= 0]

    held = [
        Held((now_ns - at_ns) / 1e9, tracker.where_taken(at_ns))
        for at_ns in engine.observer.held_since_ns()
    ]
    found = look(plan, descriptors, pool.pids(), held, pool.forkservers())
    return found if HAS_PROCESSES else replace(found, reserved=sum(engine.segment.sizes))
