"""`fit` on a GPU, on whichever backend Keras has: `to_keras()`, a PyDataset, and one batch again and again."""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from devices.common import SLOTS, WORKERS, Scale, dataset_of, loader, of_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

PYDATASET = "PyDataset, threads"
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


class Labelled:
    """Samples with classes."""

    def __init__(self, scale: Scale) -> None:
        self.samples, self.count = dataset_of(scale), scale.steps * scale.rows

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.samples[index], index % CLASSES

    def read_into(self, index: int, out: Any) -> None:
        """Write the sample into its row of the slot."""
        self.samples.read_into(index, out[0])
        out[1][...] = index % CLASSES


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
    layers: list[Any] = [keras.Input(scale.shape), keras.layers.Permute((2, 3, 1))]
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
def fed(contender: str, scale: Scale) -> Iterator[Any]:
    """What `fit` takes."""
    if contender == PYDATASET:
        yield Batches(scale)
        return
    with loader(scale, Labelled(scale)) as batches:
        yield batches.to_keras()


def step_s(model: Any, data: Any, scale: Scale, **settings: Any) -> float:
    """The seconds of a batch in whole epochs of `fit`, once all is compiled."""
    clock = Clock()
    epochs = COMPILING + EPOCHS
    model.fit(data, epochs=epochs, callbacks=[clock], shuffle=False, verbose=0, **settings)
    return median(np.diff(clock.ends_s[COMPILING - 1 :])) / scale.steps


def same_again(batch: Any) -> Any:
    """One batch of memory without end."""
    if keras.backend.backend() != "tensorflow":
        return (same for same in repeat(batch))  # Keras takes a generator, and no other iterator
    import tensorflow as tf  # noqa: PLC0415 - which copies what a generator gives

    return tf.data.Dataset.from_tensors(batch).repeat()


def measure(contender: str, scale: Scale) -> dict[str, Any]:
    """A step of `fit`, fed; and one with the same batch of memory again and again."""
    model = build_model(scale)
    with fed(contender, scale) as data:
        fed_s = step_s(model, data, scale)
    alone = same_again(Batches(scale)[0])
    return of_steps(step_s(model, alone, scale, steps_per_epoch=scale.steps), fed_s, scale)
