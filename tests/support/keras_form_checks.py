"""What `to_keras` must do with leaves whose samples differ in length, on each backend.

`keras_checks` runs these.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import ringfeed
from formed import LENGTHS, MOST, Formed
from ringfeed import Array, Text

if TYPE_CHECKING:
    from collections.abc import Callable

BACKEND = keras.backend.backend()
TARGET = Array((1,), "float32")


class Counted:
    """Tokens, or what ``make`` makes of a length, and a target."""

    def __init__(self, make: Callable[[int], Any] | None = None) -> None:
        self.make = make or (lambda length: np.arange(1, length + 1, dtype=np.int32))

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Any:
        return self.make(LENGTHS[index]), np.full(1, LENGTHS[index], np.float32)


def tokens(form: str, **settings: Any) -> Array:
    """Return a leaf of tokens."""
    return Array((None,), "int32", max_shape=(MOST,), form=form, **settings)  # type: ignore[arg-type]


def loader_of(leaf: Any, dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader of such tokens and their targets."""
    given = {
        "batch_size": 4,
        "workers": 1,
        "backend": "thread",
        "slots": 3,
        "shuffle": True,
        "timeout_s": 120,
    }
    return ringfeed.Loader(dataset or Counted(), spec=(leaf, TARGET), **given | settings)


def model_of(pooled: Callable[[Any], Any] | None = None, **settings: Any) -> Any:
    """Return a small model of tokens, with the same weights each time."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None,), dtype="int32", **settings)
    pooled = pooled or keras.layers.GlobalMaxPooling1D()
    outputs = keras.layers.Dense(1)(pooled(keras.layers.Embedding(MOST + 1, 3)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", jit_compile=BACKEND == "jax")
    return model


def weights(model: Any) -> list[float]:
    """Return all weights of a model."""
    return np.concatenate([np.ravel(value) for value in model.get_weights()]).tolist()


def check_padded_leaves() -> None:
    """A model learns from them what it learns from the loader's own batches, one by one.

    `predict` has every row.
    """
    for pad_to in (None, (4, MOST)):
        with loader_of(tokens("pad", pad_to=pad_to)) as loader:
            model = model_of()
            model.fit(loader.to_keras(), epochs=2, verbose=0)
            loader.set_epoch(0)
            by_hand = model_of()
            for _ in range(2):
                for x, y in loader:
                    by_hand.train_on_batch(x.copy(), y.copy())
            np.testing.assert_allclose(weights(model), weights(by_hand), rtol=1e-5)
            assert model.predict(loader.to_keras(), verbose=0).shape == (len(LENGTHS), 1)


def check_lengths_are_a_second_input() -> None:
    """Without a warning of Keras', and also where a sample is one leaf and nothing else."""
    values, lengths = keras.Input((None,), dtype="int32"), keras.Input((), dtype="int32")
    pooled = keras.layers.GlobalMaxPooling1D()(keras.layers.Embedding(MOST + 1, 3)(values))
    number = keras.ops.cast(keras.ops.expand_dims(lengths, 1), "float32")
    model = keras.Model((values, lengths), keras.layers.Dense(1)(pooled) + number)
    model.compile("sgd", "mse", jit_compile=BACKEND == "jax")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with loader_of(tokens("pad", lengths=True)) as loader:
            history = model.fit(loader.to_keras(), epochs=2, verbose=0).history
        assert history["loss"][1] < history["loss"][0]
    dataset = [np.arange(length, dtype=np.int32) for length in LENGTHS]
    with ringfeed.Loader(
        dataset, spec=tokens("pad", lengths=True), batch_size=11, workers=0
    ) as loader:
        ((found, own),) = next(loader.to_keras().get_numpy_iterator())
        assert (found.shape, own.tolist()) == ((11, max(LENGTHS)), LENGTHS)
        assert model.predict(loader.to_keras(), verbose=0).shape == (11, 1)


def check_ragged_leaves() -> None:
    """TensorFlow trains on them, traced once, as on ragged tensors of its own.

    Other backends are told of padding.
    """
    if BACKEND != "tensorflow":
        with loader_of(tokens("ragged")) as loader, pytest.raises(ringfeed.SpecError) as raised:
            loader.to_keras()
        assert str(raised.value) == (
            f"sample[0] is ragged, of which Keras has no tensors on {BACKEND}, but on TensorFlow "
            "alone; give form='pad' in spec="
        )
        return
    import tensorflow as tf  # noqa: PLC0415 - of this backend alone

    traced = []

    def mean(x: Any) -> Any:
        traced.append(x.shape)
        return tf.reduce_sum(x, axis=1)

    def model() -> Any:
        return model_of(keras.layers.Lambda(mean, output_shape=(3,)), ragged=True)

    with loader_of(tokens("ragged")) as loader:
        found = model()
        traced.clear()
        found.fit(loader.to_keras(), epochs=2, verbose=0)
        assert traced == [tf.TensorShape((None, None, 3))] * len(traced)
        assert len(traced) <= 2
        loader.set_epoch(0)
        by_hand = model()
        for _ in range(2):
            for x, y in loader:
                ragged = tf.RaggedTensor.from_row_splits(x.values.copy(), x.row_splits)
                by_hand.train_on_batch(ragged, tf.constant(y))
        np.testing.assert_allclose(weights(found), weights(by_hand), rtol=1e-5)
        assert found.predict(loader.to_keras(), verbose=0).shape == (len(LENGTHS), 1)


def check_text_leaves() -> None:
    """TensorFlow reads them in a layer of the model.

    Other backends are told that they are no numbers.
    """
    dataset = Counted(lambda length: "word " * length)
    if BACKEND != "tensorflow":
        with loader_of(Text(64), dataset) as loader, pytest.raises(ringfeed.SpecError) as raised:
            loader.to_keras()
        assert str(raised.value) == (
            f"sample[0] is text, of which Keras has no tensors on {BACKEND}, but on TensorFlow "
            "alone; make numbers of it in __getitem__"
        )
        return
    vectorize = keras.layers.TextVectorization(output_mode="count", vocabulary=["word"])
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, vectorize(inputs))
    with loader_of(Text(64), dataset, shuffle=False) as loader:
        assert model.predict(loader.to_keras(), verbose=0)[:, 1].tolist() == LENGTHS


def check_weights_of_classes_that_differ_in_length() -> None:
    """There is no one class a row."""
    with (
        ringfeed.Loader(
            [(np.float32([1]), np.arange(1 + index, dtype=np.int32)) for index in range(3)],
            spec=(TARGET, tokens("pad")),
            batch_size=3,
            workers=0,
        ) as loader,
        pytest.raises(ValueError, match=r".") as raised,
    ):
        loader.to_keras(class_weight={0: 1.0})
    assert str(raised.value) == (
        "class_weight needs one target a row, and sample[1] is pad; return weights from "
        "__getitem__ instead, as in (x, y, sample_weight)"
    )


def check_boxes_beside_pictures() -> None:
    """A dict of inputs, some of which differ in length, and casts among them."""
    spec = {
        "tokens": tokens("pad"),
        "masked": Array((None, None), "uint8", max_shape=(MOST, 3), form="pad", mask=True),
    }
    with ringfeed.Loader(Formed(spec), spec=spec, batch_size=4, workers=0) as loader:
        plain = [batch["masked"] for batch in loader]
        cast = [batch["masked"] for batch in loader.to_keras(cast="float32").get_numpy_iterator()]
    for (values, mask), (floats, same) in zip(plain, cast, strict=True):
        assert floats.dtype == np.float32
        np.testing.assert_array_equal(floats, values)
        np.testing.assert_array_equal(mask, same)
