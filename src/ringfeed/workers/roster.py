"""Which worker processes there are, by their ids: at work, leaving or in quarantine; how the others ended."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from ringfeed.monitor.faults import Death

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from ringfeed.workers.process import WorkerProcess
    from ringfeed.workers.restart_policy import RestartPolicy
    from ringfeed.workers.watchdog import Watchdog


class Roster:
    """The workers of a pool. The owner holds a lock, except where it asks for `everyone`.

    Ctrl-C may come between any two steps: a worker is added by ``workers[number] = ...``, since a call that stored it
    could be interrupted before it did. It is quarantined before it is removed, so that `everyone` always finds it.
    """

    def __init__(self, ids: int, policy: RestartPolicy, watchdog: Watchdog) -> None:
        """Begin with no worker; there are at most ``ids`` at a time, those that are quarantined included."""
        self.workers: dict[int, WorkerProcess] = {}
        self.leaving: set[int] = set()  # of the workers: asked to leave, and not replaced
        self.quarantined: dict[int, WorkerProcess] = {}  # sent SIGKILL, not dead, and replaced: their ids stay theirs
        self.deaths: dict[tuple[int, int], Death] = {}  # by batch and row: how the last worker died that tried it
        self._ids = ids
        self._policy = policy
        self._watchdog = watchdog
        self._unkillable_at: Counter[int] = Counter()  # by sample: workers that SIGKILL could not end in it

    @property
    def staying(self) -> AbstractSet[int]:
        """The workers that were not asked to leave."""
        return self.workers.keys() - self.leaving

    @property
    def readers(self) -> Collection[int]:
        """The workers that read samples themselves."""
        return self.workers

    def everyone(self) -> list[WorkerProcess]:
        """Return all that may be alive; without the lock, too: list() of a dict's view is one step."""
        return [*list(self.workers.values()), *list(self.quarantined.values())]

    def pidfds(self) -> dict[int, int]:
        """Return the ids of all that may be alive, by the descriptor that tells of their end."""
        return {worker.pidfd: number for number, worker in (*self.workers.items(), *self.quarantined.items())}

    def missing(self, wanted: int) -> list[int]:
        """Return an id for each worker that is missing, as far as there are any: quarantined ones keep theirs."""
        free = [number for number in range(self._ids) if number not in {**self.workers, **self.quarantined}]
        return free[: max(0, wanted - len(self.staying))]

    def let_leave(self, wanted: int) -> AbstractSet[int]:
        """Have no more than ``wanted`` stay; returns the workers that are to leave, those of earlier calls included."""
        self.leaving.update(sorted(self.staying)[wanted:])
        return self.leaving & self.workers.keys()

    def note_at_work(self) -> None:
        """Note how many workers have filled samples; before a dead one is removed."""
        self._policy.note_at_work(sum(not self._watchdog.is_fresh(number) for number in self.staying))

    def remove(self, number: int, given_up: tuple[int, int] | None = None, stage: str = "") -> None:
        """Forget a dead worker and count its death; raise WorkerError where it must not be replaced.

        ``given_up``: the batch and row that are tried no more, because of this death; ``stage``: the function of the
        user's that it came in, if that has all rows at once.
        """
        if number in self.quarantined:
            self.quarantined.pop(number).exit_reason()
            self._watchdog.timed_out.discard(number)
            return
        worker = self.workers.pop(number)
        startup_error = worker.startup_error()
        exit_reason = worker.exit_reason()
        if given_up is not None:
            self.deaths[given_up] = Death(exit_reason, stage)
        if number in self.leaving:
            self.leaving.discard(number)
            self._watchdog.forget(number)
        elif startup_error is None:
            self._count_death(number, exit_reason)
        elif self._watchdog.is_fresh(number) and self._policy.scale_down(str(startup_error)):
            self._watchdog.forget(number)
        else:
            raise startup_error

    def _count_death(self, number: int, exit_reason: str) -> None:
        asked = number in self._watchdog.timed_out
        self._watchdog.timed_out.discard(number)
        starting, fresh = self._watchdog.is_starting(number), self._watchdog.is_fresh(number)
        progress = self._watchdog.progress(self.workers)
        self._policy.count_death(exit_reason, starting=starting, fresh=fresh, asked=asked, progress=progress)

    def kill(self, numbers: Collection[int], timeout_s: float) -> list[int]:
        """Send workers SIGKILL; returns those that are not dead after so long."""
        for number in numbers:
            self.workers[number].kill()
        deadline = time.monotonic() + timeout_s
        return [n for n in numbers if not self.workers[n].is_dead(max(0.0, deadline - time.monotonic()))]

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
