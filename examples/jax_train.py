"""Train a small net in plain JAX on handwritten digits, which the workers move and dim in every epoch.

Run it: python jax_train.py (needs jax and scikit-learn). It has no main guard, because workers never
import the script.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        image = self.images[index]
        if self.augmented:
            random = ringfeed.rng()  # the same numbers on any worker
            image = np.roll(image, random.integers(-1, 2, size=2), axis=(0, 1)) * random.uniform(
                0.7, 1.3
            )
        # int32, since JAX has no int64 by default: the loader would copy int64 labels.
        return image.astype(np.float32), np.int32(self.classes[index])


def scores(weights: Any, images: jax.Array) -> jax.Array:
    """Return ten scores for each image."""
    hidden = jax.nn.relu(images.reshape(len(images), -1) @ weights["in"] + weights["bias"])
    return hidden @ weights["out"]


def mean_loss(weights: Any, images: jax.Array, classes: jax.Array) -> jax.Array:
    """Return the cross-entropy of a batch."""
    return -jnp.take_along_axis(
        jax.nn.log_softmax(scores(weights, images)), classes[:, None], 1
    ).mean()


@jax.jit
def step(
    weights: Any, velocity: Any, images: jax.Array, classes: jax.Array
) -> tuple[Any, Any, jax.Array]:
    """Return weights and velocity after a step of gradient descent with momentum, and the loss before it."""
    loss, gradient = jax.value_and_grad(mean_loss)(weights, images, classes)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
    return jax.tree.map(lambda w, v: w - 0.1 * v, weights, velocity), velocity, loss


digits = load_digits()
images, classes = digits.images / 16, digits.target
train = Digits(images[:-HELD_OUT], classes[:-HELD_OUT], augmented=True)
held_out = Digits(images[-HELD_OUT:], classes[-HELD_OUT:], augmented=False)

keys = jax.random.split(jax.random.key(0))
weights = {
    "in": jax.random.normal(keys[0], (64, 256)) / 8,
    "bias": jnp.zeros(256),
    "out": jax.random.normal(keys[1], (256, 10)) / 16,
}
velocity = jax.tree.map(jnp.zeros_like, weights)

with (
    ringfeed.Loader(
        train, batch_size=64, shuffle=True, drop_remainder=True, workers=2, slots=3
    ) as batches,
    ringfeed.Loader(held_out, batch_size=64, workers=1, slots=3) as held_out_batches,
):
    for epoch in range(15):
        # JAX computes later than this loop runs; the slot is filled again when JAX has read it.
        for x, y in batches.to_jax():
            weights, velocity, loss = step(weights, velocity, x, y)
        print(f"epoch {epoch}: loss of the last batch {loss:.3f}")
    right = sum(
        int((scores(weights, x).argmax(1) == y).sum()) for x, y in held_out_batches.to_jax()
    )
    print(f"accuracy on {HELD_OUT} digits never seen: {right / HELD_OUT:.1%}")
    print(f"shared memory: {(batches.memory + held_out_batches.memory) / 1e6:.1f} MB")
