"""What a loader does to the thread that trains beside it: `python bench/studies/neighbour.py`.

The training thread takes 500 steps. Each has a batch of 4 photographs, 200 launches at moments 20
microseconds apart (a loop waits for the moment in Python; a launch is the crc32 of 8 kB, which lets
go of the GIL, as a kernel's launch does), and 5 milliseconds asleep, as if for a device. The machine
makes photographs several times faster than the steps take them.

    step              the median time of a step, over that of the same steps with a batch that is
                      there already and no loader ("headspace") in the same repetition
    launch_us         how late a launch is: its 50th, 99th and 99.9th percentile, in microseconds
    trainer_cpu_ms    CPU of the training process a step, its threads included

Each contender of `photograph_loaders.py` runs in a fresh process, in turns; with `--pinned` the
training thread has one core, and all other threads and processes have the other ones. Each run
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

from harness.machine import conditions
from harness.proctree import descendants
from studies.photograph_loaders import ALL, SIDE, packages_of
from studies.photographs import FILES, QUICK_FILES, measured, write_files

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS, QUICK_STEPS, REPETITIONS, WARM = 500, 60, 5, 20
BATCH, LAUNCHES, APART_S, ASLEEP_S = 4, 200, 20e-6, 5e-3
BLOCK = bytes(8192)
HEADSPACE = "headspace"
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
        "launch_us": [round(float(one), 2) for one in (p50, p99, p999)],
        "trainer_cpu_ms": round((time.process_time() - used) / steps * 1e3, 3),
    }


def main() -> None:
    """Let all contenders take turns beside the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--contender", nargs="+", help="these alone", choices=[*ALL])
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--out", type=Path, help="where the lines go besides")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        found = run_contender(asked.one, asked.folder, asked.steps, pinned=asked.pinned)
        print(json.dumps(found), flush=True)
        os._exit(0)  # some rivals' threads do not end
    facts = conditions(quick=asked.quick)
    chosen = asked.contender or [name for name in ALL if name not in LEFT_OUT]
    names = [HEADSPACE] + [
        name
        for name in chosen
        if all(importlib.util.find_spec(one.partition(".")[0]) for one in packages_of(name))
    ]
    steps = ["--steps", str(QUICK_STEPS if asked.quick else STEPS)]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_files(folder, QUICK_FILES if asked.quick else FILES)
        for number in range(asked.repetitions or (1 if asked.quick else REPETITIONS)):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                had = measured(Path(__file__), name, folder, steps + ["--pinned"] * asked.pinned)
                rows[name].append(had)
                line = {"contender": name, "repetition": number, "pinned": asked.pinned} | had
                print(json.dumps(line), flush=True)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(facts | line) + "\n")
    show(rows)


def show(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians; a step is compared with headspace's of the same repetition."""
    free = rows[HEADSPACE]
    print(f"{'':44}{'step':>8}{'late 50 %':>11}{'99 %':>9}{'99.9 %':>9}{'CPU ms':>9}")
    for name, had in rows.items():
        pairs = [(one, bare) for one, bare in zip(had, free, strict=True) if "error" not in one]
        if pairs:
            step = median(one["step_ms"] / bare["step_ms"] for one, bare in pairs)
            late = [median(one["launch_us"][place] for one, _ in pairs) for place in range(3)]
            cpu = median(one["trainer_cpu_ms"] for one, _ in pairs)
            cells = f"{late[0]:11.1f}{late[1]:9.1f}{late[2]:9.1f}{cpu:9.2f}"
            print(f"{name:44}{step:8.3f}{cells}")


if __name__ == "__main__":
    main()
