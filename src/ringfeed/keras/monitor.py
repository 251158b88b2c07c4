"""How long training waited for its input, epoch by epoch, in Keras' logs."""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING, Any

import keras

from ringfeed._callers import frame_above
from ringfeed.loader import loaders_in_use

if TYPE_CHECKING:
    from ringfeed.loader import Loader

STALL_SHARE = "stall_share"


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Adds ``stall_share`` to the logs of each epoch: the part of its time in which it waited for a batch.

    What the first epoch waits for workers to start is left out, of the waiting and of the time.

        model.fit(loader.to_keras(), callbacks=[ringfeed.keras.Monitor(),
        keras.callbacks.TensorBoard("logs")])

    It counts the loaders given, or all of this process: those for validation too, and those behind
    `install` and `feed`. Whatever writes logs down has it, wherever it stands in the list: History,
    CSVLogger, and TensorBoard, as ``epoch_stall_share``.
    """

    def __init__(self, *loaders: Loader) -> None:
        super().__init__()
        self._loaders = loaders
        self._began_s = 0.0
        self._before: dict[int, tuple[float, float]] = {}

    def set_model(self, model: Any) -> None:
        """Go to the front of the callbacks, of which each sees in the logs what those before it have put there.

        Keras tells a callback of the model and not of the others; they are found in the frame of
        the caller.
        """
        super().set_model(model)
        telling = frame_above(1).f_locals.get("self")
        if isinstance(telling, keras.callbacks.CallbackList) and self in telling.callbacks:
            telling.callbacks.remove(
                self
            )  # it goes over them by number, and nothing behind this one moves
            telling.callbacks.insert(0, self)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        """Remember what had been waited before."""
        self._began_s = time.perf_counter()
        self._before = {id(loader): _waited_s(loader) for loader in self._watched()}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - see above
        """Put the share into the logs."""
        if logs is None:
            return
        lasted_s, waited_s = time.perf_counter() - self._began_s, 0.0
        for loader in self._watched():
            stall_s, startup_s = map(
                operator.sub, _waited_s(loader), self._before.get(id(loader), (0.0, 0.0))
            )
            waited_s += stall_s - startup_s
            lasted_s -= startup_s
        logs[STALL_SHARE] = min(1.0, waited_s / max(lasted_s, 1e-9))

    def _watched(self) -> tuple[Loader, ...]:
        return self._loaders or loaders_in_use()


def _waited_s(loader: Loader) -> tuple[float, float]:
    """Return what a loader's consumer has waited, and the part of it before the first batch."""
    stats = loader.stats()
    return stats.stall_s, stats.startup_s
