"""TensorFlow: `to_tf_dataset` and `from_generator`, both prefetched to the device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from devices.common import SLOTS, Feed, Scale, dataset_of, loader

if TYPE_CHECKING:
    from collections.abc import Iterator

GENERATOR = "from_generator"


def why_not() -> str:
    """Why nothing can be measured; empty where it can."""
    return (
        "" if tf.config.list_physical_devices("GPU") else f"tensorflow {tf.__version__} sees no GPU"
    )


class Gpu:
    """The first GPU."""

    def __init__(self, device: str = "gpu", scale: Scale | None = None) -> None:
        self.device = f"/{device.upper()}:0"
        found = tf.config.list_physical_devices(device.upper())
        details = tf.config.experimental.get_device_details(found[0]) if device != "cpu" else {}
        self.name = details.get("device_name", device)
        width = (scale or Scale()).width
        with tf.device(self.device):
            self.numbers = tf.random.uniform((width, width))
            self.seen = tf.Variable(0.0)

    def put(self, batch: Any) -> Any:
        """By an identity on the device, which is waited for."""
        with tf.device(self.device):
            copied = tf.identity(batch)
        self.wait()
        return copied

    def multiply(self, rounds: int, batch: Any) -> None:
        """Eagerly: each is begun, and not waited for."""
        with tf.device(self.device):
            for _ in range(rounds):
                tf.linalg.matmul(self.numbers, self.numbers)
            if batch is not None:
                tf.reduce_sum(batch)

    def wait(self) -> None:
        """For all devices; and for one answer, which comes after all that was begun on the stream."""
        tf.test.experimental.sync_devices()
        with tf.device(self.device):
            self.seen.assign_add(1.0).numpy()


@contextmanager
def feed(contender: str, scale: Scale, device: str = "gpu") -> Iterator[Feed]:
    """The batches of a contender."""
    to_device = tf.data.experimental.prefetch_to_device(
        f"/{device.upper()}:0"
    )  # the last step of a pipeline
    if contender == GENERATOR:
        signature = tf.TensorSpec((scale.rows, *scale.shape), tf.float32)
        batches = tf.data.Dataset.from_generator(
            lambda: _batches(scale), output_signature=signature
        ).prefetch(SLOTS)
        yield Feed(batches, batches.apply(to_device))
        return
    with loader(scale) as made:
        yield Feed(made.to_tf_dataset(), made.to_tf_dataset().apply(to_device))


def _batches(scale: Scale) -> Iterator[Any]:
    pictures = dataset_of(scale)
    for first in range(0, len(pictures), scale.rows):
        yield np.stack([pictures[index] for index in range(first, first + scale.rows)])
