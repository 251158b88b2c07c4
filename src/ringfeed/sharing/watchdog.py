"""What becomes of a training for which others wait, and of a wait that takes too long: by ``on_slow`` and timeout_s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed._failure import encode
from ringfeed.errors import RingfeedError, StallError
from ringfeed.sharing.trainings import Entry, Training

if TYPE_CHECKING:
    from ringfeed.sharing.flow import Flow


class Watchdog:
    """Looks after the trainings of one share."""

    def __init__(self, flow: Flow) -> None:
        """Look at this flow."""
        self._flow = flow

    def look(self, waiting: list[Training], now: float, progress_s: float) -> None:
        """Do what time asks for; ``progress_s``: when a batch was added last."""
        blocking = self._blocking(waiting)
        for training in [*self._flow.trainings]:
            if training not in blocking:
                training.blocks_since = None
                continue
            since = training.blocks_since = now if training.blocks_since is None else training.blocks_since
            if training.is_late or now - since >= self._flow.terms.patience_s:
                self._pass_over(training, waiting, now - since)
        for training in waiting:
            since = max(now if training.waits_since is None else training.waits_since, progress_s)
            if now - since >= self._flow.terms.timeout_s:
                training.waits_since = None
                self._flow.tell_error(training, 0, encode(self._stall(training, now - since)), first=True)

    def _blocking(self, waiting: list[Training]) -> list[Training]:
        """Return the trainings that others wait for."""
        if not waiting or not self._flow.has_gathered:
            return []
        if self._flow.is_on:
            late = (
                set().union(*(batch.waits for batch in self._flow.out.values())) if not self._flow.may_take else set()
            )
            return [training for training in self._flow.trainings if training in late and training not in waiting]
        asks = any(training.asked is not None for training in waiting)
        # Not before its first epoch: models take their time to be built.
        return [training for training in self._flow.trainings if asks and training.asked is None and training.epoch]

    def _pass_over(self, training: Training, waiting: list[Training], waited_s: float) -> None:
        """Do what ``on_slow`` says."""
        if self._flow.terms.on_slow == "drop":
            training.is_late = True
            while self._flow.is_on and not self._flow.may_take and self._lose_one(training):
                pass
        elif self._flow.terms.on_slow == "raise":
            self._put_out(training, waited_s)
        elif not training.is_told:
            training.is_told = True
            text = f"{self._is_slow(training, waited_s)}; on_slow='drop' or 'raise' goes on without it"
            for other in waiting:
                self._flow.queue(other, Entry("warning", 0, {"text": text}), first=True)

    def _lose_one(self, training: Training) -> bool:
        """Take the oldest batch from a training's queue; whether there was one."""
        for entry in training.queue:
            if entry.batch is not None:
                training.queue.remove(entry)
                training.lost += 1
                self._flow.let_go(entry.batch, training)
                return True
        return False

    def _put_out(self, training: Training, waited_s: float) -> None:
        """Go on without a training, which gets an error."""
        text = f"{self._is_slow(training, waited_s)}; on_slow='raise' has put it out"
        self._flow.put_out(training, encode(StallError(text)))

    def _is_slow(self, training: Training, waited_s: float) -> str:
        what = "taken a batch" if self._flow.is_on else "asked for the next epoch"
        return (
            f"share(name={self._flow.terms.name!r}): the other trainings have waited {waited_s:.1f} s for {training}, "
            f"which has not {what}"
        )

    def _stall(self, training: Training, waited_s: float) -> RingfeedError:
        share = f"share(name={self._flow.terms.name!r})"
        if not self._flow.has_gathered:
            there, count = ", ".join(map(str, self._flow.trainings)), len(self._flow.trainings)
            return StallError(
                f"{share}: {count} of {self._flow.terms.ranks} trainings have come within {waited_s:.0f} s "
                f"({there}); start the others, or give ranks= and timeout_s= as they are"
            )
        late = [other for other in self._flow.trainings if other.asked is None]
        slow = ", ".join(map(str, self._blocking([training]) if self._flow.is_on else late))
        why = f"it waits for {slow}" if slow else "its loader has none"
        return StallError(
            f"{share}: no batch for {training} within {waited_s:.0f} s: {why}; raise timeout_s or look there"
        )
