"""A loader as Keras' data.

The same training, to the bit, as over arrays and over a tf.data.Dataset.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import ringfeed

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3.7")

from training import (  # noqa: E402
    SPARSE,
    WEIGHTS,
    Named,
    Pairs,
    Unsized,
    X,
    Y,
    fresh_model,
    history,
    make,
    over_arrays,
    small_model,
)

# ---- what is left ----


@pytest.mark.parametrize("kept", ["model", "nothing"])
def test_a_fed_loader_that_is_dropped_is_gone(kept: str) -> None:
    """TensorFlow keeps each Python function that a graph has called, and no loader with it."""
    model, loaders = small_model(), []
    for _ in range(3):
        loader = make(workers=1)
        loaders.append(weakref.ref(loader))
        model.fit(loader.to_keras(), epochs=1, verbose=0)
        del loader
        if kept == "nothing":
            model = small_model()
    gc.collect()
    assert [found() for found in loaders] == [None] * 3


# ---- the same training as over arrays ----


@pytest.mark.parametrize(("steps_per_execution", "workers"), [(1, 0), (8, 1), (32, 0)])
def test_same_losses_as_arrays(steps_per_execution: int, workers: int) -> None:
    """Losses and metrics are bit for bit those of arrays, with three slots and any steps."""
    settings = {"steps_per_execution": steps_per_execution}
    with make(workers=workers) as loader:
        assert history(loader.to_keras(), fresh_model(**settings)) == over_arrays(
            model=fresh_model(**settings)
        )
        gc.collect()
        assert "held" not in loader.slot_states()


class Counting(keras.Sequential):
    """A model that counts how often its training step is traced."""

    traces = 0

    def train_step(self, batch: Any) -> Any:
        self.traces += 1
        return super().train_step(batch)


def test_one_trace() -> None:
    """A short last batch does not have the training step traced again."""
    model = Counting([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    history(make(X, WEIGHTS).to_keras(), model)
    assert model.traces == 1


def test_each_epoch_is_the_next_of_the_loader() -> None:
    """A loader that shuffles trains on its epochs 0, 1 and 2, also by two calls of `fit`."""
    model = small_model()
    batches = make(shuffle=True, seed=7)
    for _ in range(3):
        for x, y in batches:
            model.train_on_batch(x, y)
    by_hand = model.get_weights()
    model = small_model()
    loader = make(shuffle=True, seed=7)
    history(loader.to_keras(), model, epochs=2)
    history(loader.to_keras(), model, epochs=1, shuffle=True)
    for weights, expected in zip(model.get_weights(), by_hand, strict=True):
        np.testing.assert_array_equal(weights, expected)


def test_goes_on_amid_an_epoch() -> None:
    """Amid an epoch of the loader `fit` has its rest once, by its own numbers, then whole ones."""
    batches: list[int] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)  # noqa: ARG005
    )
    loader = make()
    loader.skip(batches=2)
    data = loader.to_keras()
    history(data, shuffle=False, callbacks=[callback])
    assert batches == [2, 3, *range(4), *range(4)]
    assert (data.num_batches, loader.epoch) == (4, 3)


def test_compiled_by_xla() -> None:
    """`jit_compile=True` trains as over arrays; XLA rounds differently for shapes that it knows."""
    found = history(make().to_keras(), small_model(jit_compile=True))
    np.testing.assert_allclose(
        found["loss"], over_arrays(model=small_model(jit_compile=True))["loss"], rtol=1e-6
    )


def test_mixed_precision() -> None:
    """Under mixed precision the losses are those of arrays."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        assert history(make().to_keras(), fresh_model()) == over_arrays(model=fresh_model())
    finally:
        keras.config.set_dtype_policy("float32")


def test_run_eagerly() -> None:
    """An eager model trains as well."""
    assert len(history(make().to_keras(), small_model(run_eagerly=True), epochs=1)["loss"]) == 1


def test_sample_weights() -> None:
    """A third element of the sample weights its rows."""
    assert history(make(X, Y, WEIGHTS).to_keras()) == over_arrays(sample_weight=WEIGHTS)


def test_named_tuples_and_inputs_alone() -> None:
    """A NamedTuple of two is (x, y).

    `predict` takes inputs alone, bare or not, and leaves targets aside.
    """
    named = ringfeed.Loader(Named(), workers=0)
    model = small_model()
    assert history(named.to_keras(), model) == over_arrays()
    expected = model.predict(X, verbose=0)
    for loader in (make(X), make(X, Y), make(X, Y, WEIGHTS), named, make(X, sampler=Unsized())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns where an unknown length ends
            np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), expected)


def test_dict_inputs() -> None:
    """A bare dict is the inputs by name, and a bare array is the input."""
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    model = keras.Model({"left": left, "right": right}, keras.layers.Subtract()([left, right]))
    loader = ringfeed.Loader({"right": X, "left": 3 * X}, workers=0)
    np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), 3 * X - X)
    model = keras.Model(left, keras.layers.Rescaling(2)(left))
    loader = ringfeed.Loader(Named(), workers=0)
    np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), 2 * X)


def test_several_inputs_and_outputs() -> None:
    """A PyDataset with inputs in a list and named targets trains as arrays do; hooks run."""
    keras.utils.set_random_seed(2)
    inputs = [keras.Input((2,)), keras.Input((4,))]
    joined = keras.layers.Concatenate()(inputs)
    outputs = {"left": keras.layers.Dense(3)(joined), "right": keras.layers.Dense(1)(joined)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"left": SPARSE(from_logits=True), "right": "mse"}, jit_compile=False)
    start = model.get_weights()
    dataset = Pairs()
    found = history(ringfeed.Loader(dataset, batch_size=None, workers=0).to_keras(), model)
    assert dataset.record == ["begin", "end"] * 3
    model.set_weights(start)
    targets = {"left": Y, "right": X[:, :1]}
    assert found == history([X[:, :2], X[:, 2:]], model, y=targets, batch_size=32, shuffle=False)


# ---- the same as a tf.data.Dataset ----


def as_dataset(*, known: bool = True) -> Any:
    """Return the same batches as a tf.data.Dataset of TensorFlow's own."""
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
    return dataset if known else dataset.filter(lambda _x, _y: True)


class Stops(keras.callbacks.Callback):
    """Ends the training after three batches of the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.seen: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        self.seen.append((self.epoch, batch))
        if (self.epoch, batch) == (1, 2):
            self.model.stop_training = True


@pytest.mark.parametrize(
    ("known", "fit", "compiled"),
    [
        (True, {"steps_per_epoch": 2, "epochs": 5}, {}),
        (True, {"steps_per_epoch": 3, "epochs": 3}, {}),
        (True, {"steps_per_epoch": 6}, {}),
        (True, {"steps_per_epoch": 3}, {"steps_per_execution": 2}),
        (True, {"initial_epoch": 1}, {}),
        (True, {"epochs": 0}, {}),
        (True, {"validation_data": "same", "validation_steps": 2, "validation_freq": 2}, {}),
        (True, {"validation_data": "same", "class_weight": {0: 1.0, 1: 5.0, 2: 0.5}}, {}),
        (True, {"callbacks": "stops"}, {}),
        (True, {"callbacks": "early"}, {}),
        (False, {"validation_data": "same"}, {}),
        (False, {"steps_per_epoch": 3}, {}),
        (False, {"steps_per_epoch": 6}, {}),
        (False, {}, {"steps_per_execution": 8}),
    ],
    ids=lambda value: (
        ("known" if value else "unknown") if isinstance(value, bool) else " ".join(value)
    ),
)
def test_like_a_tf_dataset(
    known: bool,  # noqa: FBT001
    fit: dict[str, Any],
    compiled: dict[str, Any],
) -> None:
    """Each argument of `fit` means what it means over a tf.data.Dataset, warnings included."""
    found = []
    for source in (
        lambda: make(sampler=None if known else Unsized()).to_keras(),
        lambda: as_dataset(known=known),
    ):
        stops = Stops()
        named = {"same": source, "stops": lambda stops=stops: [stops], "early": early_stopping}
        settings = {
            key: named[value]() if isinstance(value, str) else value for key, value in fit.items()
        }
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            report = history(source(), small_model(**compiled), **{"shuffle": False, **settings})
        found.append((report, stops.seen, [str(warning.message) for warning in seen]))
    assert found[0] == found[1]


def early_stopping() -> list[Any]:
    """Return a callback that ends the training after its second epoch."""
    return [keras.callbacks.EarlyStopping("loss", min_delta=100)]


def test_evaluate() -> None:
    """`evaluate` gives what it gives over arrays, again and again, and with fewer steps."""
    model = small_model()
    fed = make().to_keras()
    expected = model.evaluate(X, Y, verbose=0)
    assert [model.evaluate(fed, verbose=0) for _ in range(3)] == [expected] * 3
    assert model.evaluate(fed, steps=2, verbose=0) == model.evaluate(X[:64], Y[:64], verbose=0)
