"""Batches that hold sparse or ragged tensors, which no slot has a place for.

No framework is imported here.

    worker process   dataset[i] ── pickled into the slot ─────────────> the same batch, made anew
    worker thread    dataset[i] ── kept here, its number in the slot ─> the same batch

How large they will be is not known beforehand. A pickle larger than its place in the slot stays
behind, and the process that asks for the batch makes it itself: ``dataset[i]`` once more.

Workers import this module: it stays light.
"""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import class_names
from ringfeed.datasets.indexed import batches_in
from ringfeed.errors import ShipError
from ringfeed.spec.array import CONTAINERS, Array

if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECTS = {
    "tensorflow.SparseTensor",
    "tensorflow.RaggedTensor",
    "scipy.spmatrix",
    "scipy.sparray",
    "jax.JAXSparse",
}
"""What Keras takes beside arrays, and a slot cannot hold."""
MARGIN = 4  # how many times as large as the first batch's a pickle may be
LEAST_ROOM = 65_536  # bytes
NOTHING = np.empty((1, 0), np.uint8)


def leaves_of(batch: Any) -> Iterator[Any]:
    """Yield what is in the tuples, lists and dicts of a batch, whatever it is."""
    if isinstance(batch, CONTAINERS):
        for branch in batch.values() if isinstance(batch, dict) else batch:
            yield from leaves_of(branch)
    else:
        yield batch


def holds_objects(batch: Any) -> bool:
    """Whether a sparse or ragged tensor is among the leaves of a batch."""
    return any(not class_names(leaf).isdisjoint(OBJECTS) for leaf in leaves_of(batch))


class KeptBatches:
    """The batches that threads of this process hand over as they are, each under a number."""

    def __init__(self) -> None:
        self._batches: dict[int, Any] = {}
        self._numbers = itertools.count()

    def put(self, batch: Any) -> Any:
        """Keep a batch; returns what its slot is to hold."""
        if batch is None:
            return None
        number = next(self._numbers)
        self._batches[number] = batch
        return np.array([number]), NOTHING

    def take(self, held: Any) -> Any:
        """Return the batch of a slot."""
        return self._batches.pop(int(held[0][0]))


class ObjectBatches:
    """A dataset as one whose batches are arrays: a number, and a pickle or nothing.

    ``first`` is its first batch that is not None. ``sends``: whether worker processes read it, and
    not threads.
    """

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(self, dataset: Any, first: Any, *, sends: bool) -> None:
        """Measure the pickle of the first batch."""
        self.dataset = dataset
        self.room = max(MARGIN * len(_pickled(first)), LEAST_ROOM) if sends else 0
        """Bytes of a slot for the pickle of a batch; 0: batches stay in this process."""
        self._kept = None if sends else KeptBatches()

    @property
    def spec(self) -> tuple[Array, Array]:
        """What is in a slot."""
        return Array((), "int64"), Array((self.room,), "uint8", variable=True)

    @property
    def num_batches(self) -> int | None:
        """The batches of the dataset as it is now."""
        return batches_in(self.dataset)

    def on_epoch_end(self) -> None:
        """Run the dataset's hook."""
        if (hook := getattr(self.dataset, "on_epoch_end", None)) is not None:
            hook()

    def __getitem__(self, index: int) -> Any:
        """Return what the slot of a batch is to hold."""
        batch = self.dataset[index]
        if batch is None or self._kept is not None:
            return batch if self._kept is None else self._kept.put(batch)
        pickled = _pickled(batch)
        fits = len(pickled) <= self.room
        return np.array([index]), np.frombuffer(pickled, np.uint8)[None] if fits else NOTHING

    def take(self, held: Any) -> Any:
        """Return the batch that a slot stands for."""
        if self._kept is not None:
            return self._kept.take(held)
        (index,), (pickled,) = held
        if pickled.size:
            return pickle.loads(pickled)  # noqa: S301 - of our own worker
        from ringfeed.transport.copied import of_copy  # noqa: PLC0415 - not in a worker

        try:
            return of_copy(self.dataset, lambda dataset: dataset[int(index)])
        except ShipError:  # which forked workers have all the same
            return self.dataset[int(index)]


def _pickled(batch: Any) -> bytes:
    return pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
