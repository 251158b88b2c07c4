"""A dataset's hooks, `on_epoch_begin()` and `on_epoch_end()`: run between epochs and for states."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringfeed._classes import copied, keeps_state
from ringfeed.errors import StateError
from ringfeed.orders.replay import Replay

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source

clock = time.monotonic
_REMEDY = "give the dataset state_dict() and load_state_dict()"


@dataclass
class Counts:
    """How often the hooks of a dataset have run.

    ended: epochs whose hooks have run; begun: later runs of on_epoch_begin alone.
    broken_off: how many more runs on_epoch_begin has than on_epoch_end, by the epochs that had
        ended before. Below 0: Keras runs on_epoch_end before each fit.
    """

    ended: int = 0
    begun: int = 0
    broken_off: dict[int, int] = field(default_factory=dict)


class Hooks:
    """Runs a dataset's hooks; each run returns whether the order may have changed."""

    def __init__(self, source: Source, timeout_s: float | None) -> None:
        """Run no hook yet; ``timeout_s``: how long a replay of the hooks may take."""
        self._source = source
        self._timeout_s = timeout_s
        self.counts = Counts()
        """Another may be put in its place, of earlier loaders of the dataset."""

    def __bool__(self) -> bool:
        """Whether the dataset has any."""
        return bool(self._source.hooks)

    @property
    def has_begin(self) -> bool:
        """Whether the dataset has on_epoch_begin."""
        return "on_epoch_begin" in self._source.hooks

    def run(self, name: str) -> bool:
        """Call a hook of the dataset, if the dataset has it."""
        changed = self._source.run_hook(name)
        self.count(name)
        return changed

    def count(self, name: str) -> None:
        """Count a hook that has run."""
        counts = self.counts
        if name == "on_epoch_begin":
            counts.begun += self.has_begin
            return
        if self.has_begin and counts.begun != 1:
            counts.broken_off[counts.ended] = counts.begun - 1
        counts.ended, counts.begun = counts.ended + 1, 0

    def now(self) -> dict[str, Any] | None:
        """Return the hooks' effect on the dataset before the next epoch; None without hooks.

        The effect is the dataset's own state, or how often each hook has run: an epoch that was
        broken off had on_epoch_begin only.
        """
        dataset, counts = self._source.given, self.counts
        if not self:
            return None
        if keeps_state(dataset):
            return {"dataset": copied(dataset.state_dict())}
        broken_off = counts.broken_off | ({counts.ended: counts.begun} if counts.begun else {})
        pairs = {"broken_off": [*map(list, broken_off.items())]} if broken_off else {}
        return {"hooks": counts.ended, **pairs}

    def restore(self, done: dict[str, Any] | None) -> bool:
        """Bring the dataset to this state; a dataset without states has its hooks run as often.

        StateError if the hooks have run otherwise, since a run cannot be undone.
        """
        if not done:
            return False
        if "dataset" in done:
            self._source.given.load_state_dict(copied(done["dataset"]))
            return self._source.is_sized
        counts, ended, broken_off = self.counts, done["hooks"], dict(done.get("broken_off", ()))
        anew = f"make the dataset and the loader anew, or {_REMEDY}"
        if counts.ended > ended:
            raise StateError(
                f"the hooks of this dataset have run {counts.ended} times, and the state is of "
                f"{ended}; {anew}"
            )
        for at, count in broken_off.items():
            here = max(counts.broken_off.get(at, 0), 0)
            if at < counts.ended and here < count:
                raise StateError(
                    f"after {at} epochs {here} were broken off of this dataset's, and the state is "
                    f"of {count}; {anew}"
                )
        changed, since_s = False, clock()
        replay = Replay("the hooks of the dataset run", _REMEDY)
        while True:
            begins = broken_off.get(counts.ended, 0) + (counts.ended < ended) - counts.begun
            is_begin = self.has_begin and begins > 0
            if not is_begin and counts.ended == ended:
                return changed
            replay.note(counts.ended, ended)
            passed_s = clock() - since_s
            if self._timeout_s is not None and passed_s > self._timeout_s:
                raise StateError(
                    f"the hooks of this dataset have run {counts.ended} times in {passed_s:.1f} s, "
                    f"and the state is of {ended}; {_REMEDY}, or raise "
                    f"timeout_s={self._timeout_s:g}"
                )
            changed |= self.run("on_epoch_begin" if is_begin else "on_epoch_end")
