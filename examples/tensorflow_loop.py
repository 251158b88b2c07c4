"""Train in your own loop, with a GradientTape, over the tf.data.Dataset of a loader.

Run it: python tensorflow_loop.py (needs tensorflow and scikit-learn). It has no main guard, because
workers never import the script.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ringfeed

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

    def __getitem__(self, index: int) -> dict[str, np.ndarray | np.int64]:
        image = self.images[index]
        if self.augmented:
            random = ringfeed.rng()  # the same numbers on any worker
            image = np.roll(image, random.integers(-1, 2, size=2), axis=(0, 1)) * random.uniform(
                0.7, 1.3
            )
        return {"image": image[..., None].astype(np.float32), "class": self.classes[index]}


digits = load_digits()
images, classes = digits.images / 16, digits.target.astype(np.int64)
train = Digits(images[:-HELD_OUT], classes[:-HELD_OUT], augmented=True)
held_out = Digits(images[-HELD_OUT:], classes[-HELD_OUT:], augmented=False)

tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(3e-3)


@tf.function
def train_epoch(dataset: tf.data.Dataset) -> tf.Tensor:
    """Train on every batch and return the mean loss. The loop itself runs in TensorFlow's graph."""
    total, steps = 0.0, 0.0
    for batch in dataset:
        with tf.GradientTape() as tape:
            loss = loss_of(batch["class"], model(batch["image"], training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        total, steps = total + loss, steps + 1.0
    return total / steps


with (
    ringfeed.Loader(train, batch_size=64, shuffle=True, workers=2, slots=3) as batches,
    ringfeed.Loader(held_out, batch_size=64, workers=1, slots=3) as held_out_batches,
):
    dataset = batches.to_tf_dataset()  # every loop over it is the next epoch, in a new order
    for epoch in range(8):
        print(f"epoch {epoch}: loss {train_epoch(dataset):.3f}")
    right = 0
    for batch in held_out_batches.to_tf_dataset():
        right += int(
            tf.reduce_sum(tf.cast(tf.argmax(model(batch["image"]), 1) == batch["class"], tf.int64))
        )
    print(f"accuracy on {HELD_OUT} digits never seen: {right / HELD_OUT:.1%}")
    print(f"shared memory: {(batches.memory + held_out_batches.memory) / 1e6:.1f} MB")
