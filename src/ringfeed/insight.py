"""What can be seen of a loader while it runs."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ringfeed.monitor.bottleneck import STARTUP_S, verdict
from ringfeed.monitor.memory import Memory, frameworks_in
from ringfeed.monitor.trace import Trace
from ringfeed.ring.machine import usable_cpus

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from ringfeed.engine.autotune import Tuner
    from ringfeed.engine.engine import Engine
    from ringfeed.engine.options import Settings
    from ringfeed.engine.plan import Plan
    from ringfeed.monitor.stats import Stats
    from ringfeed.ring._snapshot import Observer


_in_use: weakref.WeakSet[Insight] = weakref.WeakSet()


def loaders_in_use() -> tuple[Insight, ...]:
    """Return the loaders of this process that have begun an epoch."""
    return tuple(_in_use)


class Insight:
    """Statistics, the slots, and a timeline. Safe from any thread."""

    _engine: Engine | None
    _imports: Sequence[str] = ()
    _plan: Plan
    _settings: Settings
    _stats: Stats
    _tuner: Tuner | None

    def _note_use(self) -> None:
        """Count among `loaders_in_use`."""
        _in_use.add(self)

    def stats(self) -> Stats:
        """Return what has been done so far, and what it means; the object is kept up to date by the next call."""
        engine = self._engine
        if engine is not None:
            self._stats = engine.count()
        self._stats.look_with(self._memory())
        plan, tuner = self._plan, self._tuner
        self._stats.tuning = [] if tuner is None else list(tuner.history)
        self._stats.verdict = verdict(
            self._stats,
            workers=self._settings.workers if tuner is None else tuner.setting.workers,
            slots=plan.slots if tuner is None else tuner.setting.slots,
            slot_size=plan.slot_size,
            cpus=usable_cpus(),
            tuned="" if tuner is None else tuner.why,
            imported=self._imported(),
        )
        return self._stats

    def _imported(self) -> Sequence[str]:
        """Return the frameworks that workers import, where their start takes long."""
        stats = self._stats
        started = self._settings.start_method != "fork"  # a forked worker maps what this process has imported
        slow = stats.startup_s >= STARTUP_S or not stats.batches
        if self._engine is not None and started and slow and not self._imports:
            self._imports = frameworks_in(self._engine.worker_pids())
        return self._imports

    def _memory(self) -> Callable[[], Memory]:
        """Return what looks at this loader's memory, and keeps only its plan once it is gone."""
        this, plan = weakref.ref(self), self._plan

        def memory() -> Memory:
            loader = this()
            engine = None if loader is None else loader._engine  # noqa: SLF001 - it is this very object
            return Memory(plan) if engine is None else engine.memory(plan)

        return memory

    def slot_states(self) -> list[str]:
        """Return a word for each slot: free, filling, ready, held or draining."""
        engine = self._engine
        return ["free"] * self._plan.slots if engine is None else engine.observer.states()

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Begin a timeline of the workers, the slots and the consumer, written to ``path`` when it is stopped.

            with loader.trace("run.json"):
                model.fit(loader.to_keras())

        Open the file in https://ui.perfetto.dev or chrome://tracing. A thread looks at the ring every millisecond,
        which takes about one percent of a CPU; nothing else becomes slower. OSError where there can be no such file.
        """
        this = weakref.ref(self)

        def observer() -> Observer | None:
            loader = this()
            engine = None if loader is None else loader._engine  # noqa: SLF001 - it is this very object
            return None if engine is None else engine.observer

        return Trace(observer, path)
