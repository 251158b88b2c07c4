"""A training that `BackupAndRestore` saves, in a process of its own: it may be killed and started again at any moment.

``python backed_up.py DIRECTORY WAY SAVE_FREQ`` trains, and writes to ``DIRECTORY/curve`` what came
of each batch and of each epoch, exactly, a line each. WAY: the data that `fit` is given, see
`WAYS`. SAVE_FREQ "off": without backups.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, BATCH, EPOCHS = 200, 8, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.random((ROWS, 6), np.float32)
Y = RANDOM.integers(0, 3, ROWS)


class Augmented:
    """Samples with noise of ringfeed's own random numbers."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return X[index] + ringfeed.rng().random(6, np.float32), Y[index]


class Batches(keras.utils.PyDataset):
    """The same as whole batches; its hook shuffles by NumPy's global random numbers, as many do."""

    def __init__(self, rows: int = ROWS, **settings: Any) -> None:
        super().__init__(**settings)
        self.rows = np.arange(rows)

    def __len__(self) -> int:
        return (len(self.rows) + BATCH - 1) // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.rows[index * BATCH : (index + 1) * BATCH]
        return X[rows] + ringfeed.rng().random((len(rows), 6), np.float32), Y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.rows)  # noqa: NPY002 - what it is about


def _loader() -> Any:
    return ringfeed.Loader(
        Augmented(), batch_size=BATCH, shuffle=True, seed=1, workers=1
    ).to_keras()


WAYS: dict[str, Callable[[], Any]] = {
    "loader": _loader,
    "feed": lambda: ringfeed.keras.feed(
        Batches(), workers=1, backend="thread", shuffle=True, seed=1
    ),
    "install": lambda: Batches(workers=2),
}


class Curve(keras.callbacks.Callback):
    """Writes what came of each batch and each epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("a")
        self.epoch = 0

    def _write(self, what: str, logs: dict[str, float]) -> None:
        values = " ".join(f"{name}={float(logs[name]).hex()}" for name in sorted(logs))
        self.file.write(f"{what} {values}\n")
        self.file.flush()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._write(f"{self.epoch}.{batch}", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rate = keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        self._write(f"{epoch}", logs | {"learning_rate": float(rate)})


def make_model() -> Any:
    """Return a model whose steps draw random numbers."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def train(directory: Path, way: str, save_freq: str) -> None:
    """Train, or go on."""
    model = make_model()
    decay = keras.callbacks.LearningRateScheduler(lambda _epoch, rate: rate * 0.9)
    callbacks: list[Any] = [Curve(directory / "curve"), decay]
    if save_freq != "off":
        frequency: Any = int(save_freq) if save_freq.isdigit() else save_freq
        callbacks.insert(0, ringfeed.keras.BackupAndRestore(directory / "backup", frequency))
    validation = ringfeed.Loader(Augmented(), batch_size=50, shuffle=True, workers=0).to_keras()
    with ringfeed.keras.install() if way == "install" else contextlib.nullcontext():
        model.fit(
            WAYS[way](), epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_data=validation
        )


def deterministic() -> None:
    """Have the same bits in each run on the CPU."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415 - not on other backends

        tf.config.experimental.enable_op_determinism()


if __name__ == "__main__":
    logging.disable()
    deterministic()
    train(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
