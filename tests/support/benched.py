"""The bench for its tests: run as a user runs it, and lines of results with given figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / "bench"


def bench(output: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the bench in a process of its own, as a user does: its exit status and its lines."""
    command = [
        sys.executable,
        str(BENCH / "run.py"),
        "--output",
        str(output),
        "--repetitions",
        "1",
        "--timeout",
        "200",
        *arguments,
    ]
    with output.with_suffix(".log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=240, check=False)
    lines = output.read_text().splitlines() if output.exists() else []
    return done.returncode, [json.loads(line) for line in lines]


def record(contender: str, repetition: int, case: str = "ready", **figures: float) -> dict[str, Any]:
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
