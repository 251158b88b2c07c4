"""What one running ring is made of: reserved together, looked at from any thread, closed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.engine._iterator import Intake
from ringfeed.engine.copy_policy import CopyPolicy
from ringfeed.monitor._snapshot import Observer
from ringfeed.monitor.lease_tracker import LeaseTracker
from ringfeed.monitor.memory import Held, Memory, look
from ringfeed.monitor.stats import Ledger, Setting
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec._fields import Fields
from ringfeed.system.machine import usable_cpus
from ringfeed.workers.backends import make_pool
from ringfeed.workers.pool import PoolConfig

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.engine.autotune import Tuner
    from ringfeed.engine.options import Options
    from ringfeed.engine.plan import Plan
    from ringfeed.engine.resizer import Resizer
    from ringfeed.monitor.stats import Stats
    from ringfeed.transport.shared_dataset import SharedDataset
    from ringfeed.workers.pool import Pool
    from ringfeed.workers.process import Launcher

FOREVER_NS = 2**62
SPIN_NS = 20_000  # that a waiter looks again before it sleeps


class Parts:
    """A segment, its ring, the pool that fills it, and what watches them."""

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
        """Reserve the plan's memory, or with a tuner as much of it as it begins with; no worker runs yet."""
        self.plan, self.source, self.options, self.stats = plan, source, options, stats
        shared = plan.workers > 0 and options.backend == "process"
        at_first = tuner.setting if tuner else Setting(plan.workers - options.bridges, plan.slots)
        spin_ns = SPIN_NS if shared and usable_cpus() > 1 else 0
        self.segment = Segment(plan.sizes, spin_ns, at_first.slots if tuner else None)
        try:
            self.ring = self.segment.open()
            self.ring.become_consumer(plan.lookahead, options.max_attempts)
            self.streams = source.keep(plan.store, shared=shared)
        except BaseException:
            self.segment.close()
            raise
        try:
            self.pool = self._make_pool(at_first.workers, launcher, sent)
        except BaseException:
            self.close()
            raise
        self.fields = Fields(source.spec, plan.layout.offsets)
        self.intake = Intake(self.ring, self.fields, source.spec, plan.layout.rows)
        self.observer = Observer(self.ring)
        self.lease_tracker = LeaseTracker()
        self.ledger = Ledger(stats, self.observer)
        self.resizer: Resizer | None = None
        if tuner is not None:
            from ringfeed.engine.resizer import Resizer  # noqa: PLC0415 - only where it is needed

            self.resizer = Resizer(tuner, self.segment, self.ring, self.pool, self.count)
        self.copy_policy = CopyPolicy(self.ring, self.lease_tracker, self.resizer, self.timeout_ns)

    def _make_pool(self, at_first: int, launcher: Launcher | None, sent: SharedDataset | None) -> Pool:
        options, plan = self.options, self.plan
        what = self.ring, self.segment, self.source, plan.layout.offsets, plan.workers
        limits = options.start_method, options.max_restarts, options.max_attempts, at_first, options.timeout_s
        is_auto = "workers" in options.auto
        config = PoolConfig(*what, *limits, launcher, self.streams.states, options.remote, is_auto, sent)
        return make_pool(options.backend, config)

    def close(self) -> None:
        """Give the memory back; views stay valid."""
        self.segment.close()
        self.streams.close()

    @property
    def timeout_ns(self) -> int:
        """How long a batch is waited for."""
        timeout_s = self.options.timeout_s
        return FOREVER_NS if timeout_s is None else int(min(timeout_s * 1e9, FOREVER_NS))

    # ---- looking on ----

    def count(self) -> Stats:
        """Return the statistics, brought up to date; in a forked child as they were."""
        waiting, rows = self.intake.kept, self.intake.kept_rows
        self.ledger.count(self.pool.restarts, None if waiting is None else waiting.rows if rows is None else rows)
        return self.stats

    def memory(self, plan: Plan) -> Memory:
        """Ask the kernel about the memory of this loader; at any moment, from any thread."""
        now_ns, tracker = _ring.now_ns(), self.lease_tracker
        held = [Held((now_ns - at_ns) / 1e9, tracker.where_taken(at_ns)) for at_ns in self.observer.held_since_ns()]
        return look(plan, self._descriptors, self.pool.pids(), held, self.pool.forkservers())

    def _descriptors(self) -> list[int]:
        fds = (self.segment.control_fd, self.segment.slots_fd, self.streams.fd, *self.pool.descriptors())
        return [fd for fd in fds if fd >= 0]
