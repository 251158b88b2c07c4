"""The bench of samples that differ in length runs, and leaves lines that its figures can be made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def test_a_short_look_times_all(tmp_path: Path) -> None:
    """Each look has a line a repetition; what a total saves is in the plan."""
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "forms.py"), "--quick", "--out", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [record["look"] for record in records] == ["detection", "encoded", "memory"] * 2
    assert all(time_s > 0 for record in records for time_s in record["s"].values())
    planned = records[-1]["planned"]
    assert planned["ragged, total"] < planned["ragged"] / 2
    assert len(done.stdout.splitlines()) == 6
