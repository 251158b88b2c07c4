"""`bench/studies/share.py`: the smallest run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def test_a_run_gives_ratios(tmp_path: Path) -> None:
    """Of each number of trainings it tells the CPU of loaders and of a share, and whether the promise was kept."""
    pytest.importorskip("PIL")
    output = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "share.py"), "--quick", "--out", str(output)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert output.exists(), ended.stderr
    about, *lines = map(json.loads, output.read_text().splitlines())
    assert {"commit", "machine", "versions"} <= about.keys()
    assert [line["ranks"] for line in lines] == [1, 2, 4]
    for line in lines:
        assert line["ratio"] == line["share_s"] / line["loaders_s"] > 0
    assert [said.split(":")[0] for said in ended.stdout.splitlines()] == ["K = 1", "K = 2", "K = 4"]
    assert ended.returncode == ("NOT KEPT" in ended.stdout)
