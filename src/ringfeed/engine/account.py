"""What a loader says of what it has done, and of what that means: asked from any thread, while it runs or after."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ringfeed.monitor.bottleneck import STARTUP_S, verdict
from ringfeed.monitor.memory import Memory, frameworks_in
from ringfeed.system.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.monitor.bottleneck import Verdict
    from ringfeed.monitor.stats import Stats

_Answer = TypeVar("_Answer")


class Runner(Protocol):
    """What is asked of that which runs a loader's epochs."""

    plan: Any
    options: Any
    tuner: Any
    engine: Any

    def count(self) -> Stats:
        """Return the statistics, brought up to date."""


class Account:
    """What one loader says."""

    def __init__(self, runner: Runner) -> None:
        """Ask what runs the loader's epochs."""
        self._runner = runner
        self._imports: Sequence[str] = ()  # frameworks that workers were slow to import

    def stats(self) -> Stats:
        """Return what has been done so far, and what it means."""
        runner, plan = self._runner, self._runner.plan
        stats = runner.count()
        stats.look_with(self.asked(lambda engine: engine.parts.memory(plan), Memory(plan)))
        stats.tuning = [] if runner.tuner is None else list(runner.tuner.history)
        stats.verdict = self.verdict(stats)
        engine = runner.engine
        if runner.options.remote is not None and engine is not None:
            from ringfeed.monitor.remote import tell  # noqa: PLC0415 - few need it

            tell(stats, engine.pool.said())
        return stats

    def verdict(self, stats: Stats) -> Verdict:
        """Say in words what some statistics of this loader mean."""
        plan, options, tuner = self._runner.plan, self._runner.options, self._runner.tuner
        return verdict(
            stats,
            workers=options.workers if tuner is None else tuner.setting.workers,
            slots=plan.slots if tuner is None else tuner.setting.slots,
            slot_size=plan.slot_size,
            cpus=usable_cpus(),
            concurrency=options.concurrency,
            readers=options.readers,
            tuned="" if tuner is None else tuner.why,
            imported=self._imported(stats),
        )

    def _imported(self, stats: Stats) -> Sequence[str]:
        """Return the frameworks that workers import, where their start takes long."""
        engine = self._runner.engine
        started = self._runner.options.start_method != "fork"  # a forked worker maps what this process has imported
        slow = stats.launch_s + stats.startup_s >= STARTUP_S or not stats.batches
        if engine is not None and started and slow and not self._imports:
            self._imports = frameworks_in(engine.pool.pids())
        return self._imports

    def asked(self, ask: Callable[[Any], _Answer], otherwise: _Answer) -> Callable[[], _Answer]:
        """Return what asks the engine that runs then, if there is one; it does not keep what runs the epochs."""
        runner = weakref.ref(self._runner)

        def answer() -> _Answer:
            found = runner()
            engine = None if found is None else found.engine
            return otherwise if engine is None else ask(engine)

        return answer
