"""Which workers there are, by their ids, how each is getting on, and how many deaths are borne.

    RestartPolicy   the target number of workers, and when a death is the last, in numbers alone
    Roster          the workers, each with what is known of it: a row of `WorkerProcess`

    at work ──asked to leave──▶ leaving ──▶ dead
       ├──dead, and replaced
       └──stuck, or not told of a version──▶ killed ──▶ dead, and replaced
                                               └──not even by SIGKILL──▶ quarantined, and replaced

Workers beyond the most that have filled samples at the same time are optional: the tuner asked for
them, and training can go on without. An error that would end the run lowers the target instead,
while an optional worker is left.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from ringfeed._failure import Death
from ringfeed.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringfeed.monitor._snapshot import Observer
    from ringfeed.ring import _ring
    from ringfeed.workers.process import WorkerProcess

EARLY_DEATHS = 3
# The words of `WorkerProcess.exit_reason` for how the kernel makes room.
FOR_WANT_OF_MEMORY = "was killed by SIGKILL"
PAUSE_NS = 10**9
"""A worker that has filled samples may pause so long and still work, as on a busy machine."""


class RestartPolicy:
    """The target number of workers, and the deaths so far; the owner holds a lock."""

    def __init__(self, initial_workers: int) -> None:
        """Begin with this target, of which no worker is optional."""
        self.wanted = initial_workers
        self.restarts = 0
        self.early_deaths = 0  # in a row
        # The highest target that could be reached, and why.
        self.scaled_down: tuple[int, str] | None = None
        self._proved = initial_workers  # the most workers that have filled samples at the same time

    def resize(self, workers: int) -> None:
        """Set the target, but not above what could be reached before."""
        self.wanted = workers if self.scaled_down is None else min(workers, self.scaled_down[0])
        self._proved = min(self._proved, self.wanted)

    def note_at_work(self, workers: int) -> None:
        """Note how many live workers have filled samples; before a dead one is removed."""
        self._proved = max(self._proved, min(workers, self.wanted))

    def scale_down(self, why: str) -> bool:
        """Lower the target by one, if one worker is optional; False where none is."""
        if self.wanted <= self._proved:
            return False
        self.wanted -= 1
        self.early_deaths = 0
        self.scaled_down = self.wanted, why
        return True

    def count_death(
        self, exit_reason: str, *, starting: bool, fresh: bool, asked: bool, progress: bool
    ) -> None:
        """Count a death that was not asked for by `resize`; raise WorkerError for one too many.

        ``starting``: it had claimed nothing; ``fresh``: it had filled nothing; ``asked``: the
            roster killed it;
        ``progress``: another worker fills slots, so that training goes on.
        """
        if progress and self.wanted <= self._proved:
            # An optional worker that cannot start is given up all the same.
            self.early_deaths = 0
        # A slow start may succeed next time.
        self.early_deaths = self.early_deaths + 1 if starting and not asked else 0
        if exit_reason == FOR_WANT_OF_MEMORY and not asked:
            # The kernel takes the largest, perhaps not the newest.
            want = (
                f"a worker {exit_reason} while another was to start, as it happens when memory is "
                "short"
            )
            if self.scale_down(want) and fresh:
                return
        why = (
            f"{EARLY_DEATHS} workers in a row ended before they filled anything; the last "
            f"{exit_reason}; look at its output above, or try workers=0"
        )
        is_hopeless = self.early_deaths >= EARLY_DEATHS
        if is_hopeless and fresh and self.scale_down(why):
            return
        self.restarts += 1
        if is_hopeless:
            raise WorkerError(why)


class Roster:
    """The workers of a pool. The owner holds a lock, except where it copies `all`.

    Ctrl-C may come between any two steps: a worker is added by ``all[number] = ...``, since a call
    that stored it could be interrupted before it did.
    """

    def __init__(
        self, ring: _ring.Ring, observer: Observer, policy: RestartPolicy, ids: int
    ) -> None:
        """Begin with no worker; ``ids``: the most at a time, those in quarantine included."""
        # Those in quarantine among them: sent SIGKILL, not dead, and replaced.
        self.all: dict[int, WorkerProcess] = {}
        # By batch and row: how the last worker died that tried it.
        self.deaths: dict[tuple[int, int], Death] = {}
        self._ring, self._observer, self._policy, self._ids = ring, observer, policy, ids
        # By id, in a row: workers ended because they took too long to start.
        self._slow_starts: Counter[int] = Counter()
        self._filled = 0  # samples of all workers, when `progress` was asked last
        self._progress_ns = 0  # when it last found any
        # By sample: workers that SIGKILL could not end in it.
        self._unkillable_at: Counter[int | None] = Counter()

    @property
    def workers(self) -> dict[int, WorkerProcess]:
        """All but those in quarantine."""
        return {n: worker for n, worker in [*self.all.items()] if not worker.is_quarantined}

    @property
    def staying(self) -> list[WorkerProcess]:
        """The workers that were not asked to leave."""
        return [worker for worker in self.workers.values() if not worker.is_leaving]

    def missing(self, wanted: int) -> list[int]:
        """Return an id for each missing worker, as far as ids are free."""
        free = [number for number in range(self._ids) if number not in self.all]
        return free[: max(0, wanted - len(self.staying))]

    def let_leave(self, wanted: int) -> list[int]:
        """Have no more than ``wanted`` stay.

        Returns the workers that are to leave, those of earlier calls included.
        """
        for worker in sorted(self.staying, key=lambda worker: worker.number)[wanted:]:
            worker.is_leaving = True
        return [number for number, worker in self.workers.items() if worker.is_leaving]

    def note_at_work(self) -> None:
        """Note how many workers have filled samples; before a dead one is removed."""
        self._policy.note_at_work(sum(not self.is_fresh(worker) for worker in self.staying))

    def remove(self, number: int, given_up: tuple[int, int] | None = None, stage: str = "") -> None:
        """Forget a dead worker and count its death.

        Raise WorkerError where it must not be replaced.

        ``given_up``: the batch and row that are tried no more, because of this death; ``stage``:
        the function of the user's that it came in, if that has all rows at once.
        """
        worker = self.all.pop(number)
        exit_reason, startup_error = worker.exit_reason(), worker.startup_error()
        if worker.is_quarantined:
            return  # it was counted
        if given_up is not None:
            self.deaths[given_up] = Death(exit_reason, stage)
        if worker.is_leaving:
            self._slow_starts[number] = 0
        elif startup_error is None:
            self._count_death(worker, exit_reason)
        elif self.is_fresh(worker) and self._policy.scale_down(str(startup_error)):
            self._slow_starts[number] = 0
        else:
            raise startup_error

    def _count_death(self, worker: WorkerProcess, exit_reason: str) -> None:
        self._policy.count_death(
            exit_reason,
            starting=self.is_starting(worker),
            fresh=self.is_fresh(worker),
            asked=worker.is_killed,
            progress=self.progress(),
        )

    # ---- how each is getting on ----

    def begin(self, number: int, worker: WorkerProcess) -> None:
        """Note that a worker is told to start."""
        before = self._observer.worker(number)
        worker.number, worker.started_ns = number, time.monotonic_ns()
        worker.samples_before, worker.tickets_before = before.samples, before.tickets

    def is_starting(self, worker: WorkerProcess) -> bool:
        """Whether a worker has claimed nothing yet, or had not when it died."""
        return self._observer.worker(worker.number).tickets == worker.tickets_before

    def is_fresh(self, worker: WorkerProcess) -> bool:
        """Whether a worker has filled nothing yet, or had not when it died."""
        return self._observer.worker(worker.number).samples == worker.samples_before

    def progress(self) -> bool:
        """Whether the workers make progress.

        Samples were filled since the last call, or a worker fills some, or pauses for up to 1 s.
        """
        now, workers = self._observer.workers(), self.workers
        before, self._filled = self._filled, sum(worker.samples for worker in now)
        now_ns = time.monotonic_ns()
        if self._filled != before or any(now[number].since_ns for number in workers):
            self._progress_ns = now_ns
            return True
        is_pause = now_ns - self._progress_ns < PAUSE_NS
        return is_pause and not all(map(self.is_fresh, workers.values()))

    def stuck(self, timeout_ns: int) -> tuple[list[WorkerProcess], int]:
        """Return the workers to kill now, and in how many ns to look again.

        0: there is none to look at.
        """
        due_ns, now_ns = self.due_ns(timeout_ns), time.monotonic_ns()
        stuck = [self.all[number] for number, at_ns in due_ns.items() if at_ns <= now_ns]
        if stuck:
            return stuck, timeout_ns
        return [], min(due_ns.values()) - now_ns if due_ns else 0

    def due_ns(self, timeout_ns: int) -> dict[int, int]:
        """Say when to kill each worker that is inside a sample.

        Or each, where a batch waits and no worker claims it.

        Of the latter only workers whose stream the head batch is of: the others have nothing to do.
        A worker that still starts is given twice as long as the one before it, or none would ever
        get there where a start takes longer than a batch may.
        """
        workers = self.workers
        claimed_ns = {number: self._observer.worker(number).since_ns for number in workers}
        busy = {
            number: since_ns + timeout_ns for number, since_ns in claimed_ns.items() if since_ns
        }
        if busy or "filling" not in self._observer.states():
            return busy
        head = self._ring.head_stream
        return {
            number: worker.started_ns + (timeout_ns << self._slow_starts[number])
            if self.is_starting(worker)
            else 0
            for number, worker in workers.items()
            if head in (0, worker.stream)
        }

    # ---- the end ----

    def kill(self, workers: Collection[WorkerProcess], timeout_s: float) -> list[WorkerProcess]:
        """Send workers SIGKILL; returns those that are not dead after so long."""
        for worker in workers:
            slow_starts = self._slow_starts[worker.number] + 1
            self._slow_starts[worker.number] = slow_starts if self.is_starting(worker) else 0
            worker.is_killed = True
            worker.killed_inside = self._observer.worker(worker.number).inside
            worker.kill()
        deadline = time.monotonic() + timeout_s
        return [
            worker
            for worker in workers
            if not worker.is_dead(max(0.0, deadline - time.monotonic()))
        ]

    def quarantine(self, workers: Collection[WorkerProcess]) -> None:
        """Set workers apart that SIGKILL could not end."""
        for worker in workers:
            if worker.killed_inside is not None:
                self._unkillable_at[worker.killed_inside] += 1
            worker.is_quarantined = True

    def most_unkillable_in(self, workers: Collection[WorkerProcess]) -> int:
        """Say how many workers that SIGKILL cannot end the worst of their samples has cost."""
        inside = (self._observer.worker(worker.number).inside for worker in workers)
        return max((self._unkillable_at[index] for index in inside), default=0)
