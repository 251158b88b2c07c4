"""`ringfeed.keras.Monitor`: the share of an epoch that was waited for input."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from pathlib import Path

keras = pytest.importorskip("keras")
import ringfeed.keras  # noqa: E402 - imports Keras


class Rows:
    """Samples of which each takes its time."""

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sleep_s)
        return np.full(3, index, np.float32), np.zeros(1, np.float32)


class Dataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Whole batches, each of which takes its time."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.05)
        return np.full((8, 3), index, np.float32), np.zeros((8, 1), np.float32)


def model() -> Any:
    """Return a compiled model."""
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    return made


def loader(sleep_s: float) -> ringfeed.Loader:
    """Return a loader of four batches, filled when they are asked for."""
    return ringfeed.Loader(Rows(sleep_s), batch_size=8, workers=0)


def test_the_share_of_each_epoch() -> None:
    """Each epoch's logs say which part of it was waited: nearly all of it where nothing else takes time."""
    with loader(0.01) as slow:
        logs = model().fit(slow.to_keras(), epochs=2, verbose=0, callbacks=[ringfeed.keras.Monitor()]).history
    assert len(logs["stall_share"]) == 2
    assert all(0 < share <= 1 for share in logs["stall_share"])


def test_only_the_loaders_given() -> None:
    """With loaders given nobody else's waiting counts."""
    with loader(0.01) as slow, loader(0.0) as other:
        callbacks = [ringfeed.keras.Monitor(other)]
        logs = model().fit(slow.to_keras(), epochs=1, verbose=0, callbacks=callbacks).history
    assert logs["stall_share"] == [0.0]


def test_datasets_under_install() -> None:
    """What `install` serves is counted as well."""
    with ringfeed.keras.install():
        logs = model().fit(Dataset(), epochs=2, verbose=0, callbacks=[ringfeed.keras.Monitor()]).history
    assert 0 < logs["stall_share"][1] <= 1


def test_in_a_file(tmp_path: Path) -> None:
    """CSVLogger, behind it in the list, writes it down."""
    callbacks = [ringfeed.keras.Monitor(), keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))]
    with loader(0.001) as fed:
        history = model().fit(fed.to_keras(), epochs=1, verbose=0, callbacks=callbacks).history
    names, values = (line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines())
    assert float(values[names.index("stall_share")]) == history["stall_share"][0]


def test_in_tensorboard(tmp_path: Path) -> None:
    """TensorBoard, behind it in the list, writes it down."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorboard")
    callbacks = [ringfeed.keras.Monitor(), keras.callbacks.TensorBoard(str(tmp_path))]
    with loader(0.001) as fed:
        model().fit(fed.to_keras(), epochs=1, verbose=0, callbacks=callbacks)
    tags = [
        value.tag
        for path in tmp_path.rglob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    ]
    assert "epoch_stall_share" in tags
