"""Numbers as an iterable and as samples, and what loaders of them give. Importable in workers."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ringfeed import Loader, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MADE: list[Loader] = []
"""The loaders of a test, which the fixture `closed` closes at its end."""


class Numbers:
    """Numbers, each with a random number of its own.

    ``deed`` is done ahead of the one called ``at``.
    """

    def __init__(self, stop: int, at: int = -1, deed: Callable[[], object] | None = None) -> None:
        self.stop, self.at, self.deed = stop, at, deed

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.stop):
            if number == self.at and self.deed is not None:
                self.deed()
            yield np.int64(number), ringfeed.rng().random()


class ByNumber:
    """The same as a dataset whose samples have numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.int64(index), ringfeed.rng().random()


def die() -> None:
    """End this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    """Raise what an iterable may."""
    message = "no more of this"
    raise KeyError(message)


def drawn(sample: Any) -> Any:
    """Add a random number to a sample, drawn after those of the dataset."""
    return (*sample, ringfeed.rng().random())


def same(sample: Any) -> Any:
    """Return a sample as it is."""
    return sample


def taken(loader: Loader) -> list[Any]:
    """Return all of an epoch."""
    return [[leaf.tolist() for leaf in batch] for batch in loader]


def numbers(loader: Loader) -> list[list[int]]:
    """Return the numbers of an epoch's elements, batch by batch."""
    return [(batch[0] if isinstance(batch, tuple) else batch).tolist() for batch in loader]


def until_it_fails(loader: Loader) -> tuple[list[list[int]], list[str]]:
    """Return the numbers of an epoch's elements, batch by batch, and what was raised amid them."""
    found, errors, batches = list[list[int]](), list[str](), iter(loader)
    while True:
        try:
            found.append(next(batches)[0].tolist())
        except StopIteration:
            return found, errors
        except WorkerError as error:
            errors.append(str(error))
