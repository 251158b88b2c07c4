"""Datasets as a user would write them. Worker processes import this module, so that nothing heavy stands at its top.

Every dataset is a pure function of the index: any batch can be computed again, and compared with
what was delivered.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import numpy as np

WAIT_S = 0.002
LIGHT, HEAVY, ONE_IN = 20_000, 1_000_000, 50  # bytes of hash, 50 times as many for one sample in 50


class Ready:
    """A ready batch (of 1 kB: 32 rows of 32 bytes) for each index: what is left is the hand-over alone."""

    def __init__(self, length: int, shape: tuple[int, ...] = (32, 8), distinct: int = 256) -> None:
        self._length = length
        self._ready = [np.full(shape, number, np.float32) for number in range(distinct)]

    def __len__(self) -> int:
        """Ready batches."""
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        """An array that exists already."""
        return self._ready[index % len(self._ready)]


class Resident:
    """Views of the samples of one array in memory, as many as fit, over and over."""

    def __init__(
        self, length: int, shape: tuple[int, ...], distinct: int, dtype: Any = np.float32
    ) -> None:
        self._length = length
        count = distinct * int(np.prod(shape))
        self._samples: np.ndarray = (
            np.arange(count, dtype=np.float32).astype(dtype).reshape(distinct, *shape)
        )

    def __len__(self) -> int:
        """Samples, each of the resident ones many times."""
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        """A view: the loader makes the one copy."""
        sample: np.ndarray = self._samples[index % len(self._samples)]
        return sample


class Arrays:
    """Two arrays, rows and their numbers, in a shuffled order that repeats.

    A loader can be given the arrays alone.
    """

    def __init__(self, length: int, shape: tuple[int, ...], distinct: int) -> None:
        self._length = length
        count = distinct * int(np.prod(shape))
        self.given: tuple[np.ndarray, np.ndarray] = (
            np.arange(count, dtype=np.float32).reshape(distinct, *shape),
            np.arange(distinct),
        )
        self._order = np.random.default_rng(0).permutation(distinct)

    def __len__(self) -> int:
        """Rows, each many times."""
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """A row, by view, and its number."""
        row = self._order[index % len(self._order)]
        return self.given[0][row], self.given[1][row]

    def gather(self, start: int, out: tuple[np.ndarray, ...]) -> None:
        """Copy the rows from `start` on into `out`, as fast as NumPy can."""
        numbers: np.ndarray = self._order.take(range(start, start + len(out[0])), mode="wrap")
        for array, place in zip(self.given, out, strict=True):
            array.take(numbers, axis=0, out=place, mode="clip")  # not "raise", which copies twice

    def holds(self, batch: tuple[np.ndarray, ...]) -> bool:
        """Whether each row is the one that its number says, and none is there twice."""
        rows, numbers = map(np.asarray, batch)
        return len(np.unique(numbers)) == len(rows) and np.array_equal(rows, self.given[0][numbers])


class Stamped:
    """Samples that follow from their index by a hash and carry it: any loss, double or mix-up shows."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """3 kB of hash, and the index."""
        return _hashed(index, 32 * 32 * 3), index


class Waiting(Stamped):
    """The same from a source that lets one wait for each: a disk, a network."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """The sample, after a while without computing."""
        time.sleep(WAIT_S)
        return super().__getitem__(index)


class Uneven(Stamped):
    """The same at uneven cost: one sample in fifty, wherever a hash puts it, takes fifty times as long."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """The begin of more hash than is needed."""
        dice = (index * 2654435761 & 0xFFFFFFFF) >> 8  # Knuth's multiplicative hash
        return _hashed(index, LIGHT if dice % ONE_IN else HEAVY), index


class Witnessed(Stamped):
    """The same, leaving word of the process that made each sample: 8 bytes in a file that lives as long as this one."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._file = f"/proc/{os.getpid()}/fd/{os.memfd_create('witness')}"

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """The sample, once it is written down."""
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(
                file, os.getpid().to_bytes(8, "little")
            )  # in one piece, whatever else is written
        finally:
            os.close(file)
        return super().__getitem__(index)

    def makers(self) -> list[int]:
        """The process that made each sample so far, in the order in which they were begun."""
        with open(self._file, "rb") as file:  # noqa: PTH123 - a path of /proc
            return [int(pid) for pid in np.frombuffer(file.read(), np.int64)]


class Fields:
    """Samples of many small fields, the last of which is the index."""

    def __init__(self, length: int, fields: int) -> None:
        self._length, self._fields = length, fields
        self._field = np.arange(8, dtype=np.float32)

    def __len__(self) -> int:
        """Samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, ...] | int:
        """The same array in every field but the last; of one field, the index."""
        return (*[self._field] * (self._fields - 1), index) if self._fields > 1 else index

    def holds(self, batch: tuple[np.ndarray, ...]) -> bool:
        """Whether each row is a sample, and none is there twice."""
        *fields, numbers = map(np.asarray, batch)
        once = len(np.unique(numbers)) == len(numbers)
        return once and all(
            np.array_equal(field, np.broadcast_to(self._field, field.shape)) for field in fields
        )


def _hashed(index: int, size: int) -> np.ndarray:
    """The first 3 kB of so many bytes of hash, as a picture."""
    stream = hashlib.shake_128(index.to_bytes(8, "little")).digest(size)
    return np.frombuffer(stream, np.uint8, 32 * 32 * 3).reshape(32, 32, 3)
