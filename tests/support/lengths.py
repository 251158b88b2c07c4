"""Samples that differ in length in each way there is, and what a batch of them must hold.

Workers import it.
"""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import ringfeed
from ringfeed import Array, Bytes, Text

LONGEST = 30
SPEC = {
    "image": Array((8, 8, 3), "uint8"),
    "boxes": Array((None, 4), "float32", max_shape=(LONGEST, 4), form="ragged"),
    "tight": Array((None, 2), "float64", max_shape=(LONGEST, 2), form="ragged", total=200),
    "ids": Array((None,), "int64", max_shape=(LONGEST,), form="pad", padding_value=-1),
    "steps": Array(
        (None,), "int16", max_shape=(LONGEST,), form="pad", pad_to=(8, 16, 32), lengths=True
    ),
    "picture": Array((None, None, 3), "uint8", max_shape=(LONGEST, 9, 3), form="pad", mask=True),
    "encoded": Bytes(100, total=600),
    "text": Text(100),
    "label": Array((), "int64"),
}


class Killer:
    """An array that ends the process that asks for it, once for each file: what comes before it was written."""

    def __init__(self, array: Any, file: Path) -> None:
        self.array, self.file = array, file

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        del dtype, copy
        if self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.array


class Lengths:
    """Sample i depends on i alone.

    ``deaths``: those that end their worker amid their leaves, by files in ``place``.
    """

    def __init__(
        self, length: int, place: Path | None = None, deaths: tuple[int, ...] = ()
    ) -> None:
        self.length, self.place, self.deaths = length, place, deaths
        for index in deaths:
            self._file(index).touch()

    def _file(self, index: int) -> Path:
        return Path(self.place or "", f"death-{index}")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        count = int(random.integers(0, LONGEST)) if index % 5 else 0
        width = int(random.integers(1, 9))
        boxes: Any = random.random((4, count), dtype=np.float32).T  # not contiguous
        tight: Any = random.random((count, 2))
        return {
            "image": random.integers(0, 256, (8, 8, 3), dtype=np.uint8),
            "boxes": boxes,
            "tight": Killer(tight, self._file(index)) if index in self.deaths else tight,
            "ids": random.integers(0, 9, count),
            "steps": random.integers(0, 9, count, dtype=np.int16),
            "picture": random.integers(0, 256, (count, width, 3), dtype=np.uint8),
            "encoded": random.bytes(int(random.integers(0, 100))),
            "text": "é" * count + str(index),
            "label": index,
        }


def check(batch: dict[str, Any], numbers: list[int]) -> None:
    """Assert that a batch holds just these samples."""
    dataset = Lengths(0)
    assert batch["label"].tolist() == numbers
    for row, number in enumerate(numbers):
        sample = dataset[number]
        count = len(sample["ids"])
        for name in ("image", "boxes", "tight"):
            assert np.array_equal(batch[name][row], sample[name])
        assert np.array_equal(batch["ids"][row, :count], sample["ids"])
        assert (batch["ids"][row, count:] == -1).all()
        assert batch["steps"].lengths[row] == count
        assert np.array_equal(batch["steps"].values[row, :count], sample["steps"])
        assert not batch["steps"].values[row, count:].any()
        values, mask = batch["picture"]
        height, width, _ = sample["picture"].shape
        assert np.array_equal(values[row, :height, :width], sample["picture"])
        assert not values[row][~mask[row]].any()
        assert mask[row].sum() == height * width
        assert mask[row, :height, :width].all()
        assert bytes(batch["encoded"][row]) == sample["encoded"]
        assert batch["text"][row] == sample["text"]
    longest = max(len(dataset[number]["ids"]) for number in numbers)
    assert batch["ids"].shape == (len(numbers), longest)
    assert batch["steps"].values.shape[1] == next(
        length for length in (8, 16, 32) if length >= longest
    )
    for name in ("boxes", "tight", "encoded", "text"):
        assert batch[name].values.flags.c_contiguous
        assert batch[name].row_splits.dtype == np.int64


def digest(leaf: Any) -> str:
    """Return a hash of all that a leaf of a batch holds."""
    if isinstance(leaf, ringfeed.Ragged):
        return digest(leaf.values) + digest(leaf.row_splits)
    if isinstance(leaf, tuple):
        return "".join(map(digest, leaf))
    return hashlib.sha256(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes()).hexdigest()


def digests(loader: Any) -> list[str]:
    """Return hashes of an epoch's batches."""
    return ["".join(map(digest, batch.values())) for batch in loader]
