"""Two processes of jax.distributed make one array of the two parts of each global batch."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from together import check_ranks, global_batches, ports, run_together

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")

SCRIPT = """
import jax
from jax.sharding import NamedSharding, PartitionSpec

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + ports[0], 2, rank)
made = loader()
from jax._src import xla_bridge
started = xla_bridge.backends_are_initialized()
rows = NamedSharding(jax.sharding.Mesh(jax.devices(), ("rank",)), PartitionSpec("rank"))
total = jax.jit(lambda x: x[:, 0].sum())
batches, totals, shapes = [], [], []
with made:
    for x, y in made.to_jax():
        batches.append(np.asarray(x[:, 0]).astype(int).tolist())
        both = jax.make_array_from_process_local_data(rows, x)
        shapes.append(both.shape)
        totals.append(float(total(both)))
    say(made, batches, totals=totals, shapes=shapes, started=started)
jax.distributed.shutdown()
"""


def test_two_processes_of_jax_have_each_global_batch_between_them() -> None:
    """shard="auto" reads what jax.distributed was given, without the start of a backend.

    Sums go over both.
    """
    ranks = run_together(SCRIPT, *ports(1), JAX_PLATFORMS="cpu")
    check_ranks(ranks, "jax.distributed")
    *full, rest = global_batches()
    for one in ranks:
        assert one["shapes"] == [[8, 2]] * 4 + [[6, 2]]
        assert one["totals"] == [*map(sum, full), sum(rest) + rest[0]]
        assert not one["started"]
