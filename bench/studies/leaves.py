"""Microseconds a sample by kind of sample: `python bench/studies/leaves.py`, or `--quick` for a short look.

    ringfeed    an epoch of a Loader with workers=0, batches of 32
    torch       torch's default_collate of the same samples in the same batches, where torch is there
    own         reading the samples and nothing else, which is in both of the others

All in one process, taking turns, another one first in each repetition; ratios are taken within a
repetition: of ringfeed to the sample of a row and an int, which is the cheapest, and of torch to
ringfeed. Each repetition of a kind leaves one JSON line.
"""

from __future__ import annotations

import argparse
import enum
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).parents[1]
BATCH, BATCHES, QUICK_BATCHES = 32, 500, 4
REPETITIONS = 15
NAMES = [f"feature {number}" for number in range(20)]
CHEAPEST = "int"


class Label(enum.IntEnum):
    """As a dataset names its classes."""

    THREE = 3


class Pair(NamedTuple):
    """A sample with names."""

    x: Any
    y: Any


class Samples:
    """A dataset of one kind of sample."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def kinds(length: int) -> dict[str, Callable[[int], Any]]:
    """What each kind of sample is made by."""
    x, y = np.zeros((length, 4), np.float32), np.arange(length)
    f, b, s = np.zeros(length, np.float32), np.zeros(length, np.bool_), np.full(length, "abc")
    table = np.zeros((20, length), np.float32)
    found: dict[str, Callable[[int], Any]] = {
        CHEAPEST: lambda i: (x[i], 3),
        "np.int64": lambda i: (x[i], y[i]),
        "np.float32": lambda i: (x[i], f[i]),
        "np.bool_": lambda i: (x[i], b[i]),
        "np.str_": lambda i: (x[i], s[i]),
        "0-d array": lambda i: (x[i], y[i, ...]),
        "bool": lambda i: (x[i], True),
        "IntEnum": lambda i: (x[i], Label.THREE),
        "dict": lambda i: {"x": x[i], "y": 3},
        "NamedTuple": lambda i: Pair(x[i], 3),
        "list": lambda i: [x[i], 3],
        "5 arrays, nested": lambda i: {
            "a": x[i],
            "b": {"c": x[i], "d": {"e": x[i], "f": x[i]}},
            "g": x[i],
        },
        "dict of 20 floats": lambda _: dict.fromkeys(NAMES, 0.5),
        "dict of 20 np.float32": lambda i: {
            name: column[i] for name, column in zip(NAMES, table, strict=True)
        },
        "dict of 20 arrays": lambda i: {
            name: column[i : i + 1] for name, column in zip(NAMES, table, strict=True)
        },
        "list of 100 floats": lambda _: ([0.5] * 100, 3),
    }
    return found | tensors(x, y)


def tensors(x: np.ndarray, y: np.ndarray) -> dict[str, Callable[[int], Any]]:
    """The kinds of torch, if it is there."""
    try:
        import torch  # noqa: PLC0415 - the bench runs without
    except ImportError:
        return {}
    torch.set_num_threads(1)
    rows, labels = torch.from_numpy(x), torch.from_numpy(y)
    row = rows[0]
    return {"tensor and int": lambda _: (row, 3), "tensors": lambda i: (rows[i], labels[i])}


def collate() -> Callable[[list[Any]], Any] | None:
    """Torch's default_collate, if torch is there."""
    try:
        from torch.utils.data import default_collate  # noqa: PLC0415 - as above
    except ImportError:
        return None
    return default_collate


class Case:
    """One kind of sample, and all that read it."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.dataset = Samples(make, length)
        self.loader = ringfeed.Loader(self.dataset, batch_size=BATCH, workers=0)
        self.collate = collate()

    def contenders(self) -> dict[str, Callable[[], None]]:
        """What each one calls to read all samples once."""
        found = {"ringfeed": self.load, "own": self.read}
        return found | ({"torch": self.stack} if self.collate else {})

    def load(self) -> None:
        """Through the loader."""
        for batch in self.loader:
            del batch

    def read(self) -> None:
        """Every sample, into nothing."""
        for index in range(len(self.dataset)):
            self.dataset[index]

    def stack(self) -> None:
        """As torch's DataLoader does without workers."""
        assert self.collate is not None
        for first in range(0, len(self.dataset), BATCH):
            self.collate([self.dataset[index] for index in range(first, first + BATCH)])


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A line for each repetition and kind: seconds a sample by contender."""
    length = BATCH * (QUICK_BATCHES if quick else BATCHES)
    cases = {name: Case(make, length) for name, make in kinds(length).items()}
    found = []
    for repetition in range(2 if quick else REPETITIONS):
        for name, case in cases.items():
            turns = list(case.contenders().items())
            turns = turns[repetition % len(turns) :] + turns[: repetition % len(turns)]
            seconds = {contender: time_of(read) / length for contender, read in turns}
            found.append({"kind": name, "repetition": repetition, "s": seconds})
    for case in cases.values():
        case.loader.close()
    return found


def time_of(read: Callable[[], None]) -> float:
    """Seconds of one call."""
    began_s = time.perf_counter()
    read()
    return time.perf_counter() - began_s


def show(records: list[dict[str, Any]]) -> str:
    """A line for each kind."""
    cheapest = {
        record["repetition"]: record["s"]["ringfeed"]
        for record in records
        if record["kind"] == CHEAPEST
    }
    lines = [
        f"{'':22} {'own':>7} {'ringfeed':>9} {'torch':>7} us   over an int   torch over ringfeed"
    ]
    for kind in dict.fromkeys(record["kind"] for record in records):
        runs = [record for record in records if record["kind"] == kind]
        times = [
            f"{1e6 * median(run['s'][name] for run in runs):.2f}" for name in ("own", "ringfeed")
        ]
        ratios = [
            f"{median(run['s']['ringfeed'] / cheapest[run['repetition']] for run in runs):.2f}"
        ]
        with_torch = all("torch" in run["s"] for run in runs)
        times.append(
            f"{1e6 * median(run['s']['torch'] for run in runs):.2f}" if with_torch else "-"
        )
        ratios.append(
            f"{median(run['s']['torch'] / run['s']['ringfeed'] for run in runs):.2f}"
            if with_torch
            else "-"
        )
        lines.append(
            f"{kind:22} {times[0]:>7} {times[1]:>9} {times[2]:>7}      {ratios[0]:>11}   "
            f"{ratios[1]:>19}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, append to the results and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two repetitions of four batches")
    parser.add_argument(
        "--out", type=Path, default=BENCH / "results" / f"leaves-{time.strftime('%Y-%m-%d')}.jsonl"
    )
    options = parser.parse_args()
    facts = {**conditions(quick=options.quick), "versions": versions((("torch", ""),))}
    records = [{**facts, **found} for found in measure(quick=options.quick)]
    with options.out.open("a") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    print(show(records))


if __name__ == "__main__":
    main()
