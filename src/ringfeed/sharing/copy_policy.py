"""Whether there is a slot for a batch, or the trainings that get it are to copy it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.sharing.flow import Flow
    from ringfeed.sharing.trainings import Training

GRACE_S = 1.0  # that a training is given to let go of a slot before another one is handed a copy


class CopyPolicy:
    """Decides it for one share. One slot is left to the workers; it goes round alone where the others are held long."""

    def __init__(self, flow: Flow) -> None:
        """Look at this flow."""
        self._flow = flow
        self._is_hopeful = True  # that a slot comes back before a copy is made
        self._crowded_since: float | None = None

    @property
    def for_one_more(self) -> bool:
        """Whether another batch may be taken from the ring."""
        out, slots = len(self._flow.out), self._flow.slots
        return out < slots - 1 or (out < slots and self._are_all_held and not self._is_hopeful)

    @property
    def _are_all_held(self) -> bool:
        """Whether all slots but one are held, and no training is to be sent anything that the others wait for."""
        flow = self._flow
        awaited = {training for training in flow.trainings if not training.is_late}
        return len(flow.out) >= flow.slots - 1 and not any(batch.waits & awaited for batch in flow.out.values())

    @property
    def is_crowded(self) -> bool:
        """Whether all slots but one are lent."""
        return sum(bool(batch.lent) for batch in self._flow.out.values()) >= self._flow.slots - 1

    def must_copy(self, training: Training) -> bool:
        """Whether a training has waited for a slot long enough; once in vain is enough until one has come back."""
        if training.waits_since is not None:
            self._wait()
        return training.waits_since is not None and not self._is_hopeful

    def look(self) -> None:
        """Count the time for which a training waits."""
        if self._flow.is_on and self._are_all_held:
            self._wait()

    def _wait(self) -> None:
        if self._is_hopeful:
            now = self._flow.clock()
            self._crowded_since = now if self._crowded_since is None else self._crowded_since
            self._is_hopeful = now - self._crowded_since < GRACE_S

    def note(self, *, lent: bool) -> None:
        """Note that a training has let go of a batch; ``lent``: of a slot, and by itself."""
        self._crowded_since = None
        self._is_hopeful = self._is_hopeful or lent
