"""The loader's pool with a cluster: worker processes here, and bridges, supervised alike.

A bridge has an id beyond those of the workers here. Its death is a worker's death: the watcher
reaps what it held, and starts another. But it says nothing of a sample, so bridges are no workers
of the roster, and the rule for when to stop is their own (`Mixed._note_death`).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.ray.board import Board, lines_of
from ringfeed.ray.options import BridgeTerms, Ray
from ringfeed.ray.pace import set_pace
from ringfeed.ray.stats import RemoteStats, verdict_with
from ringfeed.ring.segment import worker_ids
from ringfeed.workers.process import Spawner, WorkerProcess
from ringfeed.workers.processes import Processes
from ringfeed.workers.roster import EARLY_DEATHS, Roster

if TYPE_CHECKING:
    from ringfeed.monitor.stats import Stats
    from ringfeed.workers.pool import PoolConfig


class Mixed(Processes):
    """Worker processes here, and bridges to a cluster."""

    def __init__(self, config: PoolConfig, ray: Ray) -> None:
        """Prepare ``config.workers`` processes, the last of which are bridges."""
        self._ray, self._local = ray, config.workers - ray.bridges
        super().__init__(config)
        first = worker_ids(self._local) if self._local else 0
        # Workers here come first, and an iterable has one reader.
        has_reader = config.source.streams == 1 and self._local > 0
        bridges = range(first, first + (0 if has_reader else ray.bridges))
        self._roster = Roster(config.ring, self._observer, self._policy, first)
        self._bridges: dict[int, WorkerProcess] = {}
        self._bridge_launcher = Spawner("ringfeed.ray.bridge")
        self._bridge_restarts = 0
        self._early_deaths = 0  # in a row, of bridges that had landed nothing
        self._no_bridges: RingfeedError | None = None  # why there are none any more
        self._boards = {number: Board() for number in bridges}
        self._inquiries = 0  # into what actors are at

    # ---- starting ----

    def start(self, dataset: Any) -> None:
        """Start bridges first, whose interpreters take longest; then the workers here."""
        self._set_pace()
        self._bridge_launcher.begin(len(self._boards))
        super().start(dataset)

    def _processes(self) -> dict[int, WorkerProcess]:
        return {**super()._processes(), **self._bridges}

    def _fill_up(self) -> None:
        super()._fill_up()
        for number in self._boards:
            if number in self._bridges or self._no_bridges or self._stopping:
                continue
            bridge = self._bridges[number] = self._bridge_launcher.start()
            try:
                self._introduce(number, bridge)
            except BaseException:  # Ctrl-C: it would wait for its first message for ever
                bridge.kill()
                raise
        self._set_pace()

    def _replace(self, numbers: list[int]) -> None:
        super()._replace(numbers)
        self._set_pace()

    def _set_pace(self) -> None:
        """Set how batches are cut into tickets, for workers here and for the calls of actors."""
        config, here = self._config, self._policy.wanted
        there = sum(board.read().get("there", 0) for board in self._boards.values())
        config.ring.set_worker_count(here + self._ray.bridges)
        set_pace(config.ring, config.source, self._ray, workers_here=here, there=there)

    def _introduce(self, number: int, bridge: WorkerProcess) -> None:
        """Send a bridge its first message."""
        config = self._config
        place = number - min(self._boards)
        stream = 0 if config.source.streams == 0 or not self._local else self._local + 1 + place
        terms = BridgeTerms(
            ray=self._ray,
            address=self._ray.found_address(),
            number=place,
            local=self._local,
            finds_local=config.is_auto,
            stream=stream,
            max_attempts=config.max_attempts,
        )
        assert self._wake_fd is not None
        fds = self._boards[number].memfd.fileno(), self._wake_fd.fileno()
        self._send_first(number, bridge, self._sent, fds, remote=terms)

    # ---- deaths ----

    def _on_exit(self, number: int, reaped: tuple[Any, ...]) -> None:
        if number not in self._bridges:
            super()._on_exit(number, reaped)
            return
        self._boards[number].write({})  # what it says holds no more
        failure = self._note_death(self._bridges.pop(number))
        if failure is None or self._no_bridges is not None:
            return
        self._no_bridges = failure
        if not self._local:
            raise failure
        warnings.warn(
            f"training goes on with the workers here alone: {failure}", UserWarning, stacklevel=2
        )

    def _note_death(self, bridge: WorkerProcess) -> RingfeedError | None:
        """Count the death of a bridge; return why none is started again."""
        exit_reason, said = bridge.exit_reason(), bridge.startup_error()
        self._early_deaths = self._early_deaths + 1 if self._roster.is_fresh(bridge) else 0
        if said is not None and isinstance(said.__cause__, RingfeedError):
            return said.__cause__
        self._bridge_restarts += 1
        if self._early_deaths < EARLY_DEATHS:
            return None
        message = (
            f"{EARLY_DEATHS} bridges to the cluster in a row ended before any row came through "
            f"them; the last {exit_reason}; look at its output above, and at `ray status`"
        )
        failure = WorkerError(message)
        failure.__cause__ = said
        return failure

    @property
    def restarts(self) -> int:
        """How many workers and bridges were started in the place of dead ones."""
        return super().restarts + self._bridge_restarts

    def kill_stuck(self, timeout_ns: int) -> int:
        """End the workers here that are stuck for so long, and have bridges end such actors."""
        pause_ns = super().kill_stuck(timeout_ns)
        has_bridges = self._tell_bridges(stuck=timeout_ns / 1e9)
        return min(pause_ns or timeout_ns, timeout_ns) if has_bridges else pause_ns

    def note_shortage(self) -> None:
        """Have bridges hire actors: more workers here do not help."""
        self._tell_bridges(grow=True)

    def _tell_bridges(self, **message: object) -> bool:
        """Send the bridges a message; returns whether there are any."""
        with self._lock:
            bridges = [*self._bridges.values()]
        for bridge in bridges:
            bridge.send(message, ())
        return bool(bridges)

    # ---- looking on ----

    def stalled(self) -> list[str]:
        """Describe each worker; below them, what each actor is at."""
        self._inquiries += 1
        self._tell_bridges(inquiry=self._inquiries)
        lines = super().stalled()
        told = lines_of(self._boards.values(), self._inquiries, self._config.source.describe)
        return ["\n".join([line, *told]) if line is lines[-1] else line for line in lines]

    def _describe(self, number: int, runs_as: str, stack: str = "") -> str:
        is_busy = number in self._boards and self._boards[number].read().get("actors")
        runs_as = f"the bridge, {runs_as}" if number in self._boards else runs_as
        return super()._describe(number, runs_as, "" if is_busy else stack)

    def tell(self, stats: Stats) -> None:
        """Add to statistics what the bridges say of themselves and their actors."""
        stats.remote = RemoteStats.of(board.read() for board in self._boards.values())
        stats.verdict = verdict_with(stats, stats.remote, stats.verdict)

    # ---- stopping ----

    def _close(self) -> None:
        super()._close()
        with self._lock:
            self._bridges.clear()
            self._bridge_launcher.close()
            for board in self._boards.values():
                board.close()
