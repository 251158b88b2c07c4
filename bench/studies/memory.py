"""The plan against the kernel, in bytes: `python bench/studies/memory.py`, or `--quick` for the two smallest cases.

Six kinds of batches, from 1 kB to 38.5 MB, with spawned and with forked workers. Each case is a
fresh process that takes an epoch, in which every slot is used, and asks `loader.stats().memory`
when all workers have come to rest.

    planned      loader.memory
    reserved     what the kernel has given to the memfds of slots, control block and dataset (st_blocks)
    kernel       the sum of Pss, over this process and its workers, of the mappings of these memfds (smaps), and two
                 things that no mapping shows: the pickle of a dataset, which is kept for the workers to come, and
                 what each worker has made of it: its private bytes (smaps_rollup) less those of one without

The last can only be told where it is much: elsewhere it is left out, of the plan too. Forked
workers have no copy in the plan; what they copy by touching it is shown. The kernel cuts Pss to
whole kB for each mapping of each process: by so much a small plan may be off besides the two
percent that are promised. Each case leaves one JSON line; the script fails if one is further off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import commit, machine, versions
from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = ("spawn", "fork")
SLOTS, WORKERS = 4, 2
ROUNDS = 6  # times that each slot is used in the epoch
WITHIN = 0.02  # of the plan
CUT = (
    1024 * (1 + WORKERS) * 3
)  # bytes: what rounding takes at most from the mappings of all processes
PATIENCE_S = 60.0
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Case:
    """One kind of batch, and what its dataset holds besides: bytes of arrays, and a number of file names."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    arrays: int = 0
    names: int = 0


CASES = (
    Case("1 kB, uint8", (4,), "uint8", 256),
    Case("197 kB, uint8", (32, 32, 3), "uint8", 64),
    Case("786 kB, float32", (32, 32, 3), "float32", 64),
    Case("786 kB, float32, 200,000 names", (32, 32, 3), "float32", 64, names=200_000),
    Case("9.6 MB, uint8, 100 MB of arrays", (224, 224, 3), "uint8", 64, arrays=100_000_000),
    Case("38.5 MB, float32", (224, 224, 3), "float32", 64),
)


class Samples:
    """Constant samples; each page of the arrays and every name is looked at in an epoch."""

    def __init__(self, case: Case, *, bare: bool) -> None:
        self.shape, self.dtype = case.shape, case.dtype
        self.length = ROUNDS * SLOTS * case.batch_size
        self.array = np.ones(0 if bare else case.arrays, np.uint8)
        self.names = [
            f"/pictures/class_{n % 1000:04d}/{n:08d}.jpg" for n in range(0 if bare else case.names)
        ]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        value = int(self.array[::4096].sum()) + sum(map(len, self.names[index :: self.length]))
        return np.full(self.shape, value % 251, self.dtype)


def look(case: Case, method: str, *, bare: bool = False) -> tuple[ringfeed.Loader, Any]:
    """A loader that is closed, and its memory when all slots had been used and all workers were at rest."""
    dataset = Samples(case, bare=bare)
    with ringfeed.Loader(
        dataset, batch_size=case.batch_size, slots=SLOTS, workers=WORKERS, backend=method
    ) as loader:
        deadline_s = time.monotonic() + PATIENCE_S
        while loader.epoch == 0 or not (settled(loader) or time.monotonic() > deadline_s):
            for _ in loader:
                pass
        return loader, loader.stats().memory


def settled(loader: ringfeed.Loader) -> bool:
    """Whether every worker has come as far as to touch its part of the slots."""
    return all(
        worker.pages and worker.pages.touched > loader.plan.slot_size
        for worker in loader.stats().memory.workers
    )


def measure(case: Case, method: str) -> dict[str, Any]:
    """The figures of one case, in bytes."""
    loader, memory = look(case, method)
    plan = loader.plan
    shared = plan.slots * plan.slot_size + plan.control_size
    stream = (
        0 if case.arrays else memory.reserved - shared
    )  # it is no longer mapped once it is unpickled
    planned, kernel, own = memory.planned, memory.resident + stream, None
    if case.names:
        _, bare = look(case, method, bare=True)
        own = round(
            mean(worker.private for worker in memory.workers)
            - mean(worker.private for worker in bare.workers)
        )
    if case.names and method == "spawn":
        kernel += WORKERS * own
    else:
        planned -= WORKERS * plan.dataset_per_worker
    return {
        "planned": planned,
        "reserved": memory.reserved,
        "kernel": kernel,
        "own_planned": plan.dataset_per_worker,
        "own": own,
    }


def run_case(number: int, method: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", str(number), "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{CASES[number].name}, {method}: {done.stderr}")
    return json.loads(done.stdout)


def row(result: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    difference = (result["kernel"] - result["planned"]) / result["planned"]
    sizes = (show_bytes(result[name]) for name in ("planned", "reserved", "kernel"))
    own = (
        ""
        if result["own"] is None
        else f"{show_bytes(result['own_planned'])} / {show_bytes(result['own'])}"
    )
    return result["case"], result["method"], *sizes, f"{difference:+.2%}", own


def is_off(result: dict[str, Any]) -> bool:
    """Whether the kernel and the plan do not agree."""
    return abs(result["kernel"] - result["planned"]) > max(WITHIN * result["planned"], CUT)


def table(results: Sequence[dict[str, Any]]) -> str:
    """All results as Markdown."""
    head = (
        "Batch and dataset",
        "Workers",
        "Planned",
        "Reserved",
        "Kernel",
        "Off",
        "A worker's own: planned / found",
    )
    lines = [head, ("---",) * len(head), *map(row, results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Run the cases, print their table, and add them to a file."""
    parser = argparse.ArgumentParser(description="Compare plans with what the kernel says.")
    parser.add_argument("--quick", action="store_true", help="the two smallest cases only")
    parser.add_argument("--out", type=Path, help="the file that takes a JSON line for each case")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(CASES[arguments.one], arguments.method)))
        return
    about = {
        "machine": machine(),
        "versions": versions(()),
        "commit": commit(),
        "load": os.getloadavg()[0],
    }
    results = []
    for number, case in enumerate(CASES[:2] if arguments.quick else CASES):
        for method in METHODS:
            results.append({"case": case.name, "method": method, **run_case(number, method)})
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps({"bench": "memory", **results[-1], **about}) + "\n")
    print(table(results))
    if off := [f"{result['case']}, {result['method']}" for result in results if is_off(result)]:
        sys.exit(f"off by more than {WITHIN:.0%}: {'; '.join(off)}")


if __name__ == "__main__":
    main()
