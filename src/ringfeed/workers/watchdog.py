"""Tracks each worker's progress and finds workers that exceed the timeout."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ringfeed.monitor._snapshot import Observer
    from ringfeed.ring import _ring


PAUSE_NS = 10**9
"""A worker that has filled samples and pauses no longer than this counts as working: the machine may be busy."""


class Watchdog:
    """The workers' progress, by their ids."""

    def __init__(self, ring: _ring.Ring, observer: Observer) -> None:
        """Begin with no worker."""
        self.timed_out: set[int] = set()  # ended because they were stuck, or could not be told
        self._ring = ring
        self._observer = observer
        self._started_ns = [0] * ring.ids  # when each was sent its `WorkerConfig`
        self._slow_starts = [0] * ring.ids  # in a row: workers ended because they took too long to start
        self._before = [(0, 0)] * ring.ids  # samples and claims of workers that had the id before
        self._filled = 0  # samples of all workers, when `progress` was asked last
        self._progress_ns = 0  # when it last found any

    def begin(self, number: int) -> None:
        """Note that a worker is told to start."""
        self._started_ns[number] = time.monotonic_ns()
        worker = self._observer.worker(number)
        self._before[number] = worker.samples, worker.tickets

    def is_starting(self, number: int) -> bool:
        """Whether a worker has claimed nothing yet, or had not when it died."""
        return self._observer.worker(number).tickets == self._before[number][1]

    def is_fresh(self, number: int) -> bool:
        """Whether a worker has filled nothing yet, or had not when it died."""
        return self._observer.worker(number).samples == self._before[number][0]

    def progress(self, working: Collection[int]) -> bool:
        """Whether samples were filled since the last call, or the workers ``working`` fill some, or pause up to 1 s."""
        workers = self._observer.workers()
        before, self._filled = self._filled, sum(worker.samples for worker in workers)
        now_ns = time.monotonic_ns()
        if self._filled != before or any(workers[number].since_ns for number in working):
            self._progress_ns = now_ns
            return True
        return now_ns - self._progress_ns < PAUSE_NS and not all(map(self.is_fresh, working))

    def inside(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the sample that each of these workers is inside of; without those that are inside none."""
        found = {number: self._observer.worker(number).inside for number in numbers}
        return {number: index for number, index in found.items() if index is not None}

    def mark_timed_out(self, numbers: Iterable[int]) -> None:
        """Note the workers that are killed for being stuck."""
        for number in numbers:
            self._slow_starts[number] = self._slow_starts[number] + 1 if self.is_starting(number) else 0
            self.timed_out.add(number)

    def forget(self, number: int) -> None:
        """Forget the worker with this id; the next one begins anew."""
        self.timed_out.discard(number)
        self._slow_starts[number] = 0

    def stuck(self, streams: Mapping[int, int], timeout_ns: int) -> tuple[list[int], int]:
        """Return the workers to kill now, and in how many ns to look again; 0: there is none to look at."""
        due_ns, now_ns = self.due_ns(streams, timeout_ns), time.monotonic_ns()
        stuck = [number for number, at_ns in due_ns.items() if at_ns <= now_ns]
        if stuck:
            return stuck, timeout_ns
        return [], min(due_ns.values()) - now_ns if due_ns else 0

    def due_ns(self, streams: Mapping[int, int], timeout_ns: int) -> dict[int, int]:
        """Say when to kill each worker that is inside a sample; or each, where a batch waits and no worker claims it.

        Of the latter only workers whose stream the head batch is of: the others have nothing to do. A worker that still
        starts is given twice as long as the one before it, or none would ever get there where a start takes longer
        than a batch may. ``streams``: of each worker.
        """
        claimed_ns = {number: self._observer.worker(number).since_ns for number in streams}
        busy = {number: since_ns + timeout_ns for number, since_ns in claimed_ns.items() if since_ns}
        if busy or "filling" not in self._observer.states():
            return busy
        head = self._ring.head_stream
        return {
            number: self._started_ns[number] + (timeout_ns << self._slow_starts[number])
            if self.is_starting(number)
            else 0
            for number, stream in streams.items()
            if head in (0, stream)
        }
