"""Train a Keras model on handwritten digits, which the workers move and dim in every epoch.

Run it: python keras_fit.py (needs tensorflow and scikit-learn). It has no main guard, because
workers never import the script.
"""

from __future__ import annotations

import keras
import numpy as np
from sklearn.datasets import load_digits

import ringfeed

CLASSES = 10
HELD_OUT = 397


class Digits:
    """Digits of 8 x 8 pixels and their classes.

    Moved by up to a pixel and dimmed where `augmented`.
    """

    def __init__(self, images: np.ndarray, classes: np.ndarray, *, augmented: bool) -> None:
        self.images = images
        self.classes = classes
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        image = self.images[index]
        if self.augmented:
            random = ringfeed.rng()  # the same numbers on any worker
            image = np.roll(image, random.integers(-1, 2, size=2), axis=(0, 1)) * random.uniform(
                0.7, 1.3
            )
        return image[..., None].astype(np.float32), self.classes[index]


digits = load_digits()
images, classes = digits.images / 16, digits.target.astype(np.int64)
train = Digits(images[:-HELD_OUT], classes[:-HELD_OUT], augmented=True)
held_out = Digits(images[-HELD_OUT:], classes[-HELD_OUT:], augmented=False)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(CLASSES),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])

with (
    ringfeed.Loader(train, batch_size=64, shuffle=True, workers=2, slots=3) as batches,
    ringfeed.Loader(held_out, batch_size=64, workers=1, slots=3) as held_out_batches,
):
    model.fit(batches.to_keras(), validation_data=held_out_batches.to_keras(), epochs=8, verbose=2)
    _, accuracy = model.evaluate(held_out_batches.to_keras(), verbose=0)
    print(f"accuracy on {HELD_OUT} digits never seen: {accuracy:.1%}")
    print(f"shared memory: {(batches.memory + held_out_batches.memory) / 1e6:.1f} MB")
