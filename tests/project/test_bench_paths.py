"""The bench of path strings runs, and leaves lines that its table can be made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once, pytest.mark.long]

BENCH = Path(__file__).parents[2] / "bench"


def test_a_short_look_weighs_every_kind(tmp_path: Path) -> None:
    """Each way has a line for the list and one for the Frozen, which takes next to nothing."""
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "paths.py"), "--quick", "--out", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    found = {(record["way"], record["kind"]): record["bytes"] for record in records}
    ours = {(f"ringfeed, {method}", kind) for method in ("spawn", "fork") for kind in ("list", "Frozen")}
    assert ours <= found.keys()
    assert found["ringfeed, fork", "Frozen"] < found["ringfeed, fork", "list"]
    assert len(done.stdout.splitlines()) == len(records)
