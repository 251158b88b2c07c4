"""Rows of actors land in the slots of the ring: the epoch is that of local workers."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed import Array, Bytes, Loader, Text
from ringfeed.ray.claims import Claims
from ringfeed.ray.desk import PrivateSlot
from ringfeed.ray.landing import lander_of
from ringfeed.ring import _ring
from ringfeed.workers.pool import Pool
from watching import PATIENCE_S

if TYPE_CHECKING:
    from ringfeed.workers.pool import PoolConfig

AT_ONCE = 3


class Loopback(Pool):
    """A bridge in this process, which claims several tickets; its actors are slots."""

    row_by_row = False

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        lander = lander_of(config.source, config.offsets, config.ring)
        self.claims = Claims(_ring.WorkerEnd(config.ring, 0, yields=True), lander)
        self.actors: list[PrivateSlot] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, dataset: Any) -> None:
        count = 1 if self._config.source.streams else AT_ONCE
        self.actors = [
            PrivateSlot(self._config.source, dataset, worker=(n, count, 0)) for n in range(count)
        ]
        self._thread.start()

    def _run(self) -> None:
        held = []
        while not self.claims.is_over:
            claim = self.claims.next(0 if held else 10**8)
            if claim is not None:
                held.append(claim)
            if held and (claim is None or len(held) == AT_ONCE):
                for actor, one in zip(self.actors, held, strict=False):
                    self._make(actor, one)
                del held[: len(self.actors)]
            self.claims.cancel()

    def _make(self, actor: PrivateSlot, claim: Any) -> None:
        parts = [[row] for row in claim.rows] if self.row_by_row else [list(claim.rows)]
        for rows in reversed(parts):
            filled = actor.fill(claim.epoch, claim.version, [claim.indices[row] for row in rows])
            self.claims.land(claim, pickle.loads(pickle.dumps(filled)), rows)  # as it travels
            del filled

    def stop(self) -> None:
        super().stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        for actor in self.actors:
            actor.close()


class RowByRow(Loopback):
    """The same, where each row of a ticket is made by a call of its own, the last one first."""

    row_by_row = True


def plain(batch: Any) -> Any:
    """Return a batch as nested tuples of bytes, with shapes and dtypes."""
    if isinstance(batch, dict):
        return tuple((key, plain(value)) for key, value in batch.items())
    if isinstance(batch, (tuple, list)) and not isinstance(batch, np.ndarray):
        return tuple(map(plain, batch))
    if isinstance(batch, np.ndarray):
        return batch.shape, batch.dtype.str, batch.tobytes()
    if hasattr(batch, "__slots__") or hasattr(batch, "values"):
        return type(batch).__name__, *(
            plain(getattr(batch, name))
            for name in ("values", "row_splits", "lengths", "mask")
            if hasattr(batch, name)
        )
    return repr(batch)


def epochs(dataset: Any, pool: type[Pool] | None, **options: Any) -> Any:
    """Return two epochs, with errors in their places; ``pool`` fills the slots, or the consumer."""
    options = {"batch_size": 8, "shuffle": True, "seed": 3, **options}
    found = []
    with (
        pytest.MonkeyPatch.context() as patched,
        Loader(dataset, workers=0 if pool is None else 1, **options) as loader,
    ):
        patched.setattr("ringfeed.workers.processes.Processes", pool)
        for _ in range(2):
            iterator = iter(loader)
            while True:
                try:
                    found.append(plain(next(iterator)))
                except StopIteration:
                    break
                except ringfeed.RingfeedError as error:
                    found.append((type(error).__name__, str(error), repr(error.__cause__)))
    return found


class Pictures:
    """Samples of random numbers, to be converted."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> Any:
        rng = ringfeed.rng()
        return {
            "image": rng.integers(0, 256, (6, 5, 3), np.uint8),
            "label": index,
            "noise": rng.random(3),
        }


class Ragged:
    """Samples that differ in length."""

    def __len__(self) -> int:
        return 29

    def __getitem__(self, index: int) -> Any:
        return (
            np.arange(index % 5, dtype=np.int32) + index,
            f"é{'x' * (index % 4)}",
            b"ab" * (index % 3),
            float(index),
        )


class Failing(Pictures):
    """Some samples raise, and some have another shape."""

    def __getitem__(self, index: int) -> Any:
        if index % 6 == 1:
            message = f"no sample {index}"
            raise KeyError(message)
        if index % 11 == 5:
            return {"image": np.zeros((6, 5, 2), np.uint8), "label": index, "noise": np.zeros(3)}
        return super().__getitem__(index)


class InPlace:
    """Samples that are written into their rows."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> Any:
        return np.full((4,), index, np.int16), np.float64(index)

    def read_into(self, index: int, out: Any) -> None:
        out[0][...] = index
        out[1][...] = index


class Bulk(InPlace):
    """Samples that are read many at once."""

    read_into = None  # type: ignore[assignment]

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Numbers:
    """An iterable whose last batch is shorter."""

    def __iter__(self) -> Any:
        return (np.full(3, number) for number in range(21))


class Batches:
    """Whole batches of several lengths and shapes."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        rows = 3 + index % 3 if index else 5
        return np.full((rows, 2 + index % 2, 2), index, np.uint8), np.arange(rows)


SPEC = {
    "image": Array((3, 6, 5), "float32", scale=1 / 255, mean=(0.1, 0.2, 0.3), layout="CHW"),
    "label": Array((), "int64"),
    "noise": Array((3,), "float32", cast=True),
}
FORMS = (
    Array((None,), "int32", max_shape=(5,), form="ragged"),
    Text(20),
    Bytes(10),
    Array((), "float32"),
)
PADDED = (
    Array((None,), "int32", max_shape=(5,), form="pad", padding_value=-1, lengths=True),
    Text(20),
    Bytes(10),
    Array((), "float32"),
)
TOTAL = (
    Array((None,), "int32", max_shape=(5,), form="ragged", total=14),
    Text(20),
    Bytes(10),
    Array((), "float32"),
)
VARIABLE = (Array((3, 2), "uint8", variable=(0,)), Array((), "int64"))
SCALED = (Array((3, 2), "float32", variable=(0,), scale=0.5), Array((), "int64"))


def shifted(sample: Any) -> Any:
    """Return a new sample."""
    return {**sample, "label": sample["label"] + 1}


def brightened(batch: Any) -> None:
    """Change a batch in its slot."""
    batch["image"] += 1


def collated(samples: list[Any]) -> Any:
    """Make fewer rows than there are samples."""
    return np.stack([sample["image"][0] for sample in samples[::2]])


CASES = {
    "samples": (Pictures, {}),
    "converted": (Pictures, {"spec": SPEC}),
    "converted, and looked at": (Pictures, {"spec": SPEC, "batch_transform": brightened}),
    "transform": (Pictures, {"transform": shifted}),
    "collate_fn": (Pictures, {"collate_fn": collated}),
    "read_into": (InPlace, {}),
    "in bulk": (Bulk, {}),
    "arrays": (lambda: (np.arange(60.0).reshape(20, 3), np.arange(20)), {}),
    "ragged": (Ragged, {"spec": FORMS}),
    "padded": (Ragged, {"spec": PADDED}),
    "over the total": (Ragged, {"spec": TOTAL}),
    "failing": (Failing, {"spec": SPEC}),
    "failing, left out": (Failing, {"spec": SPEC, "on_error": "skip"}),
    "batches": (Batches, {"batch_size": None, "spec": VARIABLE, "max_batch_size": 6}),
    "batches, converted": (Batches, {"batch_size": None, "spec": SCALED, "max_batch_size": 6}),
    "an iterable": (Numbers, {"shuffle": False}),
    "seeded states": (Pictures, {"reseed": True}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_epochs_are_those_of_local_workers(name: str) -> None:
    """Whatever the dataset is, all rows and all errors are the same, to the bit."""
    make, options = CASES[name]
    expected = epochs(make(), None, **options)
    assert expected
    assert epochs(make(), Loopback, **options) == expected


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CASES
        if "batch" not in name and "collate" not in name and "looked" not in name
    ],
)
def test_rows_may_come_one_by_one(name: str) -> None:
    """In any order, whatever other claims come to between."""
    make, options = CASES[name]
    assert epochs(make(), RowByRow, **options) == epochs(make(), None, **options)
