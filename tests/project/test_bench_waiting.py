"""`bench/studies/waiting.py`: a short repetition of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize(("contender", "case"), [("asyncio", "even"), ("tasks", "slow"), ("threads", "even")])
def test_a_repetition_gives_a_rate(contender: str, case: str) -> None:
    """A fresh process counts samples, and compares their rate with the best that there can be."""
    found = subprocess.run(
        [sys.executable, str(BENCH / "studies" / "waiting.py"), "--one", contender, case, "0.2"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    figures = json.loads(found.stdout)
    assert set(figures) == {"samples_per_s", "of_ideal"}
    assert all(figure > 0 for figure in figures.values())
