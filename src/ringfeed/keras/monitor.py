"""How long training waited for its input, epoch by epoch, in Keras' logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import keras

from ringfeed._callers import frame_above
from ringfeed.loader import Loader, loaders_in_use

if TYPE_CHECKING:
    from types import FrameType


STALL_SHARE = "stall_share"


def move(callback: keras.callbacks.Callback, telling: FrameType, *, is_first: bool) -> Any:
    """Move a callback to an end of the list that tells it of the model; return the list.

    Keras tells a callback of the model and not of the others; they are found in the frame of the
    caller. None where nothing is moved.
    """
    found = telling.f_locals.get("self")
    if not isinstance(found, keras.callbacks.CallbackList) or callback not in found.callbacks:
        return None
    others = [other for other in found.callbacks if other is not callback]
    # A new list: Keras is amid the old one.
    found.callbacks = [callback, *others] if is_first else [*others, callback]
    return found


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Adds ``stall_share`` to the logs of each epoch: the part of its time spent on waiting.

    The wait for the workers' start is left out, of the waiting and of the time.

        model.fit(loader.to_keras(), callbacks=[ringfeed.keras.Monitor(),
        keras.callbacks.TensorBoard("logs")])

    It counts the loaders given, or all of this process, those for validation, `install` and `feed`
    too. All other callbacks see it, at any place in the list: History, CSVLogger, and TensorBoard,
    as ``epoch_stall_share``.
    """

    def __init__(self, *loaders: Loader) -> None:
        super().__init__()
        self._loaders = loaders
        self._began_s = 0.0
        self._before: dict[int, tuple[float, float]] = {}

    def set_model(self, model: Any) -> None:
        """Go to the front of the callbacks: later ones then see in the logs what it puts there."""
        super().set_model(model)
        move(self, frame_above(1), is_first=True)

    def on_epoch_begin(
        self,
        epoch: int,  # noqa: ARG002 - Keras' signature
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Remember what had been waited before."""
        self._began_s = time.perf_counter()
        self._before = {id(loader): _times_s(loader) for loader in self._watched()}

    def on_epoch_end(
        self,
        epoch: int,  # noqa: ARG002 - Keras' signature
        logs: dict[str, Any] | None = None,
    ) -> None:
        """Put the share into the logs."""
        if logs is None:
            return
        lasted_s, waited_s = time.perf_counter() - self._began_s, 0.0
        for loader in self._watched():
            before, now = self._before.get(id(loader), (0.0, 0.0)), _times_s(loader)
            waited_s += now[0] - before[0]
            lasted_s -= now[1] - before[1]
        logs[STALL_SHARE] = min(1.0, waited_s / max(lasted_s, 1e-9))

    def _watched(self) -> tuple[Loader, ...]:
        return self._loaders or loaders_in_use()


def _times_s(loader: Loader) -> tuple[float, float]:
    """Return how long a loader was waited for, but for its start, and for its start."""
    stats = loader.stats()
    return stats.stall_s - stats.startup_s, stats.startup_s
