"""`bench/studies/first_batch.py` and `forks.py`: a short repetition, and the table of what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from studies import first_batch  # noqa: E402

pytestmark = pytest.mark.long


def test_a_short_run(tmp_path: Path) -> None:
    """One line a repetition, in the file too, with the figures of a process of its own."""
    out = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "studies" / "first_batch.py"), "--quick", "--output", str(out)]
    command += ["--contenders", "forkserver", "fork", "--workers", "1"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["case"], row["contender"]) for row in rows] == [("script", "forkserver"), ("script", "fork")]
    assert found.stdout.startswith(out.read_text())
    for row in rows:
        assert min(row["import_s"], row["first_s"], row["second_s"], row["cpu_s"], row["memory_bytes"]) > 0


def test_the_table_gives_medians_and_leaves_errors_out() -> None:
    """The first batch stands over torch's of the same dataset."""
    figures = {"workers": 2, "import_s": 0.08, "second_s": 0.01, "cpu_s": 0.5, "memory_bytes": 30e6}
    rows = [{"case": "script", "contender": "spawn", "first_s": first_s, **figures} for first_s in (0.2, 0.4, 0.9)]
    rows += [{"case": "script", "contender": "torch fork", "first_s": 0.1, **figures}]
    rows += [{"case": "script", "contender": "spawn", "first_s": 0.5, **figures, "workers": 16}]
    rows += [{"case": "array", "contender": "spawn", "workers": 2, "error": "ImportError: no"}]
    assert first_batch.table(rows).splitlines()[2:] == [
        "| script | 2 | spawn | 80 ms | 400 ms | 4.0x | 10 ms | 1.0x | 500 ms | 30 MB |",
        "| script | 2 | torch fork | 80 ms | 100 ms | 1.0x | 10 ms | 1.0x | 500 ms | 30 MB |",
        "| script | 16 | spawn | 80 ms | 500 ms | - | 10 ms | - | 500 ms | 30 MB |",
    ]


def test_a_short_run_of_forks() -> None:
    """One line a row, and a table; what was added in huge pages is in them, where the kernel has some."""
    command = [sys.executable, str(BENCH / "studies" / "forks.py"), "--forks", "2"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    *lines, _, _, _, _, _, _, _ = found.stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    kinds = [("4 kB", 0), ("4 kB", 100), ("huge", 100), ("4 kB", 400), ("huge", 400)]
    assert [(row["pages"], row["added_mb"]) for row in rows] == kinds
    for row in rows:
        assert row["private_bytes"] > row["added_mb"] << 20
        assert 0 < row["call_us"] < row["end_us"]
        assert row["pages"] == "huge" or row["huge_bytes"] < 100 << 20
