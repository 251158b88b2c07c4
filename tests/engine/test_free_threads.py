"""Batches that other threads drop and take, as in Python without a GIL (3.13t, 3.14t)."""

from __future__ import annotations

import queue
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ringfeed.loader import stream_of
from watching import PATIENCE_S

if TYPE_CHECKING:
    import pytest

HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


def test_slots_that_another_thread_drops_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last reference to a batch may be dropped while this thread waits for a slot in C.

    No batch is copied.
    """
    # However slow the thread is, the drop ends the wait.
    monkeypatch.setattr("ringfeed.engine.settling.SOON_NS", int(PATIENCE_S * 1e9))
    given: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def drop() -> None:
        while given.get() is not None:
            pass

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    rows = np.arange(4000).reshape(1000, 4)
    with (
        ringfeed.Loader(rows, batch_size=10, workers=1, backend="thread", slots=3) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", ringfeed.SlotsHeldWarning)
        for batch in loader:
            given.put(batch)
            del batch
    given.put(None)
    thread.join(PATIENCE_S)
    assert loader.stats().batches == 100


class Odd:
    """Fails at every second sample.

    So each batch is settled and kept before it is handed out.
    """

    def __len__(self) -> int:
        return 800

    def __getitem__(self, index: int) -> Any:
        if index % 2 == 0:
            raise ValueError
        return np.int64(index)


def test_threads_that_take_from_one_iterator_share_its_batches() -> None:
    """Each batch is handed out once, to one of them."""
    settings: dict[str, Any] = {
        "batch_size": 2,
        "workers": 1,
        "backend": "thread",
        "on_error": "skip",
    }
    with ringfeed.Loader(Odd(), spec=ringfeed.Array((), "int64"), slots=16, **settings) as loader:
        batches, found = iter(loader), []
        threads = [
            threading.Thread(target=lambda: found.extend(_rows(batches)), daemon=True)
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(found) == [*range(1, 800, 2)]


def test_a_batch_that_is_kept_is_handed_to_one_thread_at_a_time() -> None:
    """What Ctrl-C keeps from a thread is kept for the next that asks.

    Of several that ask at once, one has it.
    """
    inside, twice = list[None](), list[int]()

    def build(_lease: Any, _rows: int) -> Any:
        inside.append(None)  # and no lock, in which threads would wait for each other
        if len(inside) > 1:
            twice.append(len(inside))
        inside.pop()
        raise KeyboardInterrupt  # so that the one batch is kept once more

    with ringfeed.Loader(np.arange(8), batch_size=8, workers=1, backend="thread") as loader:
        batches = stream_of(loader).epoch(build)

        def take() -> None:
            ends = suppress(KeyboardInterrupt, StopIteration)
            for _ in range(1000 if HAS_GIL else 40_000):
                with ends:
                    next(batches)

        threads = [threading.Thread(target=take, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert twice == []


def _rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.tolist()]
