"""What `to_keras(cast=...)` must do on each backend of Keras; run in a process of its own for each.

``python cast_checks.py`` prints, as JSON, what became of each check: "" or the traceback.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import ringfeed
from keras_checks import (
    BACKEND,
    JIT,
    batches_of,
    compiled,
    free_slots,
    in_a_slot,
    pointer,
    to_numpy,
)
from ringfeed import Cast
from ringfeed.frameworks.cast import Chosen, in_numpy
from training import CLASS_WEIGHT, ROWS, WEIGHTS, Y, history, make

if TYPE_CHECKING:
    from collections.abc import Callable

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 4, (ROWS, 6)).astype(np.uint8)
FLOATS = BYTES.astype(np.float32)
IMAGES = RANDOM.integers(0, 256, (ROWS, 6, 5, 3)).astype(np.uint8)
FULL = Cast("float32", 1 / 255, 0.25, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "CHW")


def check_values() -> None:
    """Plain casts are NumPy's bit for bit, steps nearly; the short last batch too.

    What is not cast is as it was.
    """
    arrays = {
        "image": IMAGES,
        "plain": IMAGES,
        "wide": 2**40 + Y,
        "many": np.uint64(2**64 - 1) - Y.astype(np.uint64),
        "label": Y,
    }
    casts = {"image": FULL, "plain": "float16", "wide": "float32", "many": "float32"}
    expected = {"image": in_numpy({0: FULL})[0](IMAGES), "plain": IMAGES.astype(np.float16)}
    expected |= {name: arrays[name].astype(np.float32) for name in ("wide", "many")} | {"label": Y}
    with ringfeed.Loader((arrays, Y), batch_size=32, workers=0, slots=3) as loader:
        fed = loader.to_keras(cast=(casts, None))
        for batches in (batches_of(fed), fed.get_numpy_iterator()):
            found = [{name: to_numpy(leaf) for name, leaf in x.items()} for x, _ in batches]
            assert [len(x["image"]) for x in found] == [32, 32, 32, 4]
            for name, values in expected.items():
                joined = np.concatenate([x[name] for x in found])
                if name == "image":
                    np.testing.assert_allclose(joined, values, rtol=1e-5, atol=1e-6)
                else:
                    np.testing.assert_array_equal(joined, values, name)
                if name != "label":  # which JAX makes an int32
                    assert joined.dtype == values.dtype, name


def check_read_from_the_slot() -> None:
    """The cast is given the slot's memory, and writes elsewhere.

    With every leaf cast the slot is free again.
    """
    read: list[Any] = []
    real = Chosen.__call__

    def spy(self: Chosen, leaves: list[Any]) -> list[Any]:
        tensors = [leaves[number] for number in self]
        read.extend(
            in_a_slot(tensor) for tensor in tensors if not hasattr(tensor, "graph")
        )  # not those of tf.data
        return real(self, leaves)

    Chosen.__call__ = spy  # type: ignore[method-assign]
    try:
        for cast in ("float32", Cast(scale=0.5, layout="CHW")):
            with make(IMAGES, batch_size=8, slots=2) as loader:
                fed = loader.to_keras(cast=cast)
                for batch in batches_of(fed):
                    (x,) = batch
                    assert pointer(x)
                    assert not in_a_slot(x)
                    assert BACKEND == "jax" or "held" not in loader.slot_states()
                assert fed.copied == 0
                assert free_slots(loader)
        assert read == [True] * 26
    finally:
        Chosen.__call__ = real  # type: ignore[method-assign]


def check_same_training_as_floats() -> None:
    """Losses, metrics and weights are bit for bit those of float32 arrays, with validation and weights too."""
    weighted = {"class_weight": CLASS_WEIGHT, "epochs": 2}
    held_out = {"validation_data": make(BYTES[:50], Y[:50]).to_keras(cast="float32")}
    cases: list[tuple[Any, Any, dict[str, Any], dict[str, Any]]] = [
        (
            (BYTES, Y),
            "float32",
            weighted | held_out,
            weighted | {"validation_data": (FLOATS[:50], Y[:50])},
        ),
        ((BYTES, Y, WEIGHTS), (Cast(scale=0.5), None, None), {}, {"sample_weight": WEIGHTS}),
    ]
    for arrays, cast, here, there in cases:
        model = compiled()
        with make(*arrays, workers=1, backend="thread") as loader:
            found = history(loader.to_keras(cast=cast), model, **here), model.get_weights()
            assert free_slots(loader)
        model = compiled()
        floats = FLOATS if cast == "float32" else FLOATS / 2
        assert found[0] == history(floats, model, y=Y, batch_size=32, shuffle=False, **there)
        for weights, expected in zip(found[1], model.get_weights(), strict=True):
            np.testing.assert_array_equal(weights, expected)


def check_evaluate_and_predict() -> None:
    """Both are as over floats.

    A batch of inputs alone holds no slot, whatever an execution takes.
    """
    steps = 1 if BACKEND == "torch" else 8
    model = compiled(steps_per_execution=steps)
    with make(BYTES, batch_size=8, slots=2) as inputs, make(BYTES, Y, batch_size=8) as loader:
        fed = inputs.to_keras(cast="float32")
        expected = model.predict(FLOATS, batch_size=8, verbose=0)
        np.testing.assert_array_equal(model.predict(fed, verbose=0), expected)
        assert fed.copied == 0
        assert free_slots(inputs)
        expected = model.evaluate(FLOATS, Y, batch_size=8, verbose=0)
        assert model.evaluate(loader.to_keras(cast="float32"), verbose=0) == expected


def check_steps_per_epoch() -> None:
    """An epoch of the loader goes on over several of Keras', each batch cast."""
    with make(BYTES, Y) as loader, make(FLOATS, Y) as plain:
        settings = {"steps_per_epoch": 2, "epochs": 2}
        found = history(loader.to_keras(cast="float32"), compiled(), **settings)
        assert found == history(plain.to_keras(), compiled(), **settings)


def check_a_model_that_is_built_by_its_first_batch() -> None:
    """Convolutions, which take no uint8, are built for floats, and run so eagerly and compiled."""
    for eagerly in (True, False):
        keras.utils.set_random_seed(1)
        layers = [
            keras.layers.Conv2D(2, 3, data_format="channels_last"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse", run_eagerly=eagerly, jit_compile=JIT and not eagerly)
        with make(IMAGES[:16], Y[:16], batch_size=8) as loader:
            fed = loader.to_keras(cast=(Cast(scale=1 / 255), "float32"))
            assert len(history(fed, model, epochs=2)["loss"]) == 2
            assert loader.epoch == 2


def check_a_loader_that_is_dropped_is_gone() -> None:
    """No compiled function keeps a loader."""
    loaders = []
    model = compiled()
    for _ in range(2):
        loader = make(BYTES, Y)
        loaders.append(weakref.ref(loader))
        history(loader.to_keras(cast=Cast(scale=0.5)), model, epochs=1)
        del loader
    gc.collect()
    assert [found() for found in loaders] == [None] * 2


def check_on_keras_device() -> None:
    """With torch it is done where Keras computes, to which the uint8 goes."""
    if BACKEND != "torch":
        return
    from ringfeed.frameworks import torch as adapter  # noqa: PLC0415 - of this backend alone

    read: list[tuple[str, str]] = []
    real = adapter._caster

    def spy(cast: Cast, device: Any) -> Any:
        def cast_here(tensor: Any) -> Any:
            read.append((tensor.device.type, str(tensor.dtype)))
            return real(cast, device)(tensor)

        return cast_here

    adapter._caster = spy
    try:
        with make(IMAGES, batch_size=8) as loader, keras.device("meta"):
            (x,) = next(batches_of(loader.to_keras(cast=FULL)))
            assert (x.device.type, str(x.dtype)) == ("meta", "torch.float32")
            assert "held" not in loader.slot_states()
    finally:
        adapter._caster = real
    assert read == [("meta", "torch.uint8")]


def check_float64_on_jax() -> None:
    """JAX, which would give a float32 in silence where it has no 64 bits, is not asked for it."""
    if BACKEND == "jax":
        with make(IMAGES) as loader, pytest.raises(ringfeed.SpecError) as caught:
            loader.to_keras(cast="float64")
        assert str(caught.value) == (
            "to_keras(cast=...): sample[0] is cast to 'float64', expected a dtype that JAX has; "
            "set jax_enable_x64, or name 'float32'"
        )


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def main() -> None:
    """Run all checks, and print what became of each."""
    if BACKEND == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415 - of this backend alone

        tf.config.experimental.enable_op_determinism()
    if BACKEND == "torch":
        import torch  # noqa: PLC0415 - of this backend alone

        torch.set_num_threads(1)
    found = {}
    for name, check in CHECKS.items():
        try:
            check()
            found[name] = ""
        except Exception:  # noqa: BLE001 - it is reported
            found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
