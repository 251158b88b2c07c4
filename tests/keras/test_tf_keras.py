"""Models of `tf_keras` (Keras 2): their Sequences over the ring, by `feed` and by `install`."""

from __future__ import annotations

import random
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ringfeed.keras
from ringfeed.keras import fallback as keras_fallback

tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed")

from tf_keras.src.engine.data_adapter import KerasSequenceAdapter  # noqa: E402 - if it is installed

from ringfeed.keras import legacy  # noqa: E402

cloudpickle.register_pickle_by_value(
    sys.modules[__name__]
)  # or each worker would import all of the above

X = np.random.default_rng(0).random((100, 6), np.float32)
Y = np.random.default_rng(1).random((100, 1), np.float32)


class Rows(tf_keras.utils.Sequence):  # type: ignore[misc]
    """Batches of 16 rows, the last smaller; at the end of each epoch they are shuffled."""

    def __init__(self) -> None:
        self.order = np.arange(100)
        self.ended = 0

    def __len__(self) -> int:
        return (len(self.order) + 15) // 16

    def __getitem__(self, index: int) -> Any:
        rows = self.order[16 * index : 16 * index + 16]
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        self.ended += 1
        self.order = np.random.default_rng(self.ended).permutation(self.order)


class Growing(Rows):
    """One batch has more rows than batch 0."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (np.concatenate([x, x]), np.concatenate([y, y])) if index == 3 else (x, y)


def trained(data: Any, **settings: Any) -> Any:
    """Return losses and weights of a model trained from the same seeds each time."""
    tf_keras.utils.set_random_seed(3)
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(6,))])
    model.compile("sgd", "mse")
    random.seed(5)
    history = model.fit(data, epochs=3, verbose=0, **settings).history
    return (
        history,
        [weights.tolist() for weights in model.get_weights()],
        model.evaluate(data, verbose=0),
    )


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_feed(backend: Any) -> None:
    """A model of Keras 2 learns the same from a fed Sequence.

    Each epoch sees what the end of the last one has changed.
    """
    own = Rows()
    expected = trained(own, shuffle=False)
    dataset = Rows()
    with ringfeed.keras.feed(dataset, workers=2, backend=backend) as data:
        assert trained(data, shuffle=False) == expected
        assert data.loader.stats().batches >= 28
        np.testing.assert_array_equal(data[2][0], dataset[2][0])
    assert dataset.ended == own.ended


def test_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, weights and the order that Keras draws stay, and nothing is left patched."""
    said: list[str] = []
    monkeypatch.setattr(
        keras_fallback.LOG, "handle", lambda record: said.append(record.getMessage())
    )
    expected = [trained(Rows()), trained(Growing())]
    with ringfeed.keras.install():
        assert KerasSequenceAdapter._handle_multiprocessing is legacy.over_ring
        assert trained(Rows()) == expected[0]
        assert trained(Growing()) == expected[1]
    assert KerasSequenceAdapter._handle_multiprocessing is legacy.OWN
    assert said[0].startswith("Rows runs over ringfeed: 1 worker thread, 3 slots, ")
    assert (
        "Growing is left to Keras: dataset[3]: batch[0] has 32 rows, expected at most 16; "
        in "\n".join(said)
    )


def test_class_weight_is_for_fit() -> None:
    """Keras 2 weighs classes itself."""
    with pytest.raises(
        TypeError, match=r"^class_weight= is for Keras 3; give it to fit\(\) of the tf_keras model$"
    ):
        ringfeed.keras.feed(Rows(), class_weight={0: 1.0})
