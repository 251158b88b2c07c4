"""A loader as Keras' data in processes of their own.

Other backends, distribution strategies, the example.
"""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest

import warm

pytest.importorskip("tensorflow")
pytest.importorskip("keras", minversion="3.7")

ROOT = Path(__file__).parents[2]


def run(script: str, backend: str = warm.BACKEND) -> str:
    """Return what a script prints, which finds X, Y, CLASS_WEIGHT and `small_model()`."""
    ended = warm.run_keras(["-c", textwrap.dedent(PREAMBLE) + textwrap.dedent(script)], backend)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


PREAMBLE = """
    import keras, numpy as np, ringfeed

    rng = np.random.default_rng(0)
    X, Y, CLASS_WEIGHT = rng.random((100, 6), np.float32), rng.integers(0, 3, 100), {0: 1.0, 1: 5.0}

    def small_model():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
        return model
"""

OTHER_BACKEND = """
    model, by_hand = small_model(), small_model()
    shuffled = ringfeed.Loader((X, Y), shuffle=True, seed=7, workers=0)
    shuffled.set_epoch(5)
    plain = ringfeed.Loader((X, Y), workers=0)
    settings = {"class_weight": CLASS_WEIGHT, "validation_data": plain.to_keras(), "verbose": 0}
    model.fit(shuffled.to_keras(), epochs=2, **settings)
    model.fit(shuffled.to_keras(), epochs=1, **settings)
    shuffled.set_epoch(5)
    for _ in range(3):
        for x, y in shuffled:
            by_hand.train_on_batch(x, y, class_weight=CLASS_WEIGHT)
    for weights, expected in zip(model.get_weights(), by_hand.get_weights()):
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
    losses = [model.evaluate(plain.to_keras(), verbose=0), model.evaluate(X, Y, verbose=0)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert model.predict(plain.to_keras(), verbose=0).shape == (100, 3)
    print(keras.backend.backend(), "trained")
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(backend: str) -> None:
    """On JAX and torch `fit` trains on the epochs from `set_epoch` on, with class weights."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    assert run(OTHER_BACKEND, backend) == f"{backend} trained\n"


IN_PYTHON = """
    import ringfeed.keras

    KINDS = [np.array([b"a", b"bc"]), np.array(["a", "é"])]
    KINDS += [np.array(["2020-01-01"] * 2, "M8[D]"), np.ones(2, "m8[s]")]
    KINDS += [np.ones(2, "longdouble"), np.ones(2, [("a", "f4")])]
    KINDS += [np.array([1, 2**40]), np.ones(2, "complex128")]

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.ones((2, 3), np.float32), self.beside

    class Own(keras.Model):
        def train_step(self, *given):
            x, beside = given[-1]
            x[0] = 5  # an array of NumPy's, and one's own
            seen.append((type(beside), beside.dtype, beside.tolist()))
            return ({"loss": 0.0}, given[0]) if keras.backend.backend() == "jax" else {"loss": 0.0}

    for beside in KINDS:
        found = []
        for installs in (False, True):
            seen = []
            found.append(seen)
            dataset = Batches(workers=1)
            dataset.beside = beside
            model = Own()
            model.compile("sgd", run_eagerly=True)
            model.built = True
            if installs:
                ringfeed.keras.install()
            model.fit(dataset, epochs=1, verbose=0, shuffle=False)
            ringfeed.keras.uninstall()
        assert found[0] == found[1] and len(seen) == 2, found
    print("as in Keras")
"""


def test_steps_that_run_in_python() -> None:
    """On JAX, `install` hands such steps what Keras hands them.

    Arrays of NumPy's, of any dtype, strings and dates.
    """
    pytest.importorskip("jax")
    assert run(IN_PYTHON, "jax").splitlines()[-1] == "as in Keras"


REPLICAS = """
    import tensorflow as tf

    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    by_hand = ringfeed.Loader((X, Y), shuffle=True, seed=7, workers=0)
    expected = small_model()
    for _ in range(3):
        for x, y in by_hand:
            expected.train_on_batch(x, y, class_weight=CLASS_WEIGHT)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for strategy in tf.distribute.OneDeviceStrategy("CPU:0"), mirrored:
        with strategy.scope():
            model = small_model()
        loader = ringfeed.Loader((X, Y), shuffle=True, seed=7, workers=0)
        model.fit(loader.to_keras(), epochs=3, class_weight=CLASS_WEIGHT, verbose=0)
        for weights, wanted in zip(model.get_weights(), expected.get_weights()):
            np.testing.assert_allclose(weights, wanted, rtol=1e-5, atol=1e-7)
        plain = ringfeed.Loader((X, Y), workers=0).to_keras()
        predicted = model.predict(X, verbose=0)
        np.testing.assert_allclose(model.predict(plain, verbose=0), predicted, rtol=1e-5)
        print(strategy.num_replicas_in_sync)
"""


@pytest.mark.long
def test_distribution_strategies() -> None:
    """Under a strategy Keras distributes a tf.data.Dataset from the loader's first epoch on."""
    assert run(REPLICAS) == "1\n2\n"


def test_example() -> None:
    """The example trains, in a script without a main guard."""
    pytest.importorskip("sklearn")
    ended = warm.run([ROOT / "examples" / "keras_fit.py"], cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    *_, accuracy, memory = ended.stdout.splitlines()
    assert accuracy.startswith("accuracy on 397 digits never seen: ")
    assert float(accuracy.split()[-1].rstrip("%")) > 80
    assert memory.startswith("shared memory: ")
