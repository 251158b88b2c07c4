"""`fit` on a GPU, on whichever backend Keras has: `to_keras()` from pinned and pageable slots, and a PyDataset."""

from __future__ import annotations

import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from devices.common import PAGEABLE, PINNED, SLOTS, WORKERS, Pictures, Scale, registered

if TYPE_CHECKING:
    from collections.abc import Iterator

PYDATASET = "PyDataset, threads"
CONTENDERS = (PINNED, PAGEABLE, PYDATASET)
CLASSES = 10
COMPILING, EPOCHS = 2, 3


def why_not() -> str:
    """Why nothing can be measured; empty where it can."""
    backend = keras.backend.backend()
    if backend == "torch":
        from devices.by_torch import why_not as asked  # noqa: PLC0415
    elif backend == "jax":
        from devices.by_jax import why_not as asked  # noqa: PLC0415
    else:
        from devices.by_tensorflow import why_not as asked  # noqa: PLC0415
    return asked()


class Labelled(Pictures):
    """Pictures with classes."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), index % CLASSES


class Batches(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """The same, as Keras reads them."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(workers=WORKERS, max_queue_size=SLOTS)
        self.samples, self.rows = Labelled(scale), scale.rows

    def __len__(self) -> int:
        return len(self.samples) // self.rows

    def __getitem__(self, index: int) -> Any:
        found = [self.samples[self.rows * index + row] for row in range(self.rows)]
        return np.stack([picture for picture, _ in found]), np.array([label for _, label in found])


class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Notes when each epoch ends; its loss is a number by then, so its last step is over."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_s: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Wait for the loss."""
        del epoch
        float((logs or {})["loss"])
        self.ends_s.append(time.perf_counter())


def build_model(scale: Scale) -> Any:
    """A convolutional network, small enough that its input shows."""
    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.Input(scale.shape)]
    layers += [
        keras.layers.Conv2D(filters, 3, 2, padding="same", activation="relu")
        for filters in (16, 32, 64)
    ]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=keras.backend.backend() == "jax")
    return model


@contextmanager
def fed(contender: str, scale: Scale) -> Iterator[tuple[Any, int]]:
    """What `fit` takes, and the batches of an epoch."""
    if contender == PYDATASET:
        batches = Batches(scale)
        yield batches, len(batches)
        return
    import ringfeed  # noqa: PLC0415 - the rival runs without it

    settings: dict[str, Any] = {
        "batch_size": scale.rows,
        "workers": WORKERS,
        "slots": SLOTS,
        "timeout_s": 120,
    }
    with registered(
        ringfeed.Loader(Labelled(scale), **settings), pin=contender == PINNED
    ) as batches:
        yield batches.to_keras(), len(batches)


def measure(contender: str, scale: Scale) -> dict[str, Any]:
    """The seconds of a batch in whole epochs of `fit`, once all is compiled."""
    model, clock = build_model(scale), Clock()
    with fed(contender, scale) as (data, count):
        model.fit(data, epochs=COMPILING + EPOCHS, callbacks=[clock], shuffle=False, verbose=0)
    epochs_s = np.diff(clock.ends_s[COMPILING - 1 :]).tolist()
    return {"per_batch_s": median(epochs_s) / count, "epochs_s": epochs_s, "batches": count}
