"""What a loader does to the thread that trains beside it: `python bench/studies/neighbour.py`.

The training thread takes 500 steps. Each has a batch of 4 photographs, 200 launches at moments 20
microseconds apart (a loop waits for the moment in Python; a launch is the crc32 of 8 kB, which lets
go of the GIL, as a kernel's launch does), and 5 milliseconds asleep, as if for a device. The machine
makes photographs several times faster than the steps take them.

    step              the median time of a step, over that of the same steps with a batch that is
                      there already and no loader ("headspace") in the same repetition
    p50_us, p99_us,   how late a launch is: its 50th, 99th and 99.9th percentile
    p999_us
    trainer_cpu_ms    CPU of the training process a step, its threads included

Each contender of `photograph_loaders.py` runs in a fresh process, in turns, and once more "pinned":
the training thread has one core, and all other threads and processes have the other ones. Each run
leaves one JSON line; medians come last.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import tempfile
import threading
import time
import zlib
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.proctree import descendants
from harness.turns import installed, parser_of, said_by, take_turns
from report import report
from report.results import Results
from studies.photograph_loaders import ALL, SIDE, packages_of
from studies.photographs import FILES, MOST_S, QUICK_FILES, RIVALS, write_files

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS, QUICK_STEPS, REPETITIONS, WARM = 500, 60, 5, 20
BATCH, LAUNCHES, APART_S, ASLEEP_S = 4, 200, 20e-6, 5e-3
BLOCK = bytes(8192)
HEADSPACE = "headspace"
PINNED = "neighbour, pinned"
CASES = "neighbour", PINNED
LEFT_OUT = {"two bare processes"}


def endless(name: str, folder: Path) -> Iterator[Any]:
    """Yield batches of a contender, epoch after epoch."""
    if name == HEADSPACE:
        batch = np.zeros((BATCH, 3, SIDE, SIDE), np.float32)
        while True:
            yield batch, range(BATCH)
    epoch = ALL[name](folder, BATCH)
    for number in count():
        yield from epoch(number)


def pin() -> None:
    """Leave the first core to this thread, and give all other threads and processes the other cores."""
    first, *others = sorted(os.sched_getaffinity(0))
    for process in [os.getpid(), *descendants(os.getpid())]:
        # A thread may end while it is looked at.
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                os.sched_setaffinity(int(task.name), others)
    os.sched_setaffinity(threading.get_native_id(), [first])


def run_contender(name: str, folder: Path, steps: int, *, pinned: bool) -> dict[str, Any]:
    """Take the steps beside one contender in this process."""
    for package in packages_of(name) if name != HEADSPACE else ():
        importlib.import_module(package)
    batches = endless(name, folder)
    late, took = [], []
    used = 0.0
    for step in range(WARM + steps):
        if step == WARM:
            if pinned:
                pin()
            used = time.process_time()
        began = time.perf_counter()
        images, _ = next(batches)
        float(np.asarray(images)[0, 0, 0, 0])
        start = time.perf_counter()
        for launch in range(LAUNCHES):
            moment = start + launch * APART_S
            while (now := time.perf_counter()) < moment:
                pass
            zlib.crc32(BLOCK)
            if step >= WARM:
                late.append(now - moment)
        time.sleep(ASLEEP_S)
        if step >= WARM:
            took.append(time.perf_counter() - began)
    p50, p99, p999 = np.percentile(late, (50, 99, 99.9)) * 1e6
    return {
        "step_ms": round(median(took) * 1e3, 4),
        "mean_step_ms": round(sum(took) / len(took) * 1e3, 4),
        "p50_us": round(float(p50), 2),
        "p99_us": round(float(p99), 2),
        "p999_us": round(float(p999), 2),
        "trainer_cpu_ms": round((time.process_time() - used) / steps * 1e3, 3),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return medians; a step is compared with headspace's of the same repetition."""
    results = Results(records)
    figures = ("p50_us", "p99_us", "p999_us", "trainer_cpu_ms")
    rows = []
    for case in dict.fromkeys(record["case"] for record in records):
        for name in results.contenders(case):
            step = median(results.ratios(case, name, HEADSPACE, "step_ms"))
            cells = [f"{results.median(case, name, one) or 0:.2f}" for one in figures]
            rows.append([f"{case}: {name}", f"{step:.3f}", *cells])
    return report.table(["", "step over headspace", *figures], rows)


def main() -> None:
    """Let all contenders take turns beside the steps."""
    contenders = [name for name in ALL if name not in LEFT_OUT]
    parser = parser_of(__doc__, contenders, CASES)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        case, name = asked.one
        pinned = case == PINNED
        print(json.dumps(run_contender(name, asked.folder, asked.steps, pinned=pinned)), flush=True)
        os._exit(0)  # some rivals' threads do not end
    names = [HEADSPACE, *(one for one in asked.contender if installed(packages_of(one)))]
    with tempfile.TemporaryDirectory() as made:
        write_files(Path(made), QUICK_FILES if asked.quick else FILES)
        words = ["--folder", made, "--steps", str(QUICK_STEPS if asked.quick else STEPS)]
        records = take_turns(
            asked,
            dict.fromkeys(asked.case, names),
            REPETITIONS,
            RIVALS,
            lambda *both: said_by(__file__, [*words, "--one", *both], MOST_S),
        )
    print(table(records))


if __name__ == "__main__":
    main()
