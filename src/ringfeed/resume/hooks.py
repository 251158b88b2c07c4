"""A dataset's hooks, `on_epoch_begin()` and `on_epoch_end()`: run between epochs, and again where a state asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.errors import StateError
from ringfeed.orders.replay import Replay

if TYPE_CHECKING:
    from ringfeed.data.base import Source


class Hooks:
    """The hooks of one loader's dataset. What runs one returns whether the order may have changed."""

    def __init__(self, source: Source) -> None:
        """Run nothing yet."""
        self._source = source
        self._ended = 0  # epochs whose hooks have run

    def __bool__(self) -> bool:
        """Whether the dataset has any."""
        return bool(self._source.hooks)

    def run(self, name: str) -> bool:
        """Call a hook of the dataset, if it has it."""
        changed = self._source.run_hook(name)
        self._ended += name == "on_epoch_end"
        return changed

    def now(self) -> dict[str, Any] | None:
        """Return what they have done to the dataset: its own state, or how often they have run; None without hooks."""
        dataset = self._source.given
        if not self:
            return None
        if _has_state(dataset):
            return {"dataset": dataset.state_dict()}
        return {"hooks": self._ended}

    def restore(self, done: dict[str, Any] | None) -> bool:
        """Have the dataset be as it was; without a state of its own, by running its hooks as often."""
        if not done:
            return False
        if "dataset" in done:
            self._source.given.load_state_dict(done["dataset"])
            return self._source.is_sized
        if self._ended > done["hooks"]:
            message = (
                f"the hooks of this dataset have run {self._ended} times, and the state is of {done['hooks']}; "
                f"make the dataset and the loader anew, or give the dataset state_dict() and load_state_dict()"
            )
            raise StateError(message)
        changed = False
        replay = Replay("the hooks of the dataset run", "give the dataset state_dict() and load_state_dict()")
        while self._ended < done["hooks"]:
            replay.note(self._ended, done["hooks"])
            changed |= self.run("on_epoch_begin")
            changed |= self.run("on_epoch_end")
        return changed


def _has_state(dataset: Any) -> bool:
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))
