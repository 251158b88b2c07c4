"""Train a Keras model on an HDF5 file, which every worker opens for itself.

Run it: python hdf5_train.py (needs tensorflow, h5py and scikit-learn, whose digits it writes into a
file first). Rows are shuffled by whole chunks, so that each chunk is decompressed about once an
epoch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import keras
import numpy as np
from sklearn.datasets import load_digits

import ringfeed

HELD_OUT = 397
CHUNK = 50  # rows


class Rows:
    """Rows of a file, from one number to another."""

    def __init__(self, path: Path, first: int, last: int) -> None:
        self.given = path, first, last
        self.first, self.last = first, last
        self.file = h5py.File(path)
        self.images, self.classes = self.file["images"], self.file["classes"]

    def __reduce__(self) -> tuple[type, tuple[Path, int, int]]:
        """Let each worker open the file itself: an open file cannot be sent."""
        return Rows, self.given

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.images[self.first + index], self.classes[self.first + index]


digits = load_digits()
count = len(digits.images)
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.h5"
    with h5py.File(path, "w") as file:
        images = (digits.images[..., None] / 16).astype(np.float32)
        file.create_dataset("images", data=images, chunks=(CHUNK, 8, 8, 1), compression="gzip")
        file.create_dataset("classes", data=digits.target.astype(np.int64))
    order = ringfeed.orders.WindowShuffle(10 * CHUNK, block=CHUNK)
    with (
        ringfeed.Loader(
            Rows(path, 0, count - HELD_OUT), batch_size=64, sampler=order, workers=2
        ) as batches,
        ringfeed.Loader(Rows(path, count - HELD_OUT, count), batch_size=64, workers=1) as held_out,
    ):
        model.fit(batches.to_keras(), epochs=10, verbose=2)
        _, accuracy = model.evaluate(held_out.to_keras(), verbose=0)
        print(f"accuracy on {HELD_OUT} digits never seen: {accuracy:.1%}")
        print(f"shared memory: {(batches.memory + held_out.memory) / 1e6:.1f} MB")
