"""Target number of workers, and when a death is the last. Pure decisions: no process is touched here.

Workers beyond the most that have filled samples at the same time are optional: the tuner asked for them, and training
can go on without. An error that would end the run lowers the target instead, while an optional worker is left.
"""

from __future__ import annotations

from ringfeed.errors import WorkerError

EARLY_DEATHS = 3
FOR_WANT_OF_MEMORY = "was killed by SIGKILL"  # the words of `WorkerProcess.exit_reason` for how the kernel makes room


class RestartPolicy:
    """The target number of workers, and the deaths so far; the owner holds a lock."""

    def __init__(self, initial_workers: int) -> None:
        """Begin with this target, of which no worker is optional."""
        self.wanted = initial_workers
        self.restarts = 0
        self.early_deaths = 0  # in a row
        self.scaled_down: tuple[int, str] | None = None  # the highest target that could be reached, and why
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

    def count_death(self, exit_reason: str, *, starting: bool, fresh: bool, asked: bool, progress: bool) -> None:
        """Count a death that was not asked for by `resize`; raise WorkerError for one too many.

        ``starting``: it had claimed nothing; ``fresh``: it had filled nothing; ``asked``: the watchdog killed it;
        ``progress``: another worker fills slots, so that training goes on.
        """
        if progress and self.wanted <= self._proved:  # an optional worker that cannot start is given up all the same
            self.early_deaths = 0
        self.early_deaths = self.early_deaths + 1 if starting and not asked else 0  # a slow start may succeed next time
        if exit_reason == FOR_WANT_OF_MEMORY and not asked:  # the kernel takes the largest, perhaps not the newest
            want = f"a worker {exit_reason} while another was to start, as it happens when memory is short"
            if self.scale_down(want) and fresh:
                return
        why = (
            f"{EARLY_DEATHS} workers in a row ended before they filled anything; the last {exit_reason}; "
            f"look at its output above, or try workers=0"
        )
        is_hopeless = self.early_deaths >= EARLY_DEATHS
        if is_hopeless and fresh and self.scale_down(why):
            return
        self.restarts += 1
        if is_hopeless:
            raise WorkerError(why)
