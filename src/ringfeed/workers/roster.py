"""Which workers there are, by their ids, how each is getting on, and how many deaths are borne.

    RestartPolicy   the target number of workers, and when a death is the last, in numbers alone
    Roster          the workers at work, leaving or in quarantine: how each is getting on, and how
                    the others ended

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
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

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
    """The workers of a pool. The owner holds a lock, except where it asks for `everyone`.

    Ctrl-C may come between any two steps: a worker is added by ``workers[number] = ...``, since a
    call that stored it could be interrupted before it did. It is quarantined before it is removed,
    so that `everyone` always finds it.
    """

    def __init__(self, ring: _ring.Ring, observer: Observer, policy: RestartPolicy) -> None:
        """Begin with no worker."""
        self.workers: dict[int, WorkerProcess] = {}
        self.leaving: set[int] = set()  # of the workers: asked to leave, and not replaced
        self.timed_out: set[int] = set()  # killed since they were stuck, or could not be told
        # Sent SIGKILL, not dead, and replaced: their ids stay theirs.
        self.quarantined: dict[int, WorkerProcess] = {}
        # By batch and row: how the last worker died that tried it.
        self.deaths: dict[tuple[int, int], Death] = {}
        self._ring, self._observer, self._policy = ring, observer, policy
        self._ids = ring.ids  # the most workers at a time, those in quarantine included
        self._started_ns = [0] * ring.ids  # when each was sent its first message
        # In a row: workers ended because they took too long to start.
        self._slow_starts = [0] * ring.ids
        # Samples and claims of workers that had the id before.
        self._before = [(0, 0)] * ring.ids
        self._filled = 0  # samples of all workers, when `progress` was asked last
        self._progress_ns = 0  # when it last found any
        # By sample: workers that SIGKILL could not end in it.
        self._unkillable_at: Counter[int] = Counter()

    @property
    def staying(self) -> AbstractSet[int]:
        """The workers that were not asked to leave."""
        return self.workers.keys() - self.leaving

    @property
    def readers(self) -> Collection[int]:
        """The workers that read samples themselves."""
        return self.workers

    def everyone(self) -> list[WorkerProcess]:
        """Return all that may be alive.

        Without the lock, too: list() of a dict's view is one step.
        """
        return [*list(self.workers.values()), *list(self.quarantined.values())]

    def pidfds(self) -> dict[int, int]:
        """Return the ids of all that may be alive, by the descriptor that tells of their end."""
        return {
            worker.pidfd: number
            for number, worker in (*self.workers.items(), *self.quarantined.items())
        }

    def missing(self, wanted: int) -> list[int]:
        """Return an id for each missing worker, as far as ids are free.

        Workers in quarantine keep theirs.
        """
        free = [
            number
            for number in range(self._ids)
            if number not in {**self.workers, **self.quarantined}
        ]
        return free[: max(0, wanted - len(self.staying))]

    def let_leave(self, wanted: int) -> AbstractSet[int]:
        """Have no more than ``wanted`` stay.

        Returns the workers that are to leave, those of earlier calls included.
        """
        self.leaving.update(sorted(self.staying)[wanted:])
        return self.leaving & self.workers.keys()

    def note_at_work(self) -> None:
        """Note how many workers have filled samples; before a dead one is removed."""
        self._policy.note_at_work(sum(not self.is_fresh(number) for number in self.staying))

    def remove(self, number: int, given_up: tuple[int, int] | None = None, stage: str = "") -> None:
        """Forget a dead worker and count its death.

        Raise WorkerError where it must not be replaced.

        ``given_up``: the batch and row that are tried no more, because of this death; ``stage``:
        the function of the user's that it came in, if that has all rows at once.
        """
        if number in self.quarantined:
            self.quarantined.pop(number).exit_reason()
            self.timed_out.discard(number)
            return
        worker = self.workers.pop(number)
        startup_error = worker.startup_error()
        exit_reason = worker.exit_reason()
        if given_up is not None:
            self.deaths[given_up] = Death(exit_reason, stage)
        if number in self.leaving:
            self.leaving.discard(number)
            self.forget(number)
        elif startup_error is None:
            self._count_death(number, exit_reason)
        elif self.is_fresh(number) and self._policy.scale_down(str(startup_error)):
            self.forget(number)
        else:
            raise startup_error

    def _count_death(self, number: int, exit_reason: str) -> None:
        asked = number in self.timed_out
        self.timed_out.discard(number)
        self._policy.count_death(
            exit_reason,
            starting=self.is_starting(number),
            fresh=self.is_fresh(number),
            asked=asked,
            progress=self.progress(self.workers),
        )

    # ---- how each is getting on ----

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
        """Whether the workers make progress.

        Samples were filled since the last call, or the workers ``working`` fill some, or pause for
        up to 1 s.
        """
        workers = self._observer.workers()
        before, self._filled = self._filled, sum(worker.samples for worker in workers)
        now_ns = time.monotonic_ns()
        if self._filled != before or any(workers[number].since_ns for number in working):
            self._progress_ns = now_ns
            return True
        return now_ns - self._progress_ns < PAUSE_NS and not all(map(self.is_fresh, working))

    def inside(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the sample that each of these workers is inside of.

        Without those that are inside none.
        """
        found = {number: self._observer.worker(number).inside for number in numbers}
        return {number: index for number, index in found.items() if index is not None}

    def mark_timed_out(self, numbers: Iterable[int]) -> None:
        """Note the workers that are killed for being stuck."""
        for number in numbers:
            self._slow_starts[number] = (
                self._slow_starts[number] + 1 if self.is_starting(number) else 0
            )
            self.timed_out.add(number)

    def forget(self, number: int) -> None:
        """Forget the worker with this id; the next one begins anew."""
        self.timed_out.discard(number)
        self._slow_starts[number] = 0

    def stuck(self, streams: Mapping[int, int], timeout_ns: int) -> tuple[list[int], int]:
        """Return the workers to kill now, and in how many ns to look again.

        0: there is none to look at.
        """
        due_ns, now_ns = self.due_ns(streams, timeout_ns), time.monotonic_ns()
        stuck = [number for number, at_ns in due_ns.items() if at_ns <= now_ns]
        if stuck:
            return stuck, timeout_ns
        return [], min(due_ns.values()) - now_ns if due_ns else 0

    def due_ns(self, streams: Mapping[int, int], timeout_ns: int) -> dict[int, int]:
        """Say when to kill each worker that is inside a sample.

        Or each, where a batch waits and no worker claims it.

        Of the latter only workers whose stream the head batch is of: the others have nothing to do.
        A worker that still starts is given twice as long as the one before it, or none would ever
        get there where a start takes longer than a batch may. ``streams``: of each worker.
        """
        claimed_ns = {number: self._observer.worker(number).since_ns for number in streams}
        busy = {
            number: since_ns + timeout_ns for number, since_ns in claimed_ns.items() if since_ns
        }
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

    # ---- the end ----

    def kill(self, numbers: Collection[int], timeout_s: float) -> list[int]:
        """Send workers SIGKILL; returns those that are not dead after so long."""
        self.mark_timed_out(numbers)
        for number in numbers:
            self.workers[number].kill()
        deadline = time.monotonic() + timeout_s
        return [
            n for n in numbers if not self.workers[n].is_dead(max(0.0, deadline - time.monotonic()))
        ]

    def quarantine(self, inside: Mapping[int, int | None]) -> None:
        """Set workers apart that SIGKILL could not end; ``inside``: the sample that each is in."""
        for number, index in inside.items():
            if index is not None:
                self._unkillable_at[index] += 1
            self.quarantined[number] = self.workers[number]
            del self.workers[number]
            self.leaving.discard(number)

    def most_unkillable_in(self, samples: Iterable[int]) -> int:
        """Say how many workers the worst of these samples has cost that SIGKILL could not end."""
        return max((self._unkillable_at[index] for index in samples), default=0)

    def clear(self) -> None:
        """Forget all workers."""
        self.workers.clear()
        self.quarantined.clear()
