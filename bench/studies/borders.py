"""The gap between two epochs beside that between two batches: `python bench/studies/borders.py`, or `--quick`.

    38.5 MB       batches that exist already, one copy each
    photographs   JPEG decoded for each sample

Each with the next epoch read across the border and without. A repetition is a fresh process; all
four take turns. The consumer waits for each batch, so that no step hides what is timed. Each
repetition leaves one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import commit, machine
from harness.resting import resting
from workloads.photographs import Photographs
from workloads.samples import Ready

EPOCH = 24  # batches
EPOCHS = {False: 40, True: 4}  # the first does not count: workers start; quick or not
REPETITIONS = 5
CASES = ("38.5 MB", "photographs")
TIMEOUT_S = 600.0


def loader_of(case: str, *, prefetch: bool) -> ringfeed.Loader:
    """A loader of one of the cases."""
    if case == "photographs":
        dataset, rows = Photographs(EPOCH * 32), 32
    else:
        dataset, rows = Ready(EPOCH, (64, 3, 224, 224), distinct=2), None  # type: ignore[assignment]
    loader = ringfeed.Loader(dataset, batch_size=rows, shuffle=True, workers=2, slots=4)
    return loader if prefetch else resting(loader)


def measure(case: str, *, prefetch: bool, quick: bool) -> dict[str, float]:
    """Medians of the seconds from one batch to the next, in an epoch and across its end."""
    within: list[float] = []
    across: list[float] = []
    with loader_of(case, prefetch=prefetch) as loader:
        came_s = 0.0
        for epoch in range(EPOCHS[quick]):
            for number, batch in enumerate(loader):
                now_s = time.perf_counter()
                del batch
                if epoch:
                    (within if number else across).append(now_s - came_s)
                came_s = now_s
    return {"within_s": median(within), "across_s": median(across), "longest_s": max(across)}


def run(case: str, *, prefetch: bool, quick: bool) -> dict[str, Any]:
    """One repetition in a fresh process."""
    command = [
        sys.executable,
        __file__,
        "--child",
        case,
        str(int(prefetch)),
        *["--quick"][: int(quick)],
    ]
    found = subprocess.run(  # noqa: S603 - our own interpreter
        command, check=True, timeout=TIMEOUT_S, capture_output=True, text=True
    )
    return {"case": case, "prefetch": prefetch, **json.loads(found.stdout)}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    parser.add_argument("--output", type=Path, help="file to add lines to")
    options = parser.parse_args()
    if options.child:
        print(
            json.dumps(
                measure(options.child[0], prefetch=options.child[1] == "1", quick=options.quick)
            )
        )
        return
    kinds = [(case, prefetch) for case in CASES for prefetch in (True, False)]
    runs = []
    for repetition in range(1 if options.quick else REPETITIONS):
        for case, prefetch in kinds[repetition % len(kinds) :] + kinds[: repetition % len(kinds)]:
            runs.append(run(case, prefetch=prefetch, quick=options.quick))
    for case, prefetch in kinds:
        mine = [one for one in runs if (one["case"], one["prefetch"]) == (case, prefetch)]
        shown = [
            median(one[name] for one in mine) * 1e3
            for name in ("within_s", "across_s", "longest_s")
        ]
        title = f"{case}, {'with' if prefetch else 'without'}"
        print(
            f"{title:22} {shown[0]:8.2f} ms a batch, {shown[1]:8.2f} ms between epochs, longest "
            f"{shown[2]:8.2f}"
        )
    if options.output:
        with options.output.open("a") as file:
            for one in runs:
                file.write(
                    json.dumps(
                        {"bench": "borders", "machine": machine(), "commit": commit(), **one}
                    )
                    + "\n"
                )


if __name__ == "__main__":
    main()
