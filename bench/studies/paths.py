"""What a million path strings take in each worker: `python bench/studies/paths.py`, or `--quick` for 20,000 of them.

Eight workers read every string once, in one epoch. Then the kernel says what is private to each of
them (Private_Clean and Private_Dirty in smaps_rollup), less what is private to the workers of the
same loader over a dataset without strings. Each case is a process of its own.

    list      a list of str, as most datasets have it
    Frozen    ringfeed.datasets.Frozen of that list
    ringfeed, torch    whose workers: spawned or forked; torch's DataLoader forks

The script fails where a Frozen takes 10 MB or more in a worker; each case leaves one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions
from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCH = Path(__file__).parents[1]
STRINGS, QUICK_STRINGS, TOGETHER = 1_000_000, 100_000, 100
WORKERS, QUICK_WORKERS = 8, 2
MOST = 10_000_000  # bytes of a Frozen in a worker
WAYS = ("ringfeed, spawn", "ringfeed, fork", "torch, fork")
TIMEOUT_S = 600.0


class Strings:
    """Sample i is the length of some of the strings together; all of them are read in an epoch."""

    def __init__(self, paths: Sequence[str], length: int) -> None:
        self.paths = paths
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        first = index * TOGETHER
        return sum(
            len(self.paths[number])
            for number in range(first, min(first + TOGETHER, len(self.paths)))
        )


def strings(kind: str, count: int) -> Sequence[str]:
    """The strings as a list, as a Frozen, or none."""
    made = [
        f"/pictures/class_{n % 1000:04d}/{n:08d}.jpg" for n in range(0 if kind == "none" else count)
    ]
    return ringfeed.datasets.Frozen(made) if kind == "Frozen" else made


def private(pid: int) -> int:
    """Bytes that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(
        1024 * int(found)
        for found in re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB$", text, re.MULTILINE)
    )


def look(way: str, kind: str, count: int, workers: int) -> float:
    """Private bytes of a worker, the mean of all, after an epoch that has read all strings."""
    dataset = Strings(strings(kind, count), count // TOGETHER)
    expected = sum(map(len, dataset.paths))
    if way.startswith("torch"):
        return look_at_torch(dataset, expected, workers)
    with ringfeed.Loader(
        dataset, batch_size=32, workers=workers, backend=way.split(", ")[1]
    ) as loader:
        total = sum(int(batch.sum()) for batch in loader)
        assert total == expected, (total, expected)
        return mean(private(worker.pid) for worker in loader.stats().memory.workers)


def look_at_torch(dataset: Strings, expected: int, workers: int) -> float:
    """The same of the workers of a DataLoader."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - the bench runs without

    loader = DataLoader(dataset, batch_size=32, num_workers=workers, persistent_workers=True)
    total = sum(int(batch.sum()) for batch in loader)
    assert total == expected, (total, expected)
    return mean(private(worker.pid) for worker in loader._iterator._workers)  # noqa: SLF001 - their only list


def run_case(way: str, kind: str, count: int, workers: int) -> float | None:
    """The same in a process of its own; None where torch is not there."""
    command = [sys.executable, __file__, "--one", way, kind, str(count), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
    if "No module named 'torch'" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(f"{way}, {kind}: {done.stderr}")
    return float(done.stdout.splitlines()[-1])


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A line for each way and kind: bytes of the strings in a worker."""
    count, workers = (QUICK_STRINGS, QUICK_WORKERS) if quick else (STRINGS, WORKERS)
    found = []
    for way in WAYS:
        sizes = {kind: run_case(way, kind, count, workers) for kind in ("none", "list", "Frozen")}
        found += [
            {
                "way": way,
                "kind": kind,
                "strings": count,
                "workers": workers,
                "bytes": round(size - sizes["none"]),
            }
            for kind, size in sizes.items()
            if kind != "none" and size is not None
        ]
    return found


def main() -> None:
    """Measure, print a line for each case, and add them to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="20,000 strings and two workers")
    parser.add_argument(
        "--out", type=Path, default=BENCH / "results" / f"paths-{time.strftime('%Y-%m-%d')}.jsonl"
    )
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        way, kind, count, workers = options.one
        print(look(way, kind, int(count), int(workers)))
        return
    facts = {**conditions(quick=options.quick), "versions": versions((("torch", ""),))}
    records = measure(quick=options.quick)
    with options.out.open("a") as lines:
        lines.writelines(json.dumps({**facts, **record}) + "\n" for record in records)
    for record in records:
        print(
            f"{record['way']:16} {record['kind']:7} {show_bytes(max(record['bytes'], 0)):>9} a "
            "worker"
        )
    if any(
        record["kind"] == "Frozen" and record["bytes"] >= MOST
        for record in records
        if "ringfeed" in record["way"]
    ):
        sys.exit(f"a Frozen takes {show_bytes(MOST)} or more in a worker")


if __name__ == "__main__":
    main()
