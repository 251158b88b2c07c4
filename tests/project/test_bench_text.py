"""The bench of real text runs, and leaves lines that its table can be made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import warm

pytestmark = pytest.mark.long

pytest.importorskip("tensorflow")
BENCH = Path(__file__).parents[2] / "bench"


def test_a_short_look_times_every_contender(tmp_path: Path) -> None:
    """Each reads the same tokens; the fewer of its numbers are padding, the nearer its batches are in length."""
    lines = tmp_path / "lines.jsonl"
    done = warm.run([BENCH / "studies" / "text.py", "--quick", "--out", lines])
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [*record["runs"]] == ["max", "pad", "buckets", "budget"]
    assert all(run["s"] > 0 for run in record["runs"].values())
    padding = record["padding"]
    assert padding["max"] > padding["pad"] > padding["buckets"] > 0
    assert record["tokens"] > 320 * 4
    assert len(done.stdout.splitlines()) == 2 + len(record["runs"])
