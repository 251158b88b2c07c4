"""uint8 datasets of every kind, and what NumPy makes of them, step by step.

Importable in workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 8  # of a whole batch
IMAGENET: dict[str, Any] = {
    "scale": 1 / 255,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


def converted(x: Any, steps: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return uint8 as NumPy converts it, a step a line."""
    found = np.asarray(x).astype(np.float32)
    if steps.get("scale") is not None:
        found = found * np.float32(steps["scale"])
    if steps.get("offset") is not None:
        found = found + np.float32(steps["offset"])
    if steps.get("mean") is not None:
        found = found - np.asarray(steps["mean"], np.float32)
    if steps.get("std") is not None:
        found = found / np.asarray(steps["std"], np.float32)
    return np.moveaxis(found, -1, -3) if steps.get("layout") else found


def array_of(shape: tuple[int, ...], steps: dict[str, Any]) -> ringfeed.Array:
    """Return the Array that converts samples of this shape."""
    return ringfeed.Array(
        (shape[-1], *shape[:-1]) if steps.get("layout") else shape, "float32", **steps
    )


class Samples:
    """Gives the rows of an array, and their numbers."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index


class Bulk(Samples):
    """Gives many rows at once."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class OneBuffer(Samples):
    """Gives many rows one after another, in the same memory."""

    def __getitems__(self, indices: list[int]) -> Iterator[Any]:
        buffer = np.empty_like(self.x[0])
        for index in indices:
            buffer[...] = self.x[index]
            yield buffer, index


class Whole(Samples):
    """Gives whole batches, the last of them shorter."""

    def __len__(self) -> int:
        return (len(self.x) + ROWS - 1) // ROWS

    def __getitem__(self, index: int) -> Any:
        rows = slice(ROWS * index, ROWS * (index + 1))
        return self.x[rows], np.arange(len(self.x))[rows]


class Stream(Samples):
    """Gives rows without an index."""

    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        yield from ((row, index) for index, row in enumerate(self.x))


def _spaced(x: Any) -> Any:
    return np.repeat(x, 2, axis=0)[::2], np.arange(len(x))


def _strided(x: Any) -> Any:
    return np.repeat(x, 2, axis=-1)[..., ::2], np.arange(len(x))


KINDS: dict[str, Any] = {
    "samples": Samples,
    "bulk": Bulk,
    "one buffer": OneBuffer,
    "whole batches": Whole,
    "iterable": Stream,
    "arrays": lambda x: (x, np.arange(len(x))),
    "spaced arrays": _spaced,
    "strided arrays": _strided,
}


def loader_of(kind: str, x: Any, steps: dict[str, Any], **settings: Any) -> ringfeed.Loader:
    """Return a loader that converts the samples of this kind of dataset."""
    rows: dict[str, Any] = (
        {"batch_size": None, "max_batch_size": ROWS}
        if kind == "whole batches"
        else {"batch_size": ROWS}
    )
    spec = array_of(x.shape[1:], steps), ringfeed.Array((), "int64")
    return ringfeed.Loader(KINDS[kind](x), spec=spec, **rows, **settings)
