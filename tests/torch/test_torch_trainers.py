"""Accelerate and Lightning on two processes, cut and resumed: the losses are torch's."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
SCRIPT = Path(__file__).parents[1] / "support" / "torch_ranks.py"
STEPS, LIMIT_S = 12, 240


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(by: str, kind: str, folder: Path, steps: int) -> list[list[float]]:
    """Train on two processes up to a step; return the losses of each rank."""
    folder.mkdir(exist_ok=True)
    same = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    same |= {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    same |= {"PYTHONPATH": os.pathsep.join([*sys.path]), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(SCRIPT), by, kind, str(folder), str(steps)]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | same | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            said, _ = rank.communicate(timeout=LIMIT_S)
            assert rank.returncode == 0, said[-4000:]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads((folder / f"losses-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("by", ["accelerate", "lightning"])
@pytest.mark.timeout(4 * LIMIT_S)
def test_two_ranks_go_on_with_the_same_losses(by: str, tmp_path: Path) -> None:
    """Those of torch's DataLoader, bit for bit, whole and cut amid an epoch."""
    if importlib.util.find_spec(by) is None:
        pytest.skip(f"{by} is not installed")
    whole = run(by, "ours", tmp_path / "whole", STEPS)
    assert [len(losses) for losses in whole] == [STEPS, STEPS]
    assert whole == run(by, "torchs", tmp_path / "torchs", STEPS)
    run(by, "ours", tmp_path / "cut", 4)
    assert run(by, "ours", tmp_path / "cut", STEPS) == whole
