"""Worker threads beside worker processes for samples of pure Python: `python bench/studies/free_threads.py`.

Run it by a Python without the GIL (3.13t, 3.14t), and by one with it. A sample is about a
millisecond of integer arithmetic, which never lets go of the GIL. A repetition is a fresh process;
all cases take turns. Of each, samples a second over a few seconds, and the memory of all processes
by then (PSS). Each repetition leaves one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import numpy as np

import ringfeed
from harness.machine import commit, machine

CASES: dict[str, tuple[int, Literal["thread", "process"]]] = {
    "1 thread": (1, "thread"),
    "2 threads": (2, "thread"),
    "1 process": (1, "process"),
    "2 processes": (2, "process"),
}
SECONDS = {False: 5.0, True: 0.5}  # quick or not
REPETITIONS = 5
STEPS = 12_000  # of the arithmetic: about a millisecond
TIMEOUT_S = 120.0


class Arithmetic:
    """Samples that are a loop in Python."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> np.int64:
        number = index
        for _ in range(STEPS):
            number = number * 5 + 1 & 0xFFFF
        return np.int64(number)


def pss(pid: int | str) -> int:
    """Return the bytes of a process, pages that it shares counted in part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("Pss:")[1].split()[0]) * 1024


def measure(case: str, seconds: float) -> dict[str, Any]:
    """Samples a second, and the memory of all processes."""
    workers, backend = CASES[case]
    with ringfeed.Loader(Arithmetic(), batch_size=32, workers=workers, backend=backend) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        began_s, samples = time.perf_counter(), 0
        while (now_s := time.perf_counter()) < began_s + seconds:
            samples += len(next(batches))
        found = loader.stats().memory
        pids = [one.pid for one in (*found.workers, *found.forkservers)]
        memory = sum(map(pss, ["self", *pids]))
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return {"case": case, "gil": has_gil, "per_s": samples / (now_s - began_s), "pss": memory}


def run(case: str, seconds: float) -> dict[str, Any]:
    """One repetition in a fresh process."""
    command = [sys.executable, __file__, "--child", case, "--seconds", str(seconds)]
    found = subprocess.run(  # noqa: S603 - our own interpreter
        command, check=True, timeout=TIMEOUT_S, capture_output=True, text=True
    )
    measured: dict[str, Any] = json.loads(found.stdout)
    return measured


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    parser.add_argument("--output", type=Path, help="file to add lines to")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.seconds)))
        return
    cases, runs = [*CASES], []
    for repetition in range(1 if options.quick else REPETITIONS):
        first = repetition % len(cases)
        runs += [run(case, SECONDS[options.quick]) for case in cases[first:] + cases[:first]]
    print(f"Python {sys.version.split()[0]}, the GIL is {'on' if runs[0]['gil'] else 'off'}")
    for case in cases:
        mine = [one for one in runs if one["case"] == case]
        per_s, size = (median(one[name] for one in mine) for name in ("per_s", "pss"))
        print(f"{case:12} {per_s:8.0f} samples/s {size / 1e6:8.1f} MB")
    if options.output:
        with options.output.open("a") as file:
            for one in runs:
                line = {"bench": "free_threads", "machine": machine(), "commit": commit(), **one}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
