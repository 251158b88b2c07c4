"""`make demo-cluster`: a training goes on with the same batches when a node is killed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cluster

NEEDED = ("ray", "tensorflow", "keras", "sklearn", "rich")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
DEMO = Path(__file__).parents[2] / "examples" / "demo_cluster.py"


def has(pid: int, mark: dict[str, str]) -> bool:
    """Whether a process was started with these variables."""
    try:
        given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return {f"{name}={value}".encode() for name, value in mark.items()} <= {*given}


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_demo() -> None:
    """Both runs have one hash, a node was killed with actors on it, and nothing is left."""
    mark = {"RINGFEED_TEST_DEMO": str(os.getpid())}  # what the demo starts has it, too
    environment = {**os.environ, **mark}
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        check=False,
        capture_output=True,
        text=True,
        timeout=580,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(
        r"killing node 127\.0\.0\.[23] with its [1-4] actors, in epoch 2\n", done.stdout
    )
    assert "the actors are gone\n" in done.stdout
    (hashes,) = re.findall(r"Hash of all batches\W+(\w{16})\W+(\w{16})", done.stdout)
    assert hashes[0] == hashes[1]
    assert [" ".join(command) for pid, command in cluster.commands() if has(pid, mark)] == []
