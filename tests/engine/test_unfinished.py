"""Ctrl-C in a hook amid a pass, and in what that leaves to be done.

Each batch of the pass comes once, in its order.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ringfeed
from points import ALL, Points
from ringfeed.keras.pydataset import DatasetFeed
from ringfeed.loader import runner_of
from ringfeed.workers.process import WorkerProcess
from watching import PATIENCE_S

cloudpickle.register_pickle_by_value(
    sys.modules[__name__]
)  # or each worker would import this module
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
BATCHES, BEFORE = 6, 2


class Counting:
    """Six batches, each of which tells how often a hook has run."""

    ended = 0

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Any:
        return np.array([[self.ended, index]])

    def on_epoch_end(self) -> None:
        self.ended += 1


def read(batch: Any) -> list[int]:
    """Return how often the hook had run, and the batch's number."""
    found: list[int] = batch[0].tolist()
    return found


def check_pass(feed: DatasetFeed, number: int) -> int:
    """Take a pass with Ctrl-C at a point of the hook amid it, and of what that left.

    Returns how many points it has.
    """
    runner, before = runner_of(feed.loader), feed.dataset.ended
    ranks = runner.position.shard.world_size
    hook, left = Points(number), Points(number)
    batches = iter(feed.loader)
    seen = [read(next(batches)) for _ in range(BEFORE)]
    for points in (hook, left):
        call = partial(feed.run_hook, "on_epoch_end") if points is hook else runner.unfinished
        with suppress(KeyboardInterrupt), points:
            _ = call and call()
        where = f"{number}: {hook.where}; {left.where}"
        assert feed.loader.state_dict()["samples"] == BEFORE * ranks, where
    seen += map(read, batches)
    assert [index for _, index in seen] == [*range(0, BATCHES, ranks)], where
    shown = [ended for ended, _ in seen]
    assert shown == sorted(shown), where
    assert {*shown} <= {before, feed.dataset.ended}, where
    assert runner.unfinished is None, where
    return ALL - hook.left


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hook_amid_a_pass(ranks: int) -> None:
    """At each point: the rest of the pass is as the hook has made the dataset, or as it was.

    The next is as it is. A rank has its part of both.
    """
    shard = ringfeed.Shard(0, ranks)
    feed = DatasetFeed(Counting(), backend="thread", workers=1, timeout_s=PATIENCE_S, shard=shard)
    with feed.loader:
        for number in range(1, 1 + check_pass(feed, ALL)):
            check_pass(feed, number)
        assert [read(batch) for batch in feed.loader] == [
            [feed.dataset.ended, index] for index in range(0, BATCHES, ranks)
        ]


def test_workers_that_were_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is started in the place of one that was not told has the new dataset.

    No ticket of the old.
    """
    feed = DatasetFeed(Counting(), workers=1, backend="fork", timeout_s=PATIENCE_S)
    with feed.loader:
        batches = iter(feed.loader)
        seen = [read(next(batches)) for _ in range(BEFORE)]
        with monkeypatch.context() as patched:
            patched.setattr(
                WorkerProcess, "send", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            with pytest.raises(KeyboardInterrupt):
                feed.run_hook("on_epoch_end")
        assert [*seen, *map(read, batches)] == [
            [index >= BEFORE, index] for index in range(BATCHES)
        ]
