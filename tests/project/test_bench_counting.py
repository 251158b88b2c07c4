"""`bench/counting.py`: one repetition of it, in the build that is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def test_a_repetition_gives_seconds() -> None:
    """A fresh process measures a batch of the ringfeed that it finds."""
    found = subprocess.run(
        [sys.executable, str(BENCH / "studies" / "counting.py"), "--child"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert 0 < float(found.stdout) < 1
