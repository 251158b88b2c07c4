"""A child that the user forks sees held batches as private arrays, as they were."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from forking import PATIENCE_S, Child

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

METHODS = ("spawn", "fork", "process")


class Counted:
    """Rows that are full of their index, of an odd size, so that batches end within a page."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        return np.full(1001, index, np.int64), index


def rows_of(first: int) -> Any:
    """Return the batch of 8 that begins with this index."""
    return np.repeat(np.arange(first, first + 8)[:, None], 1001, axis=1)


@pytest.fixture
def batches(backend: str) -> Iterator[Any]:
    """Return an iterator over batches of 8 counted rows, in three slots."""
    with ringfeed.Loader(Counted(), batch_size=8, workers=1, slots=3, backend=backend) as loader:
        yield iter(loader)


@pytest.fixture
def backend() -> str:
    """Return how workers are started, where a test does not say it."""
    return "process"


def check(batch: Any, first: int) -> None:
    """Assert that the batch is the one that begins with this index."""
    np.testing.assert_array_equal(batch[0], rows_of(first))
    np.testing.assert_array_equal(batch[1], np.arange(first, first + 8))


def test_what_a_child_writes_is_its_own(batches: Any) -> None:
    """The child's `+=` changes its own batch, and not the parent's."""
    batch = next(batches)

    def deed() -> None:
        batch[0][...] += 1000
        np.testing.assert_array_equal(batch[0], rows_of(0) + 1000)

    assert Child(deed).go() == 0
    check(batch, 0)


def test_a_childs_view_outlives_the_slot_in_the_parent(batches: Any) -> None:
    """The parent goes on and refills the slots; the child still reads what it had at the fork."""
    kept = [next(batches), next(batches)]
    addresses = {batch[0].ctypes.data for batch in kept}
    child = Child(lambda: [check(batch, 8 * number) for number, batch in enumerate(kept)])
    kept.clear()
    refilled = set()
    for _ in range(30):
        refilled.add(next(batches)[0].ctypes.data)
    assert refilled >= addresses
    assert child.go() == 0


def test_what_the_parent_writes_is_not_the_childs(batches: Any) -> None:
    """The parent's `+=` after the fork is not seen in the child."""
    batch = next(batches)
    child = Child(lambda: check(batch, 0))
    batch[0][...] += 1000
    assert child.go() == 0


@pytest.mark.parametrize("backend", METHODS)
def test_a_forked_process_takes_a_view_as_argument(batches: Any) -> None:
    """`multiprocessing.Process` with the fork context: the issue's own case."""
    batch = next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = multiprocessing.get_context("fork").Process(target=check, args=(batch, 0))
        process.start()
    del batch
    for _ in range(10):
        next(batches)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    process.close()


def test_a_child_of_a_child_has_its_own(batches: Any) -> None:
    """A fork of a fork is private to both."""
    batch = next(batches)

    def deed() -> None:
        def again() -> None:
            check(batch, 0)
            batch[0][...] = 2

        batch_before = batch[0].copy()
        assert Child(again).go() == 0
        np.testing.assert_array_equal(batch[0], batch_before)

    child = Child(deed)
    batch[0][...] = 1
    assert child.go() == 0


def test_a_child_drops_collects_and_closes_without_effect() -> None:
    """Dropping views, a collection and `close()` in the child leave the parent's loader alone."""
    with ringfeed.Loader(Counted(), batch_size=8, workers=1, slots=3, backend="process") as loader:
        _drop_collect_and_close(loader)


def _drop_collect_and_close(loader: ringfeed.Loader) -> None:
    batches = iter(loader)
    batch = next(batches)
    holder = [batch]

    def deed() -> None:
        holder.clear()
        gc.collect()
        loader.close()
        check(batch, 0)

    assert Child(deed).go() == 0
    check(batch, 0)
    check(next(batches), 8)


def test_a_child_has_a_loader_of_its_own(batches: Any) -> None:
    """A loader made in the child runs beside the parent's, and its views survive a fork."""
    batch = next(batches)

    def deed() -> None:
        with ringfeed.Loader(Counted(), batch_size=8, workers=0, slots=2) as own:
            inner = next(iter(own))
            child = Child(lambda: (check(inner, 0), check(batch, 0)))
            inner[0][...] = 5
            assert child.go() == 0

    assert Child(deed).go() == 0
    check(batch, 0)


def test_forks_of_several_threads_at_once(batches: Any) -> None:
    """Threads fork while the loop takes batches; each child sees the batch of its thread."""
    failed: list[int] = []
    kept = [next(batches)]

    def forks() -> None:
        failed.extend(status for _ in range(8) if (status := Child(lambda: check(kept[0], 0)).go()))

    threads = [threading.Thread(target=forks) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        next(batches, None)
        time.sleep(0.001)
    assert failed == []
    check(kept[0], 0)


def test_views_of_a_closed_loader_survive_a_fork() -> None:
    """After `close()` a view is as private in the child as before."""
    with ringfeed.Loader(Counted(), batch_size=8, workers=0) as loader:
        batch = next(iter(loader))
    child = Child(lambda: check(batch, 0))
    batch[0][...] = 7
    assert child.go() == 0


def test_a_dataset_of_views_is_read_by_forked_workers(batches: Any) -> None:
    """A batch in the parent's hands may be the dataset of another loader that forks its workers."""
    batch = next(batches)
    with ringfeed.Loader(batch, batch_size=4, workers=1, backend="fork") as inner:
        rows = [x[:, 0].tolist() for x, _ in inner]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_child_leaves_no_mapping_in_the_parent(batches: Any) -> None:
    """The copies made for a child are gone in the parent, after each fork."""
    kept = [next(batches), next(batches)]

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_bytes().split()[0])

    assert Child(lambda: None).go() == 0
    before = mapped()
    for _ in range(50):
        assert Child(lambda: None).go() == 0
    assert mapped() - before < 50
    check(kept[1], 8)
