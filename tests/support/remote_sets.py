"""Datasets of every kind for remote workers, and the content of what a loader gives of them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ringfeed import Loader
from ringfeed.datasets import Interleave, Mix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Samples:
    """Samples with random numbers, and a large array that all read."""

    def __init__(self) -> None:
        self.large = np.arange(1 << 18, dtype=np.int64)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        drawn = ringfeed.rng().integers(0, 100, (4, 4)).astype(np.int32)
        return drawn + self.large[index].astype(np.int32), index


class Changes(Samples):
    """A dataset that is another in each epoch."""

    def on_epoch_end(self) -> None:
        self.large = self.large + 1000


class Into(Samples):
    """The same, written into place."""

    def read_into(self, index: int, out: Any) -> None:
        out[0][...], out[1][...] = self[index]


class Many:
    """Samples that come many at a time."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index), index

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Batches:
    """Whole batches of several lengths; number 5 is None."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return None if index == 5 else {"x": np.full((3 + index % 3, 4), index, np.float32)}


class Elements:
    """An iterable."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(np.full(3, number, np.int16), number) for number in range(70)])


def collates(samples: list[Any]) -> Any:
    """Return a batch."""
    return np.stack([sample[0] for sample in samples]), np.array([sample[1] for sample in samples])


def doubles(sample: Any) -> Any:
    """Return it doubled: a sample, or a batch."""
    return sample[0] * 2, sample[1]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "samples": (Samples(), {"batch_size": 16, "shuffle": True}),
    "read_into": (Into(), {"batch_size": 16, "shuffle": True}),
    "__getitems__": (Many(), {"batch_size": 16, "shuffle": True}),
    "whole batches": (Batches(), {"batch_size": None, "max_batch_size": 8}),
    "arrays": (
        (np.arange(300).reshape(100, 3), np.arange(100)),
        {"batch_size": 16, "shuffle": True},
    ),
    "collate_fn": (Samples(), {"batch_size": 16, "collate_fn": collates}),
    "transform": (Samples(), {"batch_size": 16, "transform": doubles}),
    "batch_transform": (Samples(), {"batch_size": 16, "batch_transform": doubles}),
    "Mix": (Mix([Samples(), Samples()], weights=[1, 2]), {"batch_size": 16, "shuffle": True}),
    "iterable": (Elements(), {"batch_size": 16}),
    "Interleave": (Interleave([Elements(), Elements(), Elements()]), {"batch_size": 8}),
    "concurrency": (Samples(), {"batch_size": 16, "concurrency": 4}),
    "reseed": (Samples(), {"batch_size": 16, "reseed": True}),
}


def leaves_of(batch: Any) -> list[Any]:
    """Return the arrays of a batch."""
    if isinstance(batch, dict):
        batch = [batch[key] for key in sorted(batch)]
    if isinstance(batch, tuple | list):
        return [leaf for part in batch for leaf in leaves_of(part)]
    return [np.asarray(batch)]


def bytes_of(batches: Iterable[Any]) -> list[list[Any]]:
    """Return the content of each batch."""
    return [
        [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves_of(batch)]
        for batch in batches
    ]


def content(dataset: Any, epochs: int = 2, **given: Any) -> list[list[list[Any]]]:
    """Return all that a loader gives in some epochs, as bytes."""
    with Loader(dataset, **{"seed": 1, "timeout_s": 60, **given}) as loader:
        return [bytes_of(loader) for _ in range(epochs)]


def moved(**given: Any) -> list[list[list[Any]]]:
    """Return what a loader gives whose dataset changes, from an epoch set by hand, broken off, and gone on with."""
    given = {"batch_size": 16, "shuffle": True, "seed": 1, "timeout_s": 60, **given}
    with Loader(Changes(), **given) as loader:
        loader.set_epoch(3)
        broken_off = bytes_of(islice(loader, 2))
        state = loader.state_dict()
        rest = [bytes_of(loader) for _ in range(2)]
    with Loader(Changes(), **given) as other:
        other.load_state_dict(state)
        return [broken_off, *rest, bytes_of(other)]


class Fails(Samples):
    """A sample that raises."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            message = "the file is torn"
            raise OSError(message)
        return super().__getitem__(index)
