"""A plain script: NumPy and a dataset of samples, and a main guard."""

from __future__ import annotations

import sys

import numpy as np

from harness.consume import run_script
from harness.job import Job
from workloads.photographs import IMAGE
from workloads.workload import Window, Workload


class Pictures:
    """One picture for every index: the memory measured is the loader's, not the dataset's."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._picture = np.linspace(0, 1, int(np.prod(IMAGE)), dtype=np.float32).reshape(IMAGE)

    def __len__(self) -> int:
        """Samples."""
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        """The picture."""
        return self._picture


if __name__ == "__main__":
    job = Job.from_argument(sys.argv[1])
    window = Window(0, 2000, job.seconds)
    run_script(job, Workload("pictures", Pictures(64 * window.length), 64, window))
