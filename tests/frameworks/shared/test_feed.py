"""A feed without TensorFlow: threads take a loader's batches by its functions in C, and ask Python for the rest.

Most of what they look for happens in a Python without the GIL alone.
"""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import ringfeed
from feeding import FeedError, Steps
from watching import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore::ringfeed.SlotsHeldWarning")
ROWS = np.arange(1200, dtype=np.int64).reshape(400, 3)
SETTINGS: dict[str, Any] = {"batch_size": 4, "slots": 4, "timeout_s": PATIENCE_S}


class Waiting:
    """Samples of which one says that it is read, and waits."""

    def __init__(self) -> None:
        self.is_there, self.go_on = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            self.is_there.set()
            self.go_on.wait(PATIENCE_S)
        return np.int64([index])


def in_threads(*calls: Any) -> None:
    """Make calls in a thread each, to their end, and raise what one of them raises."""
    errors = list[Exception]()

    def run(call: Any) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for error in errors:
        raise error


def epoch_of(steps: Steps, threads: int) -> list[list[int]]:
    """Take an epoch's batches by several threads; yet another lets their tensors go."""
    epoch_id, found = steps.begin(), list[list[int]]()
    left = threading.Semaphore(1 << 20 if steps.count is None else steps.count)
    tensors: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take() -> None:
        try:
            while left.acquire(blocking=False) and (tensor := steps.next(epoch_id)) is not None:
                tensors.put(tensor)
        finally:
            tensors.put(None)

    def let_go() -> None:
        for _ in range(threads):
            while (tensor := tensors.get(timeout=PATIENCE_S)) is not None:
                found.extend(tensor.rows.tolist())
                tensor.let_go()

    in_threads(*[take] * threads, let_go)
    return sorted(found)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_take_from_one_feed_share_its_batches(workers: int, is_known: bool) -> None:  # noqa: FBT001
    """Each batch of each epoch comes once; of a known number, the last one ends the epoch."""
    with ringfeed.Loader(ROWS, workers=workers, backend="thread", **SETTINGS) as loader:
        steps = Steps(loader, count=100 if is_known else None)
        for _ in range(5):
            assert epoch_of(steps, threads=4) == ROWS.tolist()
        assert loader.stats().batches == 500


def test_feeds_of_several_loaders_are_begun_and_dropped_at_once() -> None:
    """What all feeds share, such as their numbers, is right for each."""

    def run() -> None:
        for _ in range(10):
            with ringfeed.Loader(ROWS, workers=1, backend="thread", **SETTINGS) as loader:
                assert epoch_of(Steps(loader, count=100), threads=2) == ROWS.tolist()

    in_threads(*[run] * 3)


def test_a_feed_that_waits_hears_of_close() -> None:
    """In each thread that waits for a batch."""
    dataset, said = Waiting(), list[str]()
    with ExitStack() as end:
        loader = ringfeed.Loader(dataset, batch_size=1, slots=3, workers=1, backend="thread")
        end.callback(dataset.go_on.set)
        steps = Steps(loader, count=8)
        epoch_id = steps.begin()

        def take() -> None:
            try:
                while (tensor := steps.next(epoch_id)) is not None:
                    tensor.let_go()
            except FeedError as error:
                said.append(str(error).partition(":")[0])
            if len(said) == 2:  # until then no other batch can come
                dataset.go_on.set()

        def close() -> None:
            assert dataset.is_there.wait(PATIENCE_S)
            loader.close()

        in_threads(take, take, close)
    assert said == ["ClosedError"] * 2
