"""``to_keras(cast=...)``: on each backend in a process of its own, and over several devices."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import ringfeed

pytest.importorskip(
    "tensorflow"
)  # it stands for Keras' default backend, and for an environment with frameworks
keras = pytest.importorskip("keras", minversion="3.7")

import warm  # noqa: E402 - for one order
from cast_checks import BYTES, CHECKS  # noqa: E402 - needs Keras
from ringfeed import Cast  # noqa: E402
from training import Y, make  # noqa: E402

PATIENCE_S = 280
HERE = Path(__file__).parents[2] / "support"
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is most of JAX's time


def run(*command: Any, **environment: str) -> str:
    """Return what a Python process prints, which must end well."""
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    backend = environment.pop("KERAS_BACKEND")
    ended = warm.run_keras(
        [*command], backend, env=QUICK | {"PYTHONPATH": path} | environment, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@functools.cache
def outcome(backend: str) -> dict[str, str]:
    """Return what became of each check: nothing, or a traceback."""
    found: dict[str, str] = json.loads(run(HERE / "cast_checks.py", KERAS_BACKEND=backend))
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_backend(backend: str, check: str) -> None:
    """Each check of `cast_checks` holds on each backend that is installed.

    Its docstring says what it is.
    """
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    failed = outcome(backend)[check]
    assert not failed, failed


# ---- several devices ----

DEVICES = """
import jax, keras, numpy as np, ringfeed

first, second = jax.devices()
X, Y = np.arange(96 * 6).reshape(96, 6).astype(np.uint8), 2**40 + np.arange(96)
floats = X.astype(np.float32), Y.astype(np.float32)
with ringfeed.Loader((X, Y), batch_size=32, workers=0, slots=3) as loader:
    jax.config.update("jax_default_device", second)
    found = list(loader.to_keras(cast=("float32", "float32")).get_jax_iterator())
    jax.config.update("jax_default_device", None)
    assert all(x.devices() == {second} for x, _ in found)
    for place, expected in enumerate(floats):
        leaves = [np.asarray(batch[place]) for batch in found]
        assert leaves[0].dtype == np.float32
        np.testing.assert_array_equal(np.concatenate(leaves), expected)
devices = keras.distribution.list_devices("cpu")
for distribution in None, keras.distribution.DataParallel(devices=devices):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)
    rescaling = keras.layers.Rescaling(1e-3)
    model = keras.Sequential([keras.Input((6,)), rescaling, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with ringfeed.Loader((X, X[:, :1]), batch_size=32, workers=1, slots=3) as loader:
        losses = model.fit(loader.to_keras(cast="float32"), epochs=2, verbose=0).history["loss"]
    print(*(f"{loss:.2f}" for loss in losses))
"""


def test_jax_devices() -> None:
    """JAX casts on the device where steps run.

    Where Keras spreads batches they are cast before, and train the same.
    """
    pytest.importorskip("jax", reason="jax is not installed")
    flags = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    one, two = run("-c", DEVICES, **flags).splitlines()
    assert one == two


STRATEGY = """
import numpy as np, tensorflow as tf
from cast_checks import BYTES, FLOATS
from ringfeed import Cast
from training import Y, history, make, fresh_model

(device,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
expected = fresh_model()
history(FLOATS, expected, y=Y, batch_size=32, shuffle=False, epochs=1)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = fresh_model()
history(make(BYTES, Y).to_keras(cast=Cast(scale=1.0)), model, epochs=1)
for weights, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
    np.testing.assert_allclose(weights, wanted, rtol=1e-5, atol=1e-6)
print("the same")
"""


def test_a_distribution_strategy() -> None:
    """Under a strategy of TensorFlow batches are cast in the dataset that it distributes."""
    assert run("-c", STRATEGY, KERAS_BACKEND="tensorflow").endswith("the same\n")


# ---- what is refused ----


def test_refused_at_the_call() -> None:
    """Nothing is begun for a cast that cannot be."""
    with make(BYTES, Y) as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            loader.to_keras(cast=(Cast(layout="CHW"), None))
        assert str(caught.value) == (
            "to_keras(cast=...): sample[0] has shape (6,), expected (height, width, channels) for "
            "layout='CHW'; leave layout out, or give the sample these axes"
        )
        assert loader.epoch == 0
