"""Two processes of torch.distributed train one model on the two parts of each global batch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest

from together import check_ranks, run_together

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

SCRIPT = """
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=ports[0], rank=rank, world_size=2)
torch.manual_seed(rank)  # DDP sends rank 0's weights to all
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
batches = []
with loader() as made:
    for x, y in made.to_torch():
        batches.append(x[:, 0].int().tolist())
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    say(made, batches, weights=[row.tolist() for row in model.state_dict().values()])
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_of_ddp_have_each_global_batch_between_them(tmp_path: Path) -> None:
    """shard="auto" asks torch.distributed; both have as many batches, so no all-reduce waits."""
    ranks = run_together(SCRIPT, f"file://{tmp_path}/store")
    check_ranks(ranks, "torch.distributed")
    for one, other in zip(*(rank["weights"] for rank in ranks), strict=True):
        np.testing.assert_array_equal(one, other)
