"""How long training waited for its input, epoch by epoch, in Keras' logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import keras

from ringfeed._callers import frame_above
from ringfeed.loader import loaders_in_use

if TYPE_CHECKING:
    from ringfeed.loader import Loader

STALL_SHARE = "stall_share"


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Adds ``stall_share`` to the logs of each epoch: the part of its time spent on waiting.

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
        """Go to the front of the callbacks: later ones then see in the logs what it has put there.

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

    def on_epoch_begin(
        self,
        epoch: int,  # noqa: ARG002 - Keras' signature
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Remember what had been waited before."""
        self._began_s = time.perf_counter()
        stats = {id(loader): loader.stats() for loader in self._watched()}
        self._before = {key: (each.stall_s, each.startup_s) for key, each in stats.items()}

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
            stats, (stall_s, startup_s) = loader.stats(), self._before.get(id(loader), (0.0, 0.0))
            starts_s = stats.startup_s - startup_s
            waited_s += stats.stall_s - stall_s - starts_s
            lasted_s -= starts_s
        logs[STALL_SHARE] = min(1.0, waited_s / max(lasted_s, 1e-9))

    def _watched(self) -> tuple[Loader, ...]:
        return self._loaders or loaders_in_use()
