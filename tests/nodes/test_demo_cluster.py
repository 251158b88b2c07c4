"""`make demo-cluster`: a training goes on when a node of its cluster is killed, with the same batches."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cluster

NEEDED = ("ray", "tensorflow", "keras", "sklearn", "rich")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
DEMO = Path(__file__).parents[2] / "examples" / "demo_cluster.py"


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_demo() -> None:
    """Both runs have one hash, a node was killed with actors on it, and nothing is left."""
    before = {" ".join(command) for _, command in cluster.commands()}
    done = subprocess.run([sys.executable, str(DEMO)], check=False, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"killing node 127\.0\.0\.[23] with its [1-4] actors, in epoch 2\n", done.stdout)
    assert "the actors are gone\n" in done.stdout
    (hashes,) = re.findall(r"Hash of all batches\W+(\w{16})\W+(\w{16})", done.stdout)
    assert hashes[0] == hashes[1]
    left = {" ".join(command) for _, command in cluster.commands()} - before
    assert [command for command in left if "demo_cluster" in command or "keeper.py" in command] == []
