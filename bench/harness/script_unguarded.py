"""The hard script: TensorFlow at its top, a real PyDataset of whole batches, and no main guard.

A loader whose workers import the main module pays for TensorFlow in each of them, and starts them
all again.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf

from harness.consume import run_script
from harness.job import Job
from workloads.photographs import IMAGE
from workloads.workload import Window, Workload


class Pictures(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """One picture, 64 times a batch: the memory measured is the loader's, not the dataset's."""

    def __init__(self, length: int) -> None:
        super().__init__(workers=2, use_multiprocessing=True)
        self._length = length
        self._picture = np.linspace(0, 1, int(np.prod(IMAGE)), dtype=np.float32).reshape(IMAGE)

    def __len__(self) -> int:
        """Batches."""
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        """A view that repeats the picture: the loader makes the one copy."""
        return np.broadcast_to(self._picture, (64, *IMAGE))


tf.constant(0.0)  # TensorFlow is alive, with its threads, before any worker starts
job = Job.from_argument(sys.argv[1])
window = Window(0, 2000, job.seconds)
run_script(job, Workload("pictures", Pictures(window.length), None, window))
