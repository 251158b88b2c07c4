"""The bench for its tests: run as a user runs it, and lines of results with given figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm

BENCH = Path(__file__).parents[2] / "bench"


def bench(output: Path, *arguments: str, forks: bool = False) -> tuple[int, list[dict[str, Any]]]:
    """Run the bench in a process of its own, as a user does: its exit status and its lines.

    ``forks``: what it starts needs TensorFlow, and is spared the import.
    """
    command = [
        str(BENCH / "run.py"),
        "--output",
        str(output),
        "--repetitions",
        "1",
        "--timeout",
        "200",
        *arguments,
    ]
    if forks:
        done = warm.run([*command], forks=True)
    else:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=240, check=False
        )
    output.with_suffix(".log").write_text(done.stdout + done.stderr)
    lines = output.read_text().splitlines() if output.exists() else []
    return done.returncode, [json.loads(line) for line in lines]


def record(
    contender: str, repetition: int, case: str = "ready", **figures: float
) -> dict[str, Any]:
    """A line of results with these figures."""
    place = {"cpu": "CPU", "cores": 2, "memory_bytes": 8e9, "kernel": "6.1", "libc": "glibc 2.36"}
    return {
        "time": "2026-11-20T12:00:00+0000",
        "case": case,
        "contender": contender,
        "repetition": repetition,
        "quick": False,
        "workers": 2,
        "slots": 4,
        "commit": "0123456789ab",
        "machine": place,
        "versions": {"numpy": "2.4.6"},
        "figures": figures,
    }
