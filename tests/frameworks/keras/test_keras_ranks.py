"""Two processes of keras.distribution on JAX fit one model on the parts of each batch."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from together import check_ranks, global_batches, ports, run_together

pytestmark = pytest.mark.skipif(
    not (find_spec("keras") and find_spec("jax")), reason="keras or jax is not installed"
)

SCRIPT = """
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
import keras

keras.distribution.initialize("127.0.0.1:" + ports[0], 2, rank)
keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
model.build((None, 2))
model.compile(keras.optimizers.SGD(1e-4), "mse")
losses = []
note = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"]))
)
with loader() as made:
    model.fit(made.to_keras(), verbose=0, callbacks=[note])
    weights = [np.asarray(one).tolist() for one in model.get_weights()]
    made.set_epoch(0)
    batches = [x[:, 0].astype(int).tolist() for x, y in made]
    say(made, batches, losses=losses, weights=weights)
"""


def test_two_processes_of_keras_have_each_global_batch_between_them() -> None:
    """shard="auto" finds what Keras has told JAX.

    The weights are those of one process with the global batches.
    """
    ranks = run_together(SCRIPT, *ports(1), JAX_PLATFORMS="cpu", KERAS_BACKEND="jax")
    check_ranks(ranks, "jax.distributed")
    *full, rest = global_batches()
    kernel, bias = np.zeros((2, 1)), np.zeros(1)
    for batch in [*full, [*rest, rest[0]]]:
        rows = np.array(batch)
        x = np.stack([rows, rows % 5 + 1], 1)
        slope = 2 * (x @ kernel + bias - x @ [[0.1], [1.0]]) / len(x)
        kernel, bias = kernel - 1e-4 * x.T @ slope, bias - 1e-4 * slope.sum(0)
    for one in ranks:
        np.testing.assert_allclose(one["weights"][0], kernel, rtol=1e-4)
        np.testing.assert_allclose(one["weights"][1], bias, rtol=1e-4)
        assert one["losses"] == ranks[0]["losses"]
