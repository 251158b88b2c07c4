"""`bench/studies/streams.py`: a short run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"

pytestmark = [pytest.mark.once, pytest.mark.long]


def test_a_short_run(tmp_path: Path) -> None:
    """Each contender gives the same pictures, which the study itself asserts, and stands in the table."""
    pytest.importorskip("PIL")
    out = tmp_path / "streams.jsonl"
    found = subprocess.run(
        [sys.executable, str(BENCH / "studies" / "streams.py"), "--quick", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    for name in ("by number", "iterable", "interleaved"):
        assert f"{name:12} " in found.stdout
        assert all(json.loads(line)["epochs"][name]["rate"] > 0 for line in out.read_text().splitlines())
