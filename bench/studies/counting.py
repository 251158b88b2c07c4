"""What the statistics cost a ready batch of 1 kB, with them and without: `python bench/studies/counting.py`.

The other build is this very source compiled with ``-DRF_STATISTICS=0``, which leaves out what is
noted and timed for onlookers: the states of slots, waits under way, and the times inside dataset[i]
and of the write. The ledger counts in both, since the loader's own statistics are read from it. The
build is made in a scratch folder, which takes a minute. Each repetition is a fresh process; the two
builds take turns. Another ratio is that of the same build against itself, which says how much of a
difference is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import commit, machine

ROOT = Path(__file__).parents[2]
BATCHES = 40_000
WARM = 4_000
CHUNK = 1_000  # batches between two looks at the clock
REPETITIONS = 15
PROMISED = 1.02
TIMEOUT_S = 300.0
KINDS = ("with", "without", "again")


class Ready:
    """The same 1 kB for each index."""

    def __init__(self) -> None:
        self.batch = np.zeros((32, 8), np.float32)

    def __len__(self) -> int:
        """Ready batches."""
        return BATCHES + WARM

    def __getitem__(self, index: int) -> np.ndarray:
        return self.batch


def measure() -> float:
    """Seconds a batch, the median of chunks."""
    import ringfeed  # noqa: PLC0415 - of the build that this process was given

    with ringfeed.Loader(Ready(), batch_size=None, workers=2, slots=4) as loader:
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        chunks = []
        for _ in range(BATCHES // CHUNK):
            began_s = time.perf_counter()
            for _ in range(CHUNK):
                next(batches)
            chunks.append((time.perf_counter() - began_s) / CHUNK)
    return median(chunks)


def build(folder: Path, flags: str) -> Path:
    """Install this source into a folder of its own."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(folder),
        str(ROOT),
    ]
    environment = {**os.environ, "CFLAGS": f"{os.environ.get('CFLAGS', '')} {flags}".strip()}
    subprocess.run(command, check=True, timeout=TIMEOUT_S, env=environment)  # noqa: S603 - our own interpreter
    return folder


def run(folder: Path) -> float:
    """One repetition in a fresh process, which sees this build first."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    found = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, __file__, "--child"],
        check=True,
        timeout=TIMEOUT_S,
        env=environment,
        capture_output=True,
        text=True,
    )
    return float(found.stdout)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"{REPETITIONS}")
    parser.add_argument("--output", type=Path, help="file to add lines to")
    options = parser.parse_args()
    if options.child:
        print(measure())
        return
    with tempfile.TemporaryDirectory(prefix="counting-") as scratch:
        ours = build(Path(scratch, "with"), "")
        folders = {
            "with": ours,
            "without": build(Path(scratch, "without"), "-DRF_STATISTICS=0"),
            "again": ours,
        }
        runs: list[dict[str, float]] = []
        for repetition in range(options.repetitions):
            order = KINDS[repetition % len(KINDS) :] + KINDS[: repetition % len(KINDS)]
            runs.append({kind: run(folders[kind]) for kind in order})
    for kind in KINDS:
        print(f"{kind:8} {median(one[kind] for one in runs) * 1e6:6.2f} us a batch")
    ratio = median(one["with"] / one["without"] for one in runs)
    noise = median(one["with"] / one["again"] for one in runs)
    print(
        f"with / without {ratio:.3f} (at most {PROMISED}); with / itself {noise:.3f}; {len(runs)} "
        "pairs"
    )
    if options.output:
        record = {
            "bench": "counting",
            "machine": machine(),
            "commit": commit(),
            "runs": runs,
            "ratio": ratio,
        }
        with options.output.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
