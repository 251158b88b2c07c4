"""The bench of real text runs, and leaves lines that its table can be made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
BENCH = Path(__file__).parents[2] / "bench"


def test_a_short_look_times_every_contender(tmp_path: Path) -> None:
    """Each reads the same tokens; the fewer of its numbers are padding, the nearer its batches are in length."""
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "text.py"), "--quick", "--out", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    (record,) = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [*record["runs"]] == ["max", "pad", "buckets", "budget"]
    assert all(run["s"] > 0 for run in record["runs"].values())
    padding = record["padding"]
    assert padding["max"] > padding["pad"] > padding["buckets"] > 0
    assert record["tokens"] > 320 * 4
    assert len(done.stdout.splitlines()) == 2 + len(record["runs"])
