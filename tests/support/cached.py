"""Datasets for a cache, whose samples depend on their index alone, and a digest of what a loader gives."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

COUNT = 60
SIDE = 8


class Pair(NamedTuple):
    """A sample with names."""

    image: Any
    label: Any


class Images:
    """Noise of one shape, and a number; each sample that is read leaves a line in a file, if there is one."""

    def __init__(self, count: int = COUNT, log: Path | None = None) -> None:
        self.count, self.log = count, log

    def __len__(self) -> int:
        return self.count

    def image(self, index: int) -> np.ndarray[Any, Any]:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        return np.random.default_rng(index).integers(0, 256, (SIDE, SIDE, 3), np.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.image(index), index


class NotReadAhead(Images):
    """Samples of which none is read before its epoch begins: a hook might change them."""

    def on_epoch_end(self) -> None:
        pass


class Drawn(Images):
    """Samples that draw random numbers themselves."""

    def __getitem__(self, index: int) -> Any:
        return ringfeed.rng().random(3), index


class AwaitedDrawn(Images):
    """The same, awaited."""

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.001)
        return ringfeed.rng().random(3), index


class Structured(Images):
    """Everything that a sample may be made of."""

    def __getitem__(self, index: int) -> Any:
        image = self.image(index)
        return {
            "pair": Pair(image.astype(np.float32), float(index)),
            "list": [index % 2 == 0, np.int16(index), None],
            "turned": np.asfortranarray(image[..., 0]),
            "parts": image[::2, ::-1, 1],
        }


class Lengths(Images):
    """Samples that differ in length."""

    SPEC: ClassVar = {
        "text": ringfeed.Text(64),
        "bytes": ringfeed.Bytes(16),
        "ragged": ringfeed.Array((None,), "int64", max_shape=(9,), form="ragged"),
        "padded": ringfeed.Array((None, 3), "float64", max_shape=(5, 3), form="pad", lengths=True),
    }

    def __getitem__(self, index: int) -> Any:
        return {
            "text": "ü" * (index % 7),
            "bytes": bytes([index] * (index % 5)),
            "ragged": np.arange(index % 9),
            "padded": self.image(index)[: index % 5, 0].astype(float),
        }


class Bulk(Images):
    """Many samples by one call."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return (self[index] for index in indices)


class Into(Images):
    """Samples that are written where they belong."""

    def read_into(self, index: int, out: Any) -> None:
        out[0][...] = self.image(index)
        out[1][...] = index


class Awaited(Images):
    """Samples that are awaited."""

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.001)
        return self.image(index), index


class Batches(Images):
    """Whole batches of one to three rows."""

    def __getitem__(self, index: int) -> Any:
        rows = index % 3 + 1
        return np.stack([self.image(index)] * rows), np.arange(rows)


def augmented(sample: Any, rng: np.random.Generator) -> Any:
    """Make a new sample, with random numbers."""
    image, label = sample
    image[0] = 0  # which may be written to
    return image * np.float32(rng.random()), label


def shifted(sample: Any, rng: np.random.Generator) -> Any:
    """Make a new sample, with random numbers beside those of the dataset."""
    return sample[0], rng.random(2)


def inverted(sample: Any) -> None:
    """Change a sample in place."""
    sample[0][...] = 255 - sample[0]


def mirrored(batch: Any) -> None:
    """Change a batch in place."""
    batch[0][...] = batch[0][:, ::-1].copy()


def stacked(samples: list[Any]) -> Any:
    """Make a batch of samples."""
    return np.stack([image for image, _ in samples]), np.array([label for _, label in samples])


def leaves(value: Any) -> Iterable[Any]:
    """Give the arrays of a batch."""
    if isinstance(value, ringfeed.Ragged):
        yield from (value.values, value.row_splits)
    elif isinstance(value, dict):
        yield from leaves([*value.values()])
    elif isinstance(value, tuple | list):
        for child in value:
            yield from leaves(child)
    elif value is not None:
        yield np.ascontiguousarray(value)


def digest(loader: ringfeed.Loader, epochs: int = 3) -> str:
    """Return what tells the batches of some epochs from all others."""
    found = hashlib.sha256()
    for _ in range(epochs):
        for batch in loader:
            for leaf in leaves(batch):
                found.update(f"{leaf.dtype}{leaf.shape}".encode())
                found.update(leaf.tobytes())
    return found.hexdigest()


def run(dataset: Any, epochs: int = 3, **settings: Any) -> tuple[str, dict[str, Any]]:
    """Return the digest and the state of a loader after some epochs."""
    settings = {"workers": 2, "seed": 3, **settings}
    if "batch_sampler" not in settings:
        settings = {"batch_size": 7, "shuffle": "sampler" not in settings, **settings}
    with ringfeed.Loader(dataset, **settings) as loader:
        return digest(loader, epochs), loader.state_dict()
