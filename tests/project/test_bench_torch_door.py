"""`bench/studies/torch_door.py`: a short look at one case, with all contenders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

pytest.importorskip("torch", reason="torch is not installed")
STUDY = Path(__file__).parents[2] / "bench" / "studies" / "torch_door.py"


def test_a_short_look_times_all_contenders() -> None:
    """Each repetition has a time and the CPU of each, and the last line the ratios to the import that was changed."""
    command = [sys.executable, str(STUDY), "--quick", "--case", "114 leaves"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    _, *rows, ratios = map(json.loads, done.stdout.splitlines())
    names = {"torch", "import changed", "Loader", "Loader, ahead"}
    assert len(rows) == 2
    assert all(row.pop("case") == "114 leaves" and set(row) == names for row in rows)
    assert all(time_ms > 0 and cpu_ms > 0 for row in rows for time_ms, cpu_ms in row.values())
    assert set(ratios["import changed, as a part of"]) == names
