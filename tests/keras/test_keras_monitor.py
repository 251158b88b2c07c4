"""`ringfeed.keras.Monitor`: the share of an epoch that was waited for input."""

from __future__ import annotations

import importlib.util
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
    """Each epoch's logs say which part of it was waited.

    Nearly all of it where nothing else takes time.
    """
    with loader(0.01) as slow:
        logs = (
            model()
            .fit(slow.to_keras(), epochs=2, verbose=0, callbacks=[ringfeed.keras.Monitor()])
            .history
        )
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
        logs = (
            model()
            .fit(Dataset(), epochs=2, verbose=0, callbacks=[ringfeed.keras.Monitor()])
            .history
        )
    assert 0 < logs["stall_share"][1] <= 1


class Follows(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Any] = []
        self.seen: list[bool] = []

    def set_model(self, model: Any) -> None:
        self.models.append(model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        del epoch
        self.seen.append("stall_share" in (logs or {}))


@pytest.mark.parametrize("place", range(3))
def test_before_all_others(place: int) -> None:
    """Wherever it stands in the list, the others see the share in the logs.

    None is passed over or told twice.
    """
    others = [Follows(), Follows()]
    callbacks = [*others[:place], ringfeed.keras.Monitor(), *others[place:]]
    given = list(callbacks)
    made = model()
    with loader(0.0) as fed:
        made.fit(fed.to_keras(), epochs=2, verbose=0, callbacks=callbacks)
    assert callbacks == given
    assert [other.models for other in others] == [[made]] * 2
    assert [other.seen for other in others] == [[True, True]] * 2


def test_without_a_list_of_callbacks() -> None:
    """Whoever calls it by hand can do so."""
    monitor, logs = ringfeed.keras.Monitor(), {"loss": 1.0}
    made = model()
    monitor.set_model(made)
    monitor.on_epoch_begin(0)
    monitor.on_epoch_end(0, logs)
    assert monitor.model is made
    assert list(logs) == ["loss", "stall_share"]


@pytest.mark.parametrize("order", [1, -1], ids=["before", "behind"])
def test_in_a_file(tmp_path: Path, order: int) -> None:
    """CSVLogger writes it down, before and behind it in the list."""
    callbacks = [ringfeed.keras.Monitor(), keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))][
        ::order
    ]
    with loader(0.001) as fed:
        history = model().fit(fed.to_keras(), epochs=1, verbose=0, callbacks=callbacks).history
    names, values = (line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines())
    assert float(values[names.index("stall_share")]) == history["stall_share"][0]


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)  # Keras
@pytest.mark.parametrize("order", [1, -1], ids=["before", "behind"])
def test_in_tensorboard(tmp_path: Path, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard writes it down, before and behind it in the list."""
    tf = pytest.importorskip("tensorflow")
    if importlib.util.find_spec("tensorboard") is None:  # it brings this function of TensorFlow's
        summary = importlib.import_module("tensorflow.summary")
        monkeypatch.setattr(summary, "scalar", summary.write)
    callbacks = [ringfeed.keras.Monitor(), keras.callbacks.TensorBoard(str(tmp_path))][::order]
    with loader(0.001) as fed:
        history = model().fit(fed.to_keras(), epochs=2, verbose=0, callbacks=callbacks).history
    written = [
        (event.step, float(tf.make_ndarray(value.tensor)))
        for path in tmp_path.rglob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "epoch_stall_share"
    ]
    np.testing.assert_allclose(written, list(enumerate(history["stall_share"])), rtol=1e-6)
