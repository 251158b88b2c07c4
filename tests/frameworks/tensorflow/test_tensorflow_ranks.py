"""Two processes of a MultiWorkerMirroredStrategy train on the two parts of each global batch."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from together import check_ranks, ports, run_with_tensorflow

pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="tensorflow is not installed"
)

SCRIPT = """
cluster = {"worker": ["127.0.0.1:" + port for port in ports]}
task = {"type": "worker", "index": rank}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable([[0.5], [0.5]], aggregation=tf.VariableAggregation.MEAN)

def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - y) ** 2)
    gradient = tape.gradient(loss, weights)
    mean = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
    weights.assign_sub(1e-4 * mean)
    return x[:, 0]

train = tf.function(lambda batch: strategy.run(step, batch), reduce_retracing=True)
batches = []
with loader() as made:
    parts = strategy.distribute_datasets_from_function(lambda context: made.to_tf_dataset())
    for batch in parts:
        batches.append(train(batch).numpy().astype(int).tolist())
    say(made, batches, weights=weights.numpy().tolist())
"""


@pytest.mark.long
def test_two_workers_of_a_strategy_have_each_global_batch_between_them() -> None:
    """shard="auto" reads TF_CONFIG; every worker gives the strategy its own part."""
    ranks = run_with_tensorflow(SCRIPT, *ports(2), CUDA_VISIBLE_DEVICES="-1")
    check_ranks(ranks, "TF_CONFIG")
    np.testing.assert_array_equal(ranks[0]["weights"], ranks[1]["weights"])
