"""Datasets of whole batches for enqueuers, as Keras 2 and Keras 3 have them.

Importable in workers.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PATIENCE_S = 60.0


def batch_of(number: int, rows: int = 4) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a batch whose rows tell its number."""
    return np.full((rows, 3), number, np.float32), np.arange(rows, dtype=np.int64) + 100 * number


def number_of(batch: Any) -> int:
    """Return the number of a batch, having checked all of it."""
    number = int(batch[0][0, 0])
    for found, expected in zip(batch, batch_of(number, len(batch[0])), strict=True):
        np.testing.assert_array_equal(found, expected)
    return number


def numbers(batches: Iterable[Any], count: int) -> list[int]:
    """Return the numbers of the next batches."""
    return [number_of(batch) for batch in itertools.islice(batches, count)]


class Sequence:
    """Keras 2's: it has a length."""

    def __init__(self, length: int = 7) -> None:
        self.length = length
        self.ended = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return batch_of(index)

    def on_epoch_end(self) -> None:
        self.ended += 1


class Batched(Sequence):
    """Keras 3's: it has num_batches."""

    @property
    def num_batches(self) -> int:
        return self.length


class Endless(Batched):
    """It goes on for ever."""

    num_batches = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return batch_of(index)


class Holed(Sequence):
    """Some of its batches are None."""

    def __init__(self, length: int, holes: set[int]) -> None:
        super().__init__(length)
        self.holes = holes

    def __getitem__(self, index: int) -> Any:
        return None if index in self.holes else super().__getitem__(index)


class Shrinking(Batched):
    """Each epoch ends its first batch and turns the rest around: only who has the new order knows what batch i is."""

    def __init__(self, length: int = 7) -> None:
        super().__init__(length)
        self.order = list(range(length))

    def __getitem__(self, index: int) -> Any:
        return batch_of(self.order[index])

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.order = self.order[:0:-1]
        self.length = len(self.order)


class Deadly(Batched):
    """Its last batch kills the first worker that makes it."""

    def __init__(self, marks: Path, length: int = 7) -> None:
        super().__init__(length)
        self.marks = marks

    def __getitem__(self, index: int) -> Any:
        mark = self.marks / f"died-{index}"
        if index == self.length - 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Failing(Batched):
    """One of its batches raises."""

    def __init__(self, at: int, error: BaseException, length: int = 7) -> None:
        super().__init__(length)
        self.at = at
        self.error = error

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise self.error
        return super().__getitem__(index)


class Gated(Batched):
    """Its batches from ``shut`` on wait until the gate is opened. For threads."""

    def __init__(self, shut: int, length: int = 7) -> None:
        super().__init__(length)
        self.shut = shut
        self.gate = threading.Event()
        self.reached = threading.Event()

    def __getitem__(self, index: int) -> Any:
        if index >= self.shut:
            self.reached.set()
            assert self.gate.wait(PATIENCE_S)
        return super().__getitem__(index)


class Drawn(Batched):
    """Its batches are random: by the loader's numbers, and beside them by the global ones."""

    def __getitem__(self, index: int) -> Any:
        random.random()  # noqa: S311 - it is to move on
        np.random.random()  # noqa: NPY002 - likewise
        return ringfeed.rng().normal(size=(2, 3))


class Importing(Batched):
    """Its batches tell which modules of ringfeed are imported where they are made."""

    def __getitem__(self, index: int) -> Any:
        return np.array([[name in sys.modules for name in ("ringfeed.keras", "ringfeed.loader")]])


class Unopened:
    """An iterator of batches that counts what is read of it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.read >= self.length:
            raise StopIteration
        self.read += 1
        return batch_of(self.read - 1)


class Objects(Batched):
    """Batches of tensors whose sizes differ; each epoch has others."""

    def __init__(self, epoch: int = 0, length: int = 4) -> None:
        super().__init__(length)
        self.epoch = epoch

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.epoch += 1


class Tensors(Objects):
    """TensorFlow's sparse and ragged tensors beside arrays."""

    def __getitem__(self, index: int) -> Any:
        import tensorflow as tf  # noqa: PLC0415 - where the batch is made

        columns = np.arange(2 + index)
        indices = np.stack([columns // 2, columns], 1)
        sparse = tf.SparseTensor(indices, columns.astype(np.float32) + 10 * self.epoch, (3, 9))
        lengths = np.array([1, 2 + index, 3])
        ragged = tf.RaggedTensor.from_row_lengths(
            np.arange(lengths.sum()) + 20 * self.epoch, lengths
        )
        return {"sparse": sparse, "ragged": ragged, "dense": np.full((3, 2), index)}, np.ones(
            (3, 1), np.float32
        )


class MadeHere(Objects):
    """SciPy's sparse matrices, the process that has made them, and whether it has imported the loader."""

    def __init__(self, large: Any = (), holes: Any = (), failing: int = -1) -> None:
        super().__init__(length=5)
        self.large, self.holes, self.failing = set(large), set(holes), failing

    def __getitem__(self, index: int) -> Any:
        import scipy.sparse  # noqa: PLC0415 - a package that not everybody has

        if index == self.failing:
            raise LookupError("two")
        count = 40_000 if index in self.large else 5 + index
        x = scipy.sparse.csr_matrix(np.arange(3 * count, dtype=np.float32).reshape(3, count) % 7)
        return (
            None
            if index in self.holes
            else (x, np.array([os.getpid(), "ringfeed.loader" in sys.modules, 0]))
        )
