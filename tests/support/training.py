"""What the tests of the Keras adapter train on, and with; importable where Keras is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 100  # three batches of 32 and one of 4
RANDOM = np.random.default_rng(0)
X = RANDOM.random((ROWS, 6), np.float32)
Y = RANDOM.integers(0, 3, ROWS)
WEIGHTS = RANDOM.random(ROWS, np.float32)
CLASS_WEIGHT = {0: 1.0, 1: 5.0}


def make(*arrays: np.ndarray, **settings: Any) -> ringfeed.Loader:
    """Return a loader over arrays (X and Y if none are named) that fills in this process."""
    return ringfeed.Loader(arrays or (X, Y), **{"workers": 0, "slots": 3, **settings})


SPARSE = keras.losses.SparseCategoricalCrossentropy
LOSSES = {"one-hot": keras.losses.CategoricalCrossentropy}


def fresh_model(targets: str = "classes", **settings: Any) -> Any:
    """Return a compiled classifier for one form of targets, the same every time."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    settings = {"metrics": ["accuracy"], "weighted_metrics": [], "jit_compile": False, **settings}
    model.compile("sgd", LOSSES.get(targets, SPARSE)(from_logits=True), **settings)
    return model


@functools.cache
def _traced_model(**settings: Any) -> tuple[Any, list[np.ndarray]]:
    model = fresh_model(**settings)
    return model, model.get_weights()


def small_model(**settings: Any) -> Any:
    """Return the same as `fresh_model`, but traced by TensorFlow only once, which is most of a short test's time."""
    model, weights = _traced_model(**settings)
    model.set_weights(weights)
    return model


def history(x: Any, model: Any = None, **settings: Any) -> dict[str, list[float]]:
    """Return what `fit` reports of three epochs, or as many as it is told."""
    found: dict[str, list[float]] = (
        (model or small_model()).fit(x, **{"epochs": 3, "verbose": 0, **settings}).history
    )
    return found


def over_arrays(**settings: Any) -> dict[str, list[float]]:
    """Return what `fit` reports of the same three epochs over arrays."""
    return history(X, y=Y, batch_size=32, shuffle=False, **settings)


class Unsized:
    """The indices in order, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


class Poisoned:
    """Samples of which number 40 cannot be had."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        if index == 40:
            raise OSError("no such picture")
        return X[index], Y[index]


class Example(NamedTuple):
    """A sample with names."""

    image: Any
    label: Any


class Named:
    """Samples with names."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Example:
        return Example(X[index], Y[index])


class Pairs(keras.utils.PyDataset):
    """Two inputs in a list and two targets, in whole batches, as a Keras user writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.record: list[str] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(32 * index, 32 * index + 32)
        return [X[rows, :2], X[rows, 2:]], {"left": Y[rows], "right": X[rows, :1]}

    def on_epoch_begin(self) -> None:
        self.record.append("begin")

    def on_epoch_end(self) -> None:
        self.record.append("end")
