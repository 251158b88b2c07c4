"""The model of pydataset_before.py, whose PyDataset now runs over ringfeed: two lines are new, the losses are the same.

Run it: python pydataset_after.py (needs tensorflow and scikit-learn). Its last line has the losses,
as JSON.
"""

from __future__ import annotations

import json

import keras
import numpy as np
from sklearn.datasets import load_digits

import ringfeed.keras

BATCH = 64


class Digits(keras.utils.PyDataset):
    """Batches of digits, in a new order each epoch."""

    def __init__(self, images: np.ndarray, classes: np.ndarray, **settings: object) -> None:
        super().__init__(**settings)
        self.images, self.classes = images, classes
        self.epoch = 0
        self.order = np.arange(len(images))

    def __len__(self) -> int:
        return (len(self.images) + BATCH - 1) // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[BATCH * index : BATCH * (index + 1)]
        return self.images[rows, ..., None].astype(np.float32) / 16, self.classes[rows]

    def on_epoch_end(self) -> None:
        """Draw the order of the next epoch."""
        self.epoch += 1
        self.order = np.random.default_rng(self.epoch).permutation(len(self.images))


ringfeed.keras.install()  # from here on, `fit` reads every PyDataset over shared memory
digits = load_digits()
train = Digits(digits.images, digits.target, workers=2, use_multiprocessing=True)

keras.utils.set_random_seed(0)
layers = [
    keras.layers.Conv2D(16, 3, activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10),
]
model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(train, shuffle=False, epochs=4, verbose=2)
print(json.dumps(history.history["loss"]))
