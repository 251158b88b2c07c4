"""`bench/studies/borders.py`: a short repetition of one case, with and without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("prefetch", ["1", "0"])
def test_a_repetition_gives_seconds(prefetch: str) -> None:
    """A fresh process times the gaps within epochs and between them."""
    found = subprocess.run(
        [sys.executable, str(BENCH / "studies" / "borders.py"), "--quick", "--child", "38.5 MB", prefetch],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    figures = json.loads(found.stdout)
    assert set(figures) == {"within_s", "across_s", "longest_s"}
    assert all(seconds > 0 for seconds in figures.values())
