"""Train a torch model by two processes, with DistributedDataParallel: no DistributedSampler is needed.

Run it: python torch_ddp.py (needs torch and scikit-learn). It starts both processes itself, with
gloo. Under torchrun with GPUs, call only `train`, with "nccl" and to_torch("cuda"), which was not
tried on a GPU yet. The loader finds its rank and the number of processes in torch.distributed
(shard="auto"). Both processes have the same seed, and each gets its part of every batch.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import ringfeed

HELD_OUT = 397
PROCESSES = 2


def train(rank: int, meeting_place: str) -> None:
    """Train as one of the processes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=PROCESSES
    )
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the net is too small to share
    digits = load_digits()
    images, classes = (
        (digits.images[:, None] / 16).astype(np.float32),
        digits.target.astype(np.int64),
    )
    layers = (
        torch.nn.Conv2d(1, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(1152, 10),
    )
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    columns = images[:-HELD_OUT], classes[:-HELD_OUT]
    with ringfeed.Loader(
        columns, batch_size=32, shuffle=True, seed=0, shard="auto", workers=1
    ) as loader:
        batches = loader.to_torch()
        for epoch in range(8):
            total = 0.0
            for pictures, labels in batches:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pictures), labels)
                loss.backward()  # gradients are averaged over the processes
                optimizer.step()
                total += loss.item() / len(batches)
            if rank == 0:
                print(f"epoch {epoch}: loss {total:.3f}", flush=True)
        memory = loader.memory
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(PROCESSES)]
    distributed.all_gather(others, weights)
    if rank == 0:
        with torch.no_grad():
            found = model.module(torch.from_numpy(images[-HELD_OUT:])).argmax(1).numpy()
        print(
            "both processes have the same weights: "
            f"{all(torch.equal(weights, other) for other in others)}"
        )
        print(
            f"accuracy on {HELD_OUT} digits never seen: {(found == classes[-HELD_OUT:]).mean():.1%}"
        )
        print(f"shared memory: {memory / 1e6:.1f} MB", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (os.path.join(folder, "meeting"),), nprocs=PROCESSES)  # noqa: PTH118
