"""A loader as Keras' data on each backend, in processes of their own.

Over the slots, and the same as arrays.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "tensorflow"
)  # it stands for Keras' default backend, and for an environment with frameworks
pytest.importorskip("keras", minversion="3.7")

import keras_checks
import warm
from keras_checks import CHECKS, PATIENCE_S

CHECKS_SCRIPT = Path(keras_checks.__file__)
ALONE = "slots_and_steps", "same_training_as_arrays", "arguments_of_fit"
PARTS = {
    name: (name,) if name in ALONE else tuple(other for other in CHECKS if other not in ALONE)
    for name in CHECKS
}
"""The checks that share a process with one: starting a framework costs more than most of them."""
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is most of JAX's time


@functools.cache
def outcome(backend: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return what became of each check: nothing, or a traceback."""
    ended = warm.run_keras([CHECKS_SCRIPT, *names], backend, env=QUICK, timeout=PATIENCE_S + 3)
    if ended.returncode:
        return dict.fromkeys(names, f"exit status {ended.returncode}\n{ended.stderr}")
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_backend(backend: str, check: str) -> None:
    """Each check of `keras_checks` holds on each backend that is installed.

    Its docstring says what it is.
    """
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    failed = outcome(backend, PARTS[check])[check]
    assert not failed, failed


REPLICAS = """
import keras, numpy as np, ringfeed

rng = np.random.default_rng(0)
X, Y = rng.random((96, 6), np.float32), rng.random((96, 1), np.float32)
devices = keras.distribution.list_devices("cpu")
for distribution in None, keras.distribution.DataParallel(devices=devices):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with ringfeed.Loader((X, Y), batch_size=32, shuffle=True, seed=3, workers=1, slots=3) as loader:
        losses = model.fit(loader.to_keras(), epochs=3, verbose=0).history["loss"]
        seen = model.predict(loader.to_keras(), verbose=0).shape
    print(len(devices), seen, *(f"{loss:.5f}" for loss in losses))
"""


def test_jax_distribution() -> None:
    """Where Keras on JAX spreads batches over several devices, it trains as on one."""
    pytest.importorskip("jax", reason="jax is not installed")
    flags = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ended = subprocess.run(
        [sys.executable, "-c", REPLICAS],
        check=False,
        capture_output=True,
        env=os.environ | QUICK | flags,
        text=True,
        timeout=PATIENCE_S + 3,
    )
    assert ended.returncode == 0, ended.stderr
    one, two = ended.stdout.splitlines()
    assert one == two
    assert one.startswith("2 (96, 1) ")
