"""Train a Keras model on pictures by a PyDataset, without a word of ringfeed.

    python keras_unchanged.py                                                           # as Keras runs it
    python -c "import ringfeed.keras, runpy; ringfeed.keras.install(); runpy.run_path('keras_unchanged.py')"

Needs tensorflow and pillow. The last line printed is JSON: the loss and the seconds of each epoch.
"""

from __future__ import annotations

import io
import json
import os
import time
from typing import Any

import keras
import numpy as np
from PIL import Image

CLASSES = 4
PICTURES = int(os.environ.get("PICTURES", "768"))
EPOCHS = int(os.environ.get("EPOCHS", "3"))
SIDE, SHOWN = 256, 96
BATCH = 32


def picture(number: int) -> bytes:
    """A JPEG of stripes, whose direction is its class."""
    random = np.random.default_rng(number)
    rows, columns = np.mgrid[:SIDE, :SIDE] / SIDE
    across = [rows, columns, rows + columns, rows - columns][number % CLASSES]
    stripes = 0.5 + 0.5 * np.sin(2 * np.pi * random.uniform(4, 9) * across + random.uniform(0, 6))
    noisy = stripes[..., None] * random.uniform(100, 255, 3) + random.normal(0, 25, (SIDE, SIDE, 3))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()


class Pictures(keras.utils.PyDataset):
    """Batches of decoded, resized pictures and their classes.

    Each epoch brings them in another order.
    """

    def __init__(self, files: list[bytes], first: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.files = files
        self.first = first
        self.order = np.arange(len(files))
        self.epoch = 0

    def __len__(self) -> int:
        return (len(self.files) + BATCH - 1) // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = self.order[BATCH * index : BATCH * index + BATCH]
        images = [
            Image.open(io.BytesIO(self.files[number])).resize((SHOWN, SHOWN)) for number in numbers
        ]
        return np.stack([np.asarray(image, np.float32) / 255 for image in images]), (
            numbers + self.first
        ) % CLASSES

    def on_epoch_end(self) -> None:
        """Shuffle the pictures."""
        self.epoch += 1
        self.order = np.random.default_rng(self.epoch).permutation(len(self.files))


class Clock(keras.callbacks.Callback):
    """Notes how long each epoch takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Look at the clock."""
        del epoch, logs
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Look again."""
        del epoch, logs
        self.seconds.append(time.perf_counter() - self.began)


keras.utils.set_random_seed(0)
held_out = PICTURES // 4
files = [picture(number) for number in range(PICTURES)]
parallel = {"workers": 2, "use_multiprocessing": True}
train = Pictures(files[held_out:], held_out, **parallel)
validation = Pictures(files[:held_out], 0)

model = keras.Sequential(
    [
        keras.Input((SHOWN, SHOWN, 3)),
        keras.layers.Conv2D(8, 5, strides=4, activation="relu"),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(CLASSES),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
clock = Clock()
history = model.fit(
    train, validation_data=validation, epochs=EPOCHS, callbacks=[clock], verbose=2
).history
print(
    json.dumps({"loss": history["loss"], "val_loss": history["val_loss"], "epoch_s": clock.seconds})
)
