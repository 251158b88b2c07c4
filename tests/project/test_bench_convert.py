"""The bench of the conversion runs, and leaves lines that its table can be made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def test_a_short_look_measures_every_case(tmp_path: Path) -> None:
    """All contenders make the same bits, and have a rate in each case and repetition."""
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "convert.py"), "--quick", "--out", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [record["case"] for record in records] == [
        case for case in ("224 HWC", "224 CHW", "1024 HWC", "1024 CHW") for _ in range(3)
    ]
    assert all(set(record["gb_per_s"]) == {"ringfeed", "copy", "in place", "numpy"} for record in records)
    assert all(rate > 0 for record in records for rate in record["gb_per_s"].values())
    assert len(done.stdout.splitlines()) == 16
