"""The bench of kinds of samples runs, and leaves lines that its table can be made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def test_a_short_look_times_every_kind(tmp_path: Path) -> None:
    """Each kind has a line a repetition, with a time of its own reading and of ringfeed."""
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "leaves.py"), "--quick", "--out", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    kinds = dict.fromkeys(record["kind"] for record in records)
    assert [record["kind"] for record in records] == [*kinds, *kinds]
    assert {"int", "np.int64", "0-d array", "dict", "NamedTuple", "list", "dict of 20 np.float32"} < set(kinds)
    assert all({"ringfeed", "own"} <= set(record["s"]) for record in records)
    assert all(time_s > 0 for record in records for time_s in record["s"].values())
    assert len(done.stdout.splitlines()) == 1 + len(kinds)
