"""`slots="auto"` and `workers="auto"` under tf.data, whose op takes batches without Python."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import ringfeed
from ringfeed.engine import autotune
from ringfeed.engine.autotune import Setting
from scripting import Script
from watching import PATIENCE_S


class Slowly:
    """Numbers that take a millisecond."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return np.full(16, index, np.int64)


def numbers(dataset: Any) -> list[int]:
    """Return the indices that an epoch delivers."""
    return [int(row[0]) for batch in dataset for row in batch.numpy()]


def test_an_epoch_is_whole_while_slots_and_workers_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op takes no more batches in a row than come between two looks."""
    monkeypatch.setattr(autotune, "LOOK_NS", 0)
    with ringfeed.Loader(np.arange(2000), batch_size=4, slots="auto", workers="auto") as loader:
        script = Script((1, 2), (3, 6), (1, 2), (2, 8), (1, 3))
        loader._runner.tuner = script  # type: ignore[assignment]
        dataset = loader.to_tf_dataset()
        for _ in range(2):
            assert [int(row) for batch in dataset for row in batch.numpy()] == list(range(2000))
        assert script.setting == Setting(1, 3)
        assert len(script.windows) > 100


@pytest.mark.long
def test_a_slow_source_gets_more_workers() -> None:
    """The tuner looks while C code takes the batches."""
    with ringfeed.Loader(Slowly(), batch_size=8, slots="auto", workers="auto") as loader:
        dataset, deadline = loader.to_tf_dataset(), time.monotonic() + PATIENCE_S
        while not (steps := loader.stats().tuning) and time.monotonic() < deadline:
            assert numbers(dataset) == list(range(4000))
        assert steps[0].setting.workers > 1
