"""Where one `fit` of Keras is: in its own epochs, and in those of the loader behind its data."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed._callers import callers_depth, frames_by_thread, frames_from
from ringfeed.errors import StateError
from ringfeed.frameworks.keras.fit_position import go_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from ringfeed.frameworks.keras.fit_position import Place
    from ringfeed.keras.pydataset import DatasetFeed


class FitRun:
    """One call of `fit`, found in the frames: Keras does not tell callbacks of the data."""

    def __init__(self, frame: FrameType | None) -> None:
        """Find the call; TypeError where there is none, or where its data has no place."""
        given = next(_calls(frame), None)
        if given is None:
            message = (
                "BackupAndRestore was called by no fit() of Keras, and cannot tell where training "
                "is; in a loop of your own, save loader.state_dict() beside the weights"
            )
            raise TypeError(message)
        self.iterator: EpochIterator = given["epoch_iterator"]
        self._adapter = self.iterator.data_adapter
        _check(self._adapter)
        self.initial_epoch: int = given["initial_epoch"]
        self.first_epoch = self.initial_epoch
        """The first epoch of the first `fit`, where several go on from one another's backups."""
        self.epochs: int = given["epochs"]
        self.epoch = 0
        self.step = 0
        """The batches of Keras' epoch that were trained on."""
        self._ahead: dict[str, Any] | None = (
            None  # the hooks' work on the dataset before this epoch's own hook
        )
        self._trained = 0  # those of the loader's, which may go on over several of Keras'
        self._begun = self.place.begun if self.place else 0

    def is_running(self) -> bool:
        """Whether the call still runs, in any thread: no callback hears of a call that raises."""
        tops = frames_by_thread().values()
        return any(
            given["epoch_iterator"] is self.iterator for frame in tops for given in _calls(frame)
        )

    @property
    def place(self) -> Place | None:
        """Where it is in the loader's epoch; None for a dataset that is left to Keras."""
        return place_in(self.iterator)

    @property
    def feed(self) -> DatasetFeed | None:
        """The feed of a Keras dataset, whose hooks Keras runs."""
        found: DatasetFeed | None = getattr(self._adapter, "dataset_feed", None)
        return found

    def begin(self, epoch: int, step: int) -> None:
        """Note that an epoch of Keras begins, with this step; the hooks of the dataset run next."""
        self.epoch, self.step = epoch, step
        feed = self.feed
        self._ahead = feed.state() if feed is not None and feed.hooks.has_begin else None

    def count(self, step: int) -> int:
        """Count what was trained on up to a step; return how many batches that is."""
        batches, self.step = step - self.step, step
        place = self.place
        if place is not None:
            if place.begun != self._begun:
                self._begun, self._trained = place.begun, place.start
            self._trained = min(
                self._trained + batches, place.taken
            )  # the last step may have been of fewer
        return batches

    def is_at_end(self) -> bool:
        """Whether Keras' epoch ends here, or cannot be said to go on."""
        place, steps = self.place, self.iterator.steps_per_epoch
        return (
            place is None or bool(steps and self.step >= steps) or not place.has_more(self._trained)
        )

    def loader_facts(self, step: int) -> dict[str, Any]:
        """Return what `restore` needs to go on with a step of an epoch; 0: with the next epoch."""
        place, feed = self.place, self.feed
        facts: dict[str, Any] = {"loader": None, "batches": 0, "hooks": None}
        if feed is not None:
            facts["hooks"] = self._ahead if step and self._ahead is not None else feed.state()
        facts["epoch_numbers"] = getattr(self._adapter, "epoch_numbers", None)
        if place is None:
            return facts
        goes_on = step > 0 or (
            self.iterator.steps_per_epoch is not None and place.has_more(self._trained)
        )
        trained = self._trained if goes_on else None
        return facts | {"loader": place.state(trained), "batches": trained or 0}

    def restore(
        self, facts: dict[str, Any], around: AbstractContextManager[None], ready: Callable[[], None]
    ) -> None:
        """Go on where the facts say; ``around`` and ``ready``: see `Place.restore` and `go_on`."""
        place, feed = self.place, self.feed
        self.first_epoch = facts["first_epoch"]
        if feed is not None:
            hooks = facts["hooks"] if "hooks" in facts else _older_hooks(facts, feed)
            try:
                feed.hooks.restore(hooks)
            except StateError as error:
                # Under `install` nothing fails that does not fail in Keras, and Keras runs no hook
                # again.
                if not isinstance(self._adapter, PyDatasetAdapter):
                    raise
                message = f"training goes on with the dataset as it is, as in Keras: {error}"
                warnings.warn(message, UserWarning, stacklevel=callers_depth())
        amid = facts["batches"] > 0
        numbers = facts.get("epoch_numbers")  # older backups have none
        if numbers is not None:
            self._adapter.restore_epochs(numbers, is_amid=amid)
        if place is None or facts["loader"] is None:
            return
        place.restore(facts["loader"], facts["batches"], around if amid else nullcontext())
        if amid:
            go_on(self.iterator, facts["step"], facts["batches"], ready)


def check_facts(facts: dict[str, Any]) -> None:
    """Raise an error for facts that no backup has: of where the training and its data were."""
    hooks = facts["hooks"] if "hooks" in facts else {"dataset": facts["dataset"]}
    counts = [facts[name] for name in ("epoch", "step", "first_epoch", "batches")]
    counts += facts.get("epoch_numbers") or ()
    counts += [] if facts["validation_epoch"] is None else [facts["validation_epoch"]]
    if hooks is not None and "dataset" not in hooks:
        # One less than none is where on_epoch_end has run alone.
        more = (count for at, extra in hooks.get("broken_off", ()) for count in (at, extra + 1))
        counts += [hooks["hooks"], *more]
    others = {"is_over": bool, "loader": dict | None, "validation_seed": int | None}
    wrong = [name for name, kind in others.items() if not isinstance(facts[name], kind)]
    if wrong or not all(type(count) is int and count >= 0 for count in counts):
        message = f"{wrong[0]} is {facts[wrong[0]]!r}" if wrong else f"counts of {counts}"
        raise ValueError(message)


def _older_hooks(facts: dict[str, Any], feed: DatasetFeed) -> dict[str, Any]:
    """Return what hooks had done, of a backup that says how many epochs are over, and no more."""
    if facts["dataset"] is not None:
        return {"dataset": facts["dataset"]}
    return {"hooks": feed.hooks.counts.ended + facts["epoch"] - facts["first_epoch"]}


def place_in(iterator: EpochIterator) -> Place | None:
    """Return where a call of Keras is in the loader behind its data, if there is one."""
    find = getattr(iterator.data_adapter, "place", None)
    return None if find is None else find(iterator)


def _calls(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the variables of each `fit` that a frame belongs to, the innermost first."""
    for above in frames_from(frame):
        found = above.f_locals if above.f_code.co_name == "fit" else {}
        if isinstance(found.get("epoch_iterator"), EpochIterator):
            yield found


def _check(adapter: Any) -> None:
    if hasattr(adapter, "place"):
        return
    dataset = getattr(adapter, "py_dataset", None)
    if dataset is None:
        what, way = f"read by a {type(adapter).__name__}", "give it loader.to_keras()"
    else:
        what, way = (
            f"a {type(dataset).__name__}",
            "train under ringfeed.keras.install(), or give it feed(dataset)",
        )
    message = (
        f"the data of fit() is {what} of Keras' own, and BackupAndRestore cannot tell where in an "
        f"epoch it is; {way}, or use keras.callbacks.BackupAndRestore, which goes on with a whole "
        "epoch"
    )
    raise TypeError(message)
