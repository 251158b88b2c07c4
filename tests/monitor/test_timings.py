"""How long samples take: in the dataset, and on their way into the slot, counted by each worker."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ahead import loader_with

if TYPE_CHECKING:
    from collections.abc import Iterator

NAP_S = 0.002
NAP_NS = 2_000_000
X = np.zeros((64, 4), np.uint8)


class Slow:
    """Sleeps for each sample."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        time.sleep(NAP_S)
        return X[index]


class SlowBulk(Slow):
    """Sleeps once for many samples."""

    def __getitems__(self, indices: list[int]) -> Any:
        time.sleep(NAP_S)
        return [X[index] for index in indices]


class SlowGenerator(Slow):
    """Sleeps between many samples."""

    def __getitems__(self, indices: list[int]) -> Iterator[Any]:
        yield from (self[index] for index in indices)


class SlowBatches(Slow):
    """Sleeps for each whole batch, of four rows."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        time.sleep(NAP_S)
        return X[4 * index : 4 * index + 4]


class SlowInPlace(Slow):
    """Sleeps while it writes into the slot."""

    def read_into(self, index: int, out: Any) -> None:
        out[...] = self[index]


def timings(dataset: Any, workers: dict[str, Any], **settings: Any) -> tuple[int, int, int, int]:
    """Return rows, read_ns, write_ns and tickets of all workers after an epoch."""
    settings = {"batch_size": 4, "ahead": False, **settings}
    with loader_with(dataset, **settings, **workers) as loader:
        for batch in loader:
            del batch
        seen = [
            (worker.timed, worker.read_ns, worker.write_ns, worker.tickets)
            for worker in loader._runner.engine.observer.workers()
        ]
        rows, read_ns, write_ns, tickets = (sum(column) for column in zip(*seen, strict=True))
        return rows, read_ns, write_ns, tickets


WORKERS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "thread"},
    {"workers": 2},
]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_one_row_of_each_ticket(workers: dict[str, Any]) -> None:
    """A row a ticket is timed, whichever worker fills it: inside the dataset, and in the write."""
    rows, read_ns, write_ns, tickets = timings(Slow(), workers)
    assert rows == tickets >= 16
    assert read_ns >= rows * NAP_NS
    assert write_ns > 0


class Watching:
    """Sees which row before its own was timed."""

    loader: Any = None

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> Any:
        self.counts.append(self.loader._runner.engine.observer.worker(0).timed)
        return X[0]


def test_every_place_in_a_batch_has_its_turn() -> None:
    """Which row of a ticket it is changes, so that no place in a batch is never looked at."""
    dataset = Watching()
    with ringfeed.Loader(
        dataset, batch_size=8, workers=0, spec=ringfeed.Array((4,), "uint8")
    ) as loader:
        dataset.loader = loader
        for batch in loader:
            del batch
        dataset.loader = None
    timed = [
        index for index, (one, two) in enumerate(itertools.pairwise(dataset.counts)) if two > one
    ]
    assert {index % 8 for index in timed} == set(range(8))


def test_rows_written_in_place() -> None:
    """What the dataset writes itself is all its own time."""
    rows, read_ns, write_ns, tickets = timings(SlowInPlace(), {"workers": 0})
    assert (rows, write_ns) == (tickets, 0)
    assert read_ns >= rows * NAP_NS


def test_many_rows_at_once() -> None:
    """All rows of a ticket are counted, and its whole time."""
    rows, read_ns, write_ns, tickets = timings(SlowBulk(), {"workers": 0})
    assert rows == 64
    assert read_ns >= tickets * NAP_NS
    assert write_ns > 0


def test_rows_of_a_generator() -> None:
    """What a generator does between its samples is the dataset's time."""
    rows, read_ns, write_ns, _ = timings(SlowGenerator(), {"workers": 0})
    assert rows == 64
    assert read_ns >= 64 * NAP_NS
    assert write_ns > 0


def test_whole_batches() -> None:
    """All rows that a batch has are counted."""
    rows, read_ns, write_ns, tickets = timings(SlowBatches(), {"workers": 0}, batch_size=None)
    assert (rows, tickets) == (64, 16)
    assert read_ns >= 16 * NAP_NS
    assert write_ns > 0


def test_arrays_are_only_written() -> None:
    """Rows of arrays take no time of a dataset."""
    rows, read_ns, write_ns, _ = timings(X, {"workers": 0})
    assert (rows, read_ns) == (64, 0)
    assert write_ns > 0


@pytest.mark.parametrize("kind", [Slow, SlowInPlace, SlowBatches])
def test_rows_that_fail_are_not_counted(kind: type[Slow]) -> None:
    """A sample that raises has no time."""

    class Failing(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, index: int) -> Any:
            raise KeyError(index)

    settings: dict[str, Any] = {"on_error": "skip", "spec": ringfeed.Array((4,), "uint8")}
    if kind is SlowBatches:
        settings |= {"batch_size": None, "max_batch_size": 4}
    assert timings(Failing(), {"workers": 0}, **settings)[:3] == (0, 0, 0)
